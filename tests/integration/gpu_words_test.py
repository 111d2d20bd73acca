"""What coordd says that tensors travel over, beside what NCCL says with NCCL_DEBUG=INFO (tests/gpu/nccl_words.py). Over the
stand-ins, which say what they are told to; with COORDD_TEST_GPU=1 (tests/gpu/run, stage "words") over the real ones."""

import glob
import json
import os
import sys
import tempfile
import unittest

from tests.support import processes
from tests.support.gpu_jobs import ON_GPU, GpuCase, needs_stand_in, two_per_node

FOLDER = os.path.join(processes.ROOT, "tests", "gpu")
sys.path.insert(0, FOLDER)

import nccl_words  # noqa: E402

# Of one machine's ranks in turn: what each release calls the ways.
SHARED = ["Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "Channel 03 : 1[1] -> 0[0] via SHM/CE/direct",
          "Channel 00 : 0[0] -> 1[1] via SHM/direct"]  # the last one since 2.30
PEERS = ["Channel 00/0 : 0[18000] -> 1[1c000] via P2P/IPC/read",  # 2.18: places on the bus
         "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "Channel 11/1 : 0[0] -> 1[1] via P2P/CUMEM/read", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
         "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/CE", "Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read",
         "Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/2[2]/read", "Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL"]
NETWORKS = [("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0", "Socket", False),
            ("Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/3", "IB", False),
            ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA", "IB", True),
            ("Channel 00/0 : 0[0] -> 9[1] [send] via NET/IB/0(8)/GDRDMA", "IB", True),  # by another rank's card
            ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA(PCI)", "IB", True),  # since 2.26
            ("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA/Shared", "IB", True),
            ("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/Shared", "IB", False),
            ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0/GDRDMA", "AWS Libfabric", True)]
OTHERS = """
node1:4711:4711 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
node1:4711:4722 [0] NCCL INFO Using network IB
node1:4711:4722 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
node1:4711:4722 [0] NCCL INFO ncclCommInitRankConfig comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0x7 - Init COMPLETE
node1:4711:4722 [0] NCCL WARN Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""
PREFIXES = ("node1:4711:4722 [0] NCCL INFO ", "[2026-11-30 01:02:03] node1:4711:4722 [0] NCCL INFO ")  # with NCCL_DEBUG_TIMESTAMP_LEVELS
RING = "Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type {}/PIX, sameChannels 1"
TREE = "Pattern 1, crossNic 0, nChannels 12, bw 20.000000/20.000000, type SYS/PIX, sameChannels 1"
ENABLED = "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"
DISABLED = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
TOO_FAR = "GPU Direct RDMA Disabled for GPU 1 / HCA 1000 (distance 7 > 4)"
DIRECT, INDIRECT = (f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0{way}" for way in ("/GDRDMA", ""))
SOCKET = NETWORKS[0][0]


def words(*said):
    return nccl_words.Words().read("".join(PREFIXES[0] + line + "\n" for line in said))


class NcclWordsTest(unittest.TestCase):
    def test_lines_of_every_release_are_understood_and_others_passed_over(self):
        for prefix in PREFIXES:
            for kind, lines in (("SHM", SHARED), ("P2P", PEERS)):
                for line in lines:
                    found = nccl_words.Words().read(OTHERS + prefix + line + "\n" + OTHERS)
                    self.assertEqual([edge.kind for edge in found.edges], [kind], line)
                    self.assertFalse(found.networks())
            for line, name, direct in NETWORKS:
                found = nccl_words.Words().read(prefix + line + "\r\n")
                self.assertEqual([network[1:] for network in found.networks()], [(name, direct)], line)
        found = words(RING.format("NVL"), TREE, ENABLED, "NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'", TOO_FAR)
        self.assertEqual((found.within, found.hcas, found.too_far),
                         ({"NVL"}, {"mlx5_0": True, "mlx5_1": False}, {"GPU 1 / HCA 1000 (distance 7 > 4)"}))

    def test_a_sentence_for_each_difference(self):
        for within, between, said, sentences, notes in (
                ("NVLink", "", [RING.format("NVL"), PEERS[2]], [], 0),
                ("NVLink", "", [RING.format("NVB"), PEERS[6]], [], 0),
                ("NVLink", "", [SHARED[0]],
                 ["coordd says NVLink between all GPUs of a node, NCCL connects rank 0 to rank 1 by SHM/direct/direct"], 0),
                ("NVLink", "", [RING.format("PHB"), PEERS[2]],
                 ["coordd says NVLink between all GPUs of a node, the worst path of NCCL's rings there is PHB"], 0),
                ("no NVLink: PCIe or shared memory", "", [RING.format("PHB"), SHARED[0]], [], 0),
                ("no NVLink: PCIe or shared memory", "", [RING.format("PIX"), PEERS[2]], [], 0),
                ("no NVLink: PCIe or shared memory", "", [RING.format("NVL"), PEERS[2]],
                 ["coordd says that there is no NVLink between GPUs of a node, NCCL's rings go by NVL"], 0),
                ("NVLink between some GPUs, PCIe or shared memory between others", "", [PEERS[2], SHARED[0]], [], 0),
                ("NVLink", "", [SOCKET], ["coordd says that all ranks are of one node, NCCL connects rank 0 to rank 1 by NET/Socket/0"], 0),
                ("", "TCP sockets", [SOCKET], [], 0),
                ("", "TCP sockets", [SOCKET, PEERS[2]],
                 ["coordd says that no two ranks are of one node, NCCL connects rank 0 to rank 1 by P2P/CUMEM/read"], 0),
                ("", "TCP sockets", [DIRECT], ["coordd says TCP sockets between nodes, NCCL connects rank 0 to rank 1 by NET/IB/0/GDRDMA"], 0),
                ("", "RDMA, GPUDirect", [ENABLED, DIRECT], [], 0),
                ("", "RDMA, GPUDirect", [SOCKET], ["coordd says RDMA, GPUDirect between nodes, NCCL connects rank 0 to rank 1 by NET/Socket/0"], 0),
                ("", "RDMA, GPUDirect", [DISABLED, INDIRECT],
                 ["coordd says RDMA, GPUDirect between nodes, NCCL that it is disabled for mlx5_0"], 0),
                ("", "RDMA, GPUDirect", [ENABLED, TOO_FAR, INDIRECT], [], 1),
                ("", "RDMA, without GPUDirect", [DISABLED, INDIRECT], [], 0),
                ("", "RDMA, without GPUDirect", [DIRECT],
                 ["coordd says RDMA, without GPUDirect between nodes, NCCL connects rank 0 to rank 1 by NET/IB/0/GDRDMA"], 0),
                ("", "plugin libnccl-net.so", [NETWORKS[7][0]], [], 0),
                ("", "plugin libnccl-net.so", [SOCKET],
                 ["coordd says plugin libnccl-net.so between nodes, NCCL connects rank 0 to rank 1 by NET/Socket/0"], 0),
                ("NVLink", "RDMA, GPUDirect", [RING.format("NVL"), PEERS[2]],
                 ["coordd says RDMA, GPUDirect between nodes, NCCL has named no connection over a network"], 0),
                ("NVLink", "", [], ["NCCL has named no connection: were NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS with INIT set for all ranks?"], 0)):
            with self.subTest(within=within, between=between, said=said):
                path = {"process_set": 0, "nccl": True, "within_node": within, "between_nodes": between}
                found = nccl_words.compare(words(*said), path, 2)
                self.assertEqual((found[0], len(found[1])), (sentences, notes))
        through_host = {"process_set": 0, "nccl": False, "within_node": "", "between_nodes": ""}
        self.assertEqual(nccl_words.compare(words(), through_host, 2), ([], []))
        self.assertEqual(nccl_words.compare(words(SOCKET), through_host, 2)[0],
                         ["coordd says that tensors go through host memory, NCCL connects rank 0 to rank 1 by NET/Socket/0"])
        note = nccl_words.compare(words(ENABLED, TOO_FAR, INDIRECT), {**through_host, "nccl": True, "between_nodes": "RDMA, GPUDirect"}, 2)[1]
        self.assertEqual(note, ["GPUDirect is possible, as coordd says, and 1 of 1 connections between nodes (IB) are without it: "
                                "GPU 1 / HCA 1000 (distance 7 > 4)"])


class NcclWordsUseTest(processes.TestCase):
    def words_of(self, text, *arguments):
        """nccl_words.py over a status of that text (None: no file) and an empty log: its exit status, and what it prints."""
        for name, content in (("status.json", text), ("nccl.log", "")):
            if content is not None:
                with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                    file.write(content)
        return self.run_command("bash", "-c", 'cd "$0" && exec "$@"', self.folder, sys.executable, os.path.join(FOLDER, "nccl_words.py"),
                                *(arguments or ("nccl.log",)), "--status", "status.json")

    def test_what_cannot_be_read_is_refused_in_one_line(self):
        path = {"process_set": 0, "nccl": False, "within_node": "", "between_nodes": ""}
        job = {"name": "one", "workers": [{"device_use": {"paths": [path]}}]}
        good = json.dumps({"jobs": [job]})
        two = json.dumps({"jobs": [{**job, "name": "two"}, job]})
        log = "expected a log of NCCL's (NCCL_DEBUG_FILE)"
        expected = "expected what coordctl status --json prints"
        without = {key: value for key, value in path.items() if key != "within_node"}
        for text, arguments, sentence in (
                (good, ["nccl.gone"], f"nccl.gone: No such file or directory, {log}"),
                (good, ["nccl.log", "other.*"], f"other.*: No such file or directory, {log}"),
                (good, [self.folder], f"{self.folder}: Is a directory, {log}"),
                (None, [], f"status.json: No such file or directory, {expected}"),
                ("no JSON", [], f"status.json: found no JSON (Expecting value: line 1 column 1 (char 0)), {expected}"),
                ("{}", [], f"status.json: found no 'jobs', {expected}"),
                ("[1]", [], f"status.json: found JSON of another form, {expected}"),
                ('{"jobs": [{"name": "one"}]}', [], f"status.json: found no 'workers', {expected}"),
                (json.dumps({"jobs": [{**job, "workers": [{"device_use": {"paths": [without]}}]}]}), [],
                 f"status.json: found no 'within_node', {expected}"),
                ('{"jobs": []}', [], "status.json: found 0 jobs, expected one, or --job with a name: those there are: none"),
                (two, [], "status.json: found 2 jobs, expected one, or --job with a name: those there are: one, two"),
                (two, ["--job", "three", "nccl.log"], "status.json: there is no job three, those there are: one, two"),
                (json.dumps({"jobs": [{**job, "workers": [{"device_use": None}]}]}), [],
                 "status.json: coordd says nothing there of tensors on GPUs of all ranks of the job one")):
            with self.subTest(text=text, arguments=arguments):
                status, printed = self.words_of(text, *arguments)
                self.assertEqual((status, printed), (2, f"nccl_words.py: {sentence}\n"))
                if text is not None:
                    os.remove(os.path.join(self.folder, "status.json"))
        self.assertEqual(self.words_of(two, "--job", "two", "nccl.log")[0], 0)


class GpuWordsTest(GpuCase):
    def said(self, count, own=lambda rank: {}, **variables):
        """Of a job of so many ranks: the exit status of nccl_words.py, and what it prints."""
        logs = tempfile.mkdtemp(dir=self.folder)
        daemon = self.train(count, own, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,GRAPH",
                            NCCL_DEBUG_FILE=os.path.join(logs, "%h.%p"), **variables)
        self.told(daemon, count)
        status = os.path.join(self.folder, "status.json")
        ended, text = self.run_command(processes.program("coordctl"), "status", "--json", "--coordinator", daemon.listen)
        self.assertEqual(ended, 0, text)
        with open(status, "w", encoding="utf-8") as file:
            file.write(text)
        return self.run_command(sys.executable, os.path.join(FOLDER, "nccl_words.py"), "--status", status, *sorted(glob.glob(f"{logs}/*")))

    def all_is_said(self, *arguments, **variables):
        status, text = self.said(*arguments, **variables)
        print(text)
        self.assertEqual(status, 0, text)
        self.assertNotIn("DIFFERENT", text)
        return text

    def test_coordd_says_what_nccl_says(self):
        if ON_GPU:
            self.all_is_said(2)  # each a host of its own, as far as NCCL knows
            if os.path.exists("/dev/nvidia1"):
                self.all_is_said(2, lambda rank: {"NCCL_HOSTID": "one"})
            return
        text = self.all_is_said(4, two_per_node, FAKE_CUDA="nvlink=1", NCCL_IB_DISABLE=1)
        self.assertRegex(text, r"(?m)^coordd says: in a node: NVLink; between nodes: TCP sockets\n"
                               r"NCCL says: NET/Socket \(2\), P2P/(IPC|CUMEM)/read \(2\); paths of its rings in a node: NVL$")

    @needs_stand_in
    def test_where_nccl_does_something_else_each_difference_is_a_sentence(self):
        for told, cuda, sentences in (
                ("within=2", "nvlink=1", ["coordd says NVLink between all GPUs of a node, NCCL connects rank 0 to rank 1 by SHM/direct"]),
                ("within=0", "nvlink=0", ["coordd says that there is no NVLink between GPUs of a node, NCCL's rings go by NVL"]),
                ("within=1,between=2", "nvlink=0", ["coordd says TCP sockets between nodes, NCCL connects rank 1 to rank 2 by NET/IB/1/GDRDMA"])):
            with self.subTest(told=told):
                status, text = self.said(4, two_per_node, FAKE_NCCL=told, FAKE_CUDA=cuda, NCCL_IB_DISABLE=1)
                self.assertEqual(status, 1, text)
                found = [line.removeprefix("DIFFERENT: ") for line in text.splitlines() if line.startswith("DIFFERENT")]
                self.assertEqual(len(found), len(sentences), text)
                for line, sentence in zip(found, sentences):
                    self.assertTrue(line.startswith(sentence), text)


if __name__ == "__main__":
    processes.main()
