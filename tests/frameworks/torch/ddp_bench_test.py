"""bench/gpu/ddp.py on the CPU, over Gloo: that it measures what it says, not how fast."""

import os
import re
import subprocess
import sys
import unittest

try:
    import torch
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/install-deps --test installs torch for {sys.executable}", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BENCH = os.path.join(ROOT, "bench", "gpu", "ddp.py")
COORDRUN = os.path.join(os.environ.get("COORDD_BUILD_DIR", os.path.join(ROOT, "build")), "bin", "coordrun")
PATIENCE_S = max(120.0, float(os.environ.get("COORDD_TEST_PATIENCE_S", "0")) / 2)
SMALL = ("--device", "cpu", "--layers", "1", "--width", "32", "--sequence", "8", "--batch", "2", "--rounds", "2", "--steps", "3",
         "--warmups", "8")

# The bench with a way of ours that forgets to reduce.
FORGETS = f"""
import sys
sys.path.insert(0, {os.path.dirname(BENCH)!r})
import ddp
ddp.with_hook = lambda model, optimizer: (model, optimizer)
sys.exit(ddp.main())
"""


class DdpBenchTest(unittest.TestCase):
    def run_bench(self, ranks, *program):
        environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python")}
        run = subprocess.run([COORDRUN, "-np", str(ranks), "--no-prefix", "--", sys.executable, *program, *SMALL],
                             capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
        return run.returncode, run.stdout + run.stderr

    def test_a_row_for_each_way_and_its_bar(self):
        for ranks in (1, 2):
            status, text = self.run_bench(ranks, BENCH)
            self.assertEqual(status, 0, text)
            self.assertIn("way,ranks,parameters,dtype,rounds,steps,p50_step_ms,min_step_ms,max_step_ms\n", text)
            rows = re.findall(rf"(?m)^(\w+),{ranks},\d+,float32,2,3,[\d.]+,[\d.]+,[\d.]+$", text)
            backend = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 1)
            ways = ["coordd_hook", "coordd_optimizer", *(["coordd_backend"] if backend else [])]
            self.assertEqual(rows, [name for way in ways for name in ("torch_ddp", way)], text)
            self.assertEqual("coordd_backend: not measured" in text, not backend, text)
            for way in ways:
                self.assertRegex(text, rf"(?m)^# a training step by {way} over torch's DistributedDataParallel on gloo: [\d.]+ times "
                                       r"\(bar: at most 1.05; on the CPU over Gloo: no figure of NCCL\) (met|MISSED)$")
                self.assertRegex(text, rf"(?m)^# weights of {way} and of torch's are apart after 8 steps, .* met$")

    def test_half_precision(self):
        status, text = self.run_bench(2, BENCH, "--dtype", "bfloat16")
        if "Invalid scalar type" in text:
            self.skipTest("the Gloo of this torch has no bfloat16")
        self.assertEqual(status, 0, text)

    def test_a_way_that_does_not_reduce_is_found(self):
        status, text = self.run_bench(2, "-c", FORGETS)
        self.assertNotEqual(status, 0, text)
        self.assertRegex(text, r"(?m)^# weights of coordd_hook and of torch's are apart .* MISSED$")
        self.assertRegex(text, r"(?m)^# weights of coordd_optimizer and of torch's are apart .* met$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
