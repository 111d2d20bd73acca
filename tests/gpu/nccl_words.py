#!/usr/bin/env python3
"""What coordd says that tensors on GPUs travel over, beside what NCCL itself says with NCCL_DEBUG=INFO.

NCCL has no function that tells it, so coordd deduces it (docs/design/nccl.md, "What NCCL travels over"). tests/gpu/run has a
stage "words" that compares on one machine. For a job on any machines:

    export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH NCCL_DEBUG_FILE=/tmp/nccl.%h.%p    # of all ranks, before the first tensor
    coordctl status --json > status.json                                                       # while it runs
    tests/gpu/nccl_words.py --status status.json [--job NAME] /tmp/nccl.*

Prints both, and a sentence for each difference; exit status 1 where there is one, 2 where it was called wrongly. The job has tensors on GPUs in the process set
of all ranks and in no other: NCCL's lines do not tell whose they are. Formats are those of NCCL 2.18 to 2.30.
"""

import argparse
import collections
import json
import re
import sys

INFO = re.compile(r"NCCL INFO (.*?)\s*$")
EDGE = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[(?:send|receive)\] )?via (P2P|SHM|NET)/(.+)$")
NET = re.compile(r"(.+?)/(\d+)(?:\(\d+\))?(/GDRDMA(?:\(PCI\))?)?(?:/Shared)?$")  # a network's name may have blanks
HCA = re.compile(r"NET/.+? : GPU Direct RDMA (Enabled|Disabled) for HCA \S+ '(.*)'")
DISTANCE = re.compile(r"GPU Direct RDMA Disabled for (GPU .*)$")  # between a GPU and a card; up to 2.29
RING = re.compile(r"Pattern 4, .*\btype (\w+)/(\w+)")
NVLINK = ("NVL", "NVB")  # a path over NVLink alone: of two GPUs that have one, or through a third one
BUILT_IN = ("Socket", "IB")

Edge = collections.namedtuple("Edge", "sender receiver kind how")


class Words:
    """What NCCL has said, of all ranks."""

    def __init__(self):
        self.edges = set()
        self.hcas = {}  # by name, whether a GPU's memory can go to it
        self.too_far = set()  # GPU and card, in NCCL's words
        self.within = set()  # types of the rings' paths between GPUs of a node

    def read(self, text):
        for line in text.splitlines():
            found = INFO.search(line)
            if not found:
                continue
            said = found[1]
            if edge := EDGE.match(said):
                self.edges.add(Edge(int(edge[1]), int(edge[2]), edge[3], edge[4]))
            elif hca := HCA.match(said):
                self.hcas[hca[2]] = hca[1] == "Enabled"
            elif far := DISTANCE.match(said):
                self.too_far.add(far[1])
            elif ring := RING.match(said):
                self.within.add(ring[1])
        return self

    def of_kind(self, *kinds):
        return sorted(edge for edge in self.edges if edge.kind in kinds)

    def networks(self):
        """(edge, name, whether it is between the GPUs' memories) of each that goes over a network."""
        found = ((edge, NET.match(edge.how)) for edge in self.of_kind("NET"))
        return [(edge, match[1] if match else edge.how, bool(match and match[3])) for edge, match in found]

    def summary(self):
        """For people: which ways there are, and how many edges take each."""
        counts = collections.Counter(re.sub(r"/\d+(\(\d+\)|\[\w+\])?", "", f"{edge.kind}/{edge.how}", count=1) for edge in self.edges)
        return ", ".join(f"{way} ({count})" for way, count in sorted(counts.items())) or "nothing"


def name(edge):
    return f"rank {edge.sender} to rank {edge.receiver} by {edge.kind}/{edge.how}"


def compare_within(words, said):
    """A sentence for each difference between GPUs of a node."""
    local = words.of_kind("P2P", "SHM")
    if not said:
        return [f"coordd says that no two ranks are of one node, NCCL connects {name(local[0])}"] if local else []
    shared, linked = words.of_kind("SHM"), sorted(words.within.intersection(NVLINK))
    if said == "NVLink":
        if shared:
            return [f"coordd says NVLink between all GPUs of a node, NCCL connects {name(shared[0])}"]
        if words.within and not linked:
            return [f"coordd says NVLink between all GPUs of a node, the worst path of NCCL's rings there is {sorted(words.within)[0]}"]
    if said.startswith("no NVLink") and linked:
        return [f"coordd says that there is no NVLink between GPUs of a node, NCCL's rings go by {linked[0]}"]
    return []


def compare_between(words, said):
    """The same between nodes; and what is no difference, but should be known."""
    networks = words.networks()
    if not said:
        return ([f"coordd says that all ranks are of one node, NCCL connects {name(networks[0][0])}"] if networks else []), []
    if not networks:
        return [f"coordd says {said} between nodes, NCCL has named no connection over a network"], []
    names = {network for _, network, _ in networks}
    direct = [edge for edge, _, gdr in networks if gdr]
    if said.startswith("plugin "):
        built_in = [edge for edge, network, _ in networks if network in BUILT_IN]
        return ([f"coordd says {said} between nodes, NCCL connects {name(built_in[0])}"] if built_in else []), []
    expected = "Socket" if said.startswith("TCP") else "IB"
    other = [edge for edge, network, _ in networks if network != expected]
    if other:
        return [f"coordd says {said} between nodes, NCCL connects {name(other[0])}"], []
    if said == "RDMA, without GPUDirect" and direct:
        return [f"coordd says {said} between nodes, NCCL connects {name(direct[0])}"], []
    if said != "RDMA, GPUDirect" or len(direct) == len(networks):
        return [], []
    refused = sorted(hca for hca, enabled in words.hcas.items() if not enabled)
    if refused and not any(words.hcas.values()):
        return [f"coordd says {said} between nodes, NCCL that it is disabled for {', '.join(refused)}"], []
    why = f": {sorted(words.too_far)[0]}" if words.too_far else ""
    return [], [f"GPUDirect is possible, as coordd says, and {len(networks) - len(direct)} of {len(networks)} connections between nodes "
                f"({', '.join(sorted(names))}) are without it{why}"]


def job_of(status, name=None):
    """The job of that name; without one, the only job. ValueError: there is no such job, or it has to be chosen."""
    jobs = {each["name"]: each for each in status["jobs"]}
    those = f"those there are: {', '.join(sorted(jobs)) or 'none'}"
    if name is not None:
        if name not in jobs:
            raise ValueError(f"there is no job {name}, {those}")
        return jobs[name]
    if len(jobs) != 1:
        raise ValueError(f"found {len(jobs)} jobs, expected one, or --job with a name: {those}")
    return next(iter(jobs.values()))


def path_of(job):
    """What coordd says of the process set of all ranks, and how many those are. ValueError: nothing."""
    for worker in job["workers"]:
        for path in (worker.get("device_use") or {}).get("paths", ()):
            if path["process_set"] == 0:
                if missing := [key for key in ("nccl", "within_node", "between_nodes") if key not in path]:
                    raise KeyError(missing[0])
                return path, len(job["workers"])
    raise ValueError(f"coordd says nothing there of tensors on GPUs of all ranks of the job {job['name']}")


def read_status(file, job=None):
    """path_of() what a file has of a job. ValueError: a sentence that names the file."""
    expected = "expected what coordctl status --json prints"
    try:
        with open(file, encoding="utf-8") as opened:
            return path_of(job_of(json.load(opened), job))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}, {expected}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: found no JSON ({error}), {expected}") from None
    except KeyError as error:
        raise ValueError(f"{file}: found no {error}, {expected}") from None
    except (TypeError, AttributeError):
        raise ValueError(f"{file}: found JSON of another form, {expected}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def read_logs(files):
    """What NCCL has said in all of them. ValueError: one cannot be read."""
    words = Words()
    for file in files:
        try:
            with open(file, encoding="utf-8", errors="replace") as log:
                words.read(log.read())
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}, expected a log of NCCL's (NCCL_DEBUG_FILE)") from None
    return words


def compare(words, path, ranks):
    """(differences, notes), each a sentence."""
    if not path["nccl"]:
        return ([f"coordd says that tensors go through host memory, NCCL connects {name(min(words.edges))}"] if words.edges else []), []
    if ranks > 1 and not words.edges:
        return ["NCCL has named no connection: were NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS with INIT set for all ranks?"], []
    between, notes = compare_between(words, path["between_nodes"])
    return compare_within(words, path["within_node"]) + between, notes


def report(words, path, ranks):
    """The text of it, and whether there is a difference."""
    differences, notes = compare(words, path, ranks)
    lines = [f"coordd says: in a node: {path['within_node'] or '-'}; between nodes: {path['between_nodes'] or '-'}",
             f"NCCL says: {words.summary()}; paths of its rings in a node: {' '.join(sorted(words.within)) or 'not told'}",
             *(f"GPUDirect RDMA, card {hca}: {'enabled' if enabled else 'disabled'}, says NCCL" for hca, enabled in sorted(words.hcas.items())),
             *(f"note: {note}" for note in notes),
             *(f"DIFFERENT: {difference}" for difference in differences)]
    return "\n".join(lines), bool(differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--status", required=True, help="what coordctl status --json has printed")
    parser.add_argument("--job", help="the job's name, where there are several")
    parser.add_argument("logs", nargs="+", help="NCCL's logs, of all ranks")
    arguments = parser.parse_args()
    try:
        text, differs = report(read_logs(arguments.logs), *read_status(arguments.status, arguments.job))
    except ValueError as error:
        print(f"nccl_words.py: {error}", file=sys.stderr)
        return 2
    print(text)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
