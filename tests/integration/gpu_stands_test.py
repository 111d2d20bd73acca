"""A device that stands: coordd says on which rank, at what, and why. Over the stand-ins of CUDA's driver and NCCL, or the real ones."""

import json
import os
import re
import socket

from tests.support import processes
from tests.support.gpu_jobs import ON_GPU, RANKS, GpuCase
from tests.support.processes import program, wait_for

STANDING = 2
SECONDS = processes.PATIENCE_S


class GpuStandsTest(GpuCase):
    def status(self, daemon, *arguments):
        return self.run_command(program("coordctl"), "status", *arguments, "--coordinator", daemon.listen)[1]

    def a_part_of_a_gpu(self, rank):
        """Variables of a rank that CUDA's service serves, and of one on a slice."""
        if ON_GPU or rank > 1:
            return {}
        if rank == 1:
            return {"FAKE_CUDA": "mig=1"}
        pipes = os.path.join(self.folder, "mps")
        os.mkdir(pipes)
        control = socket.socket(socket.AF_UNIX)
        self.addCleanup(control.close)
        control.bind(os.path.join(pipes, "control"))
        return {"CUDA_MPS_PIPE_DIRECTORY": pipes}

    def test_log_status_and_metrics_say_on_which_device_a_batch_stands(self):
        daemon = self.coordd("--stall-warning", "3s", "--heartbeat-interval", "200ms")
        release = os.path.join(self.folder, "release")
        ranks = [self.start(processes.Process(
            [program("gpu_ranks"), "-1", "stand", str(STANDING), release],
            self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=RANKS, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                             **self.a_part_of_a_gpu(rank))))
            for rank in range(RANKS)]
        others = ", ".join(str(rank) for rank in range(RANKS) if rank != STANDING)
        sentence = (rf"started on ranks {others}, enqueued behind the program's own work on rank {STANDING} "
                    r"\(GPU-[0-9a-f-]+, host [^)]+\)")
        self.assertTrue(wait_for(lambda: re.search(rf"allreduce grad/0 \(\+2\) on the device: {sentence}", self.status(daemon)), SECONDS),
                        self.status(daemon) + "".join(rank.text() for rank in ranks))
        self.assertTrue(wait_for(
            lambda: re.search(rf"allreduce grad/0 \(\+2\) stands on the device for [^:]+: {sentence}", daemon.text()), SECONDS), daemon.text())
        self.assertEqual(len(re.findall("stands on the device", daemon.text())), 1, daemon.text())
        self.assertTrue(wait_for(lambda: daemon.metric("coordd_stalled_tensors") == 1))
        self.assertTrue(wait_for(lambda: daemon.metric("coordd_stall_missing_rank") == STANDING))
        if not ON_GPU:
            self.assertIn("(a part: MPS)", self.status(daemon))
            self.assertIn("(a part: MIG 1g.10gb)", self.status(daemon))
            self.assertRegex(ranks[0].text(), r"this process has a part of its GPU GPU-[0-9a-f-]+ \(Fake GPU\): MPS")
            self.assertRegex(ranks[1].text(), r"this process has a part of its GPU MIG-[0-9a-f-]+ \(Fake GPU MIG 1g.10gb\): MIG 1g.10gb")
        workers = json.loads(self.status(daemon, "--json"))["jobs"][0]["workers"]
        activity = {worker["rank"]: worker["activity"] for worker in workers}
        self.assertEqual(activity[STANDING], "its device does the program's own work before allreduce grad/0 (+2)")
        self.assertEqual(activity[(STANDING + 1) % RANKS], "its device is at allreduce grad/0 (+2)")
        with open(release, "w", encoding="utf-8"):
            pass
        for text in self.finish(ranks):
            self.assertIn("ok", text)
        self.assertIn("1 batch that stood on devices goes on, 0 still stalled", daemon.text())


if __name__ == "__main__":
    processes.main()
