"""Ranks with tensors in GPU memory, over the stand-ins of CUDA's driver and NCCL or, with COORDD_TEST_GPU=1, over the real ones."""

import json
import os
import re
import unittest

from tests.support import processes
from tests.support.processes import clean_environment, program

RANKS = 4
ON_GPU = os.environ.get("COORDD_TEST_GPU") == "1"
KILLS = int(os.environ.get("COORDD_TEST_KILLS", "1"))
# Of 2.28.9, or another one of the matrix (tests/worker/gpu_matrix.cmake), which has its number in its name.
STAND_IN = os.environ.get("COORDD_TEST_FAKE_NCCL", os.path.join(processes.BUILD, "tests", "libfake_nccl.so"))
NCCL = int((re.findall(r"_([0-9]{5})\.so$", STAND_IN) or [22809])[0])  # 22809: 2.28.9
NCCL_VERSION = f"{NCCL // 10000}.{NCCL // 100 % 100}.{NCCL % 100}"


def two_per_node(rank):
    """Two ranks follow each other on what NCCL takes for a host."""
    return {"NCCL_HOSTID": f"node{rank // 2}"}


def gpu_in_node(rank):
    """All nodes are this machine: of real GPUs, they share the first two."""
    return rank % 2 if ON_GPU else -1


needs_stand_in = unittest.skipIf(ON_GPU, "the fault is one that the stand-in of NCCL is told to have")


class GpuCase(processes.TestCase):
    def setUp(self):
        super().setUp()
        if ON_GPU:
            return
        # The driver is opened by its name, NCCL by ours.
        os.symlink(os.path.join(processes.BUILD, "tests", "libfake_cuda.so"), os.path.join(self.folder, "libcuda.so.1"))

    def environment(self, **more):
        if ON_GPU:
            named = {name: os.environ[name] for name in ("COORDD_NCCL_LIBRARY",) if name in os.environ}
            own_host = {"NCCL_HOSTID": f"rank{more.get('COORDD_RANK')}"}
            return clean_environment(COORDD_ALLOW_SHARED_GPU=1, **{**own_host, **named, **more})
        environment = {
            "COORDD_NCCL_LIBRARY": STAND_IN,
            "FAKE_NCCL_DIR": self.folder,
            "LD_LIBRARY_PATH": self.folder + ":" + os.environ.get("LD_LIBRARY_PATH", ""),
            **more}
        return clean_environment(**environment)

    def ranks(self, arguments, own=lambda rank: {}, **variables):
        """A rank for each list of arguments; `own`: its variables."""
        daemon = self.coordd()
        count = len(arguments)
        return [self.start(processes.Process(
            [program("gpu_ranks"), *map(str, line)],
            self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=count, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                             COORDD_JOIN_TIMEOUT=processes.PATIENCE_S, **{**variables, **own(rank)})))
            for rank, line in enumerate(arguments)]

    def needs_two_gpus(self):
        if ON_GPU and not os.path.exists("/dev/nvidia1"):
            self.skipTest("ranks of one node need a GPU each: NCCL refuses two on one")

    def finish(self, ranks):
        """What each has printed when it has ended by itself."""
        for rank in ranks:
            self.assertEqual(rank.wait(), 0, rank.text())
        return [rank.text() for rank in ranks]

    def assert_nccl_calls(self, text, some=True):
        found = re.search(r"nccl calls (\d+) broken rule \[(.*)\]", text)
        self.assertIsNotNone(found, text)
        self.assertEqual(found.group(2), "", text)
        self.assertEqual(int(found.group(1)) > 0, some, text)

    def told(self, daemon, count, until=lambda path: True):
        """What coordd knows of `count` ranks' GPUs, once all have agreed and have said this, and the text that people see."""
        def uses():
            _, text = self.run_command(program("coordctl"), "status", "--json", "--coordinator", daemon.listen)
            jobs = json.loads(text)["jobs"]
            workers = sorted(jobs[0]["workers"], key=lambda worker: worker["rank"]) if jobs else []
            return [worker["device_use"] for worker in workers]

        def all_agreed():
            found = uses()
            return len(found) == count and all(use and use["paths"] and until(use["paths"][0]) for use in found)

        self.assertTrue(processes.wait_for(all_agreed, processes.PATIENCE_S), uses())
        _, text = self.run_command(program("coordctl"), "status", "--coordinator", daemon.listen)
        return uses(), text

    def train(self, count, own=lambda rank: {}, store=(), **variables):
        """A coordd and so many ranks that reduce tensors until they are killed."""
        daemon = self.coordd("--heartbeat-interval", "100ms", *store)
        for rank in range(count):
            self.start(processes.Process(
                [program("gpu_ranks"), "-1", "train"],
                self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=count, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                                 **{**variables, **own(rank)})))
        return daemon
