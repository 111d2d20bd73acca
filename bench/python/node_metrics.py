"""How many bytes a scrape of all workers costs: of each by itself, and of each node through its relay.

    python3 bench/python/node_metrics.py [RANKS_OF_A_NODE [NODES]]

Starts one node of workers twice, without a relay and behind one, has them make the same steps, and asks each target for its metrics as
Prometheus does. One node is real, and the others are that one again: nodes have nothing in common but coordd. Prints bytes and series of
a scrape of all NODES (128), with the series that deploy/prometheus/prometheus.yml keeps, and the answer of /v1/targets. Needs a build.
"""

import json
import os
import sys
import tempfile
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support.processes import Coordd, Process, ScriptedWorker, program  # noqa: E402

STEPS = 20


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        return answer.read().decode()


def measured(coordd, job, ranks, **variables):
    """(bytes, series, series without buckets, targets, bytes of /v1/targets) of a node."""
    workers = [ScriptedWorker(coordd.listen, COORDD_JOB_ID=job, COORDD_MIN_WORKERS=ranks, COORDD_MAX_WORKERS=ranks,
                              COORDD_METRICS="127.0.0.1:0", **variables) for _ in range(ranks)]
    try:
        for worker in workers:
            worker.joined()
        for step in range(STEPS):
            for worker in workers:
                assert worker.ask(f"submit s{step % 5} float32 1000 1") == "ok"
            for worker in workers:
                assert worker.ask(f"wait s{step % 5}").startswith("ok")
        listed = get(coordd.http, "/v1/targets")
        targets = [target for target in json.loads(listed) if target["labels"]["job_name"] == job]
        texts = [get(target["targets"][0], target["labels"].get("__metrics_path__", "/metrics")) for target in targets]
        lines = [line for text in texts for line in text.splitlines() if not line.startswith("#")]
        return sum(map(len, texts)), len(lines), sum("_bucket{" not in line for line in lines), len(targets), len(listed)
    finally:
        for worker in workers:
            worker.end()


def main(ranks, nodes):
    with tempfile.TemporaryDirectory(prefix="coordd-bench-") as folder:
        coordd = Coordd()
        socket = f"unix:{folder}/relay"
        reading, writing = os.pipe()
        relay = Process([program("coordd-relay"), "--coordinator", coordd.listen, "--listen", socket, "--metrics", "127.0.0.1:0",
                         "--ready-fd", str(writing)], pass_fds=[writing])
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            assert said.readline() == b"ready\n", relay.text()
        try:
            rows = [("each worker", measured(coordd, "alone", ranks)),
                    ("each node", measured(coordd, "behind", ranks, COORDD_NODE_SESSION=socket))]
        finally:
            relay.end()
            coordd.end()
    for name, (size, series, kept, targets, _) in rows:
        print(f"{name}: {nodes * targets} targets, {nodes * size / 1e6:.2f} MB, {nodes * series} series, {nodes * kept} without buckets")
    print(f"ratio: bytes {rows[1][1][0] / rows[0][1][0]:.3f}, series {rows[1][1][1] / rows[0][1][1]:.3f}, "
          f"without buckets {rows[1][1][2] / rows[0][1][2]:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8, int(sys.argv[2]) if len(sys.argv) > 2 else 128)
