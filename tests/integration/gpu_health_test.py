"""How each rank's GPU is, as NVML tells: in coordctl status, in metrics, and in what is said of a loss. Over its stand-in; with
COORDD_TEST_GPU=1 (tests/gpu/run) over the real one, beside what nvidia-smi says."""

import json
import os
import shutil
import signal
import subprocess
import unittest
import urllib.request

from tests.support import processes
from tests.support.processes import clean_environment, program

ON_GPU = os.environ.get("COORDD_TEST_GPU") == "1"
MIB = 1 << 20
# What nvidia-smi calls it; the field of gpu_health; its unit; how far two readings may be apart, which are not of the same moment.
FIELDS = (("utilization.gpu", "utilization_percent", 1, 100), ("memory.used", "memory_used_bytes", MIB, 2048),
          ("memory.total", "memory_total_bytes", MIB, 1), ("power.draw", "power_watts", 1, 200),
          ("temperature.gpu", "temperature_celsius", 1, 15),
          ("ecc.errors.corrected.volatile.total", "ecc_corrected", 1, 0),
          ("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected", 1, 0))


class GpuHealthTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        if ON_GPU:
            return
        for name, library in (("libcuda.so.1", "libfake_cuda.so"), ("libnvidia-ml.so.1", "libfake_nvml.so")):
            os.symlink(os.path.join(processes.BUILD, "tests", library), os.path.join(self.folder, name))

    def train(self, count, own=lambda rank: {}):
        """A coordd and so many ranks that reduce tensors until they are killed."""
        daemon = self.coordd("--heartbeat-interval", "100ms")
        ranks = []
        for rank in range(count):
            variables = {"COORDD_ADDR": daemon.listen, "COORDD_SIZE": count, "COORDD_RANK": rank, "COORDD_LOCAL_RANK": rank,
                         "COORDD_METRICS": "127.0.0.1:0", **own(rank)}
            if ON_GPU:
                variables.update(COORDD_ALLOW_SHARED_GPU=1, NCCL_HOSTID=f"rank{rank}",
                                 COORDD_NCCL_LIBRARY=os.environ.get("COORDD_NCCL_LIBRARY"))
            else:
                variables.update(COORDD_NCCL_LIBRARY=os.path.join(processes.BUILD, "tests", "libfake_nccl.so"),
                                 FAKE_NCCL_DIR=self.folder,
                                 LD_LIBRARY_PATH=self.folder + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
            ranks.append(self.start(processes.Process([program("gpu_ranks"), "-1", "train"], clean_environment(**variables))))
        return daemon, ranks

    def status(self, daemon, *arguments):
        return self.run_command(program("coordctl"), "status", *arguments, "--coordinator", daemon.listen)[1]

    def workers_with_health(self, daemon, ranks):
        """By rank, once all have told."""
        def found():
            jobs = json.loads(self.status(daemon, "--json"))["jobs"]
            return {worker["rank"]: worker for worker in jobs[0]["workers"] if worker["gpu_health"]} if jobs else {}

        self.assertTrue(processes.wait_for(lambda: len(found()) == len(ranks), processes.PATIENCE_S),
                        "\n".join(rank.text() for rank in ranks))
        return found()

    @unittest.skipIf(ON_GPU, "the stand-in of NVML is told what to say")
    def test_status_tells_how_each_ranks_gpu_is_and_a_loss_what_its_driver_has_reported(self):
        daemon, ranks = self.train(2, lambda rank: {"FAKE_NVML": "xid=79,mig=1" if rank == 1 else "throttle=4"})
        found = self.workers_with_health(daemon, ranks)
        whole, part = (found[rank]["gpu_health"] for rank in range(2))
        self.assertEqual((whole["utilization_percent"], whole["memory_used_bytes"], whole["memory_total_bytes"], whole["power_watts"],
                          whole["temperature_celsius"], whole["throttle_reasons"], whole["ecc_corrected"],
                          whole["ecc_uncorrected"], whole["last_xid"]),
                         (37, 1024 * MIB, 81559 * MIB, 71.5, 32, ["power cap"], 3, 0, 0))
        self.assertTrue(whole["uuid"].startswith("GPU-0010"), whole)
        self.assertTrue(part["uuid"].startswith("MIG-0010"), part)  # as nvidia-smi has it
        self.assertEqual((part["utilization_percent"], part["last_xid"]), (None, 79))
        text = self.status(daemon)
        self.assertRegex(text, r"(?m)^ +0  GPU-\w+ +37 % +1.0 GiB of 79.6 GiB +72 W +32 C  slowed down: power cap; memory errors: 3 ")
        self.assertRegex(text, r"(?m)^ +1  MIG-\w+ +- .*XID 79, [\d.]+ s ago$")
        self.assertRegex(text, r"(?m)^ +1 .* 1 MIG-\w+ ")
        self.assertIn("XID 79 (the GPU has fallen off the bus)", ranks[1].text())
        with urllib.request.urlopen(f"http://{found[0]['metrics_address']}/metrics", timeout=processes.PATIENCE_S) as answer:
            metrics = answer.read().decode()
        self.assertIn("coordd_worker_gpu_utilization_percent 37\n", metrics)
        self.assertIn('coordd_worker_gpu_throttled{reason="power cap"} 1\n', metrics)
        self.assertTrue(processes.wait_for(lambda: daemon.metric("coordd_gpu_xid_ranks") == 1, processes.PATIENCE_S))
        ranks[1].signal(signal.SIGKILL)
        ranks[0].wait()
        self.assertRegex(ranks[0].text(),
                         r"rank 1 .* was lost: .*; the driver of its GPU MIG-0010\S+ has reported XID 79, \d+ s before")

    @unittest.skipIf(ON_GPU, "this machine has NVML")
    def test_without_nvml_a_log_line_says_so_and_nothing_else_changes(self):
        os.remove(os.path.join(self.folder, "libnvidia-ml.so.1"))
        daemon, ranks = self.train(1)
        self.assertTrue(processes.wait_for(lambda: "is cannot be told: libnvidia-ml.so.1" in ranks[0].text(), processes.PATIENCE_S),
                        ranks[0].text())
        self.assertNotIn("temp", self.status(daemon))
        self.assertTrue(ranks[0].running())

    @unittest.skipUnless(ON_GPU, "with a GPU alone")
    def test_what_is_told_of_a_gpu_is_what_nvidia_smi_says(self):
        if shutil.which("nvidia-smi") is None:
            self.skipTest("no nvidia-smi here")
        daemon, ranks = self.train(1)
        told = self.workers_with_health(daemon, ranks)[0]["gpu_health"]
        asked = subprocess.run(["nvidia-smi", f"--id={told['uuid']}", "--format=csv,noheader,nounits",
                                "--query-gpu=uuid," + ",".join(field[0] for field in FIELDS)], capture_output=True, text=True)
        self.assertEqual(asked.returncode, 0, asked.stdout + asked.stderr)
        uuid, *values = (value.strip() for value in asked.stdout.strip().split(","))
        self.assertEqual(told["uuid"], uuid)
        apart = []
        for (name, field, unit, most), value in zip(FIELDS, values):
            ours = None if told[field] is None else told[field] / unit
            print(f"{name}: nvidia-smi {value}, coordd {ours}")
            if value.startswith("["):  # "[N/A]"
                self.assertIsNone(ours, name)
            elif ours is None or abs(ours - float(value)) > most:
                apart.append(name)
        print(f"# of {len(FIELDS)} readings of a GPU, other than nvidia-smi's: {', '.join(apart) or 'none'} (bar: none) "
              f"{'MISSED' if apart else 'met'}", flush=True)
        self.assertEqual(apart, [])


if __name__ == "__main__":
    processes.main()
