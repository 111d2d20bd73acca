"""tests/gpu/run over the stand-ins of CUDA's driver and NCCL: every part of it runs here, so that what a GPU is used for first
is not the script's own mistakes. compute-sanitizer, and a Python that has torch with CUDA, are stubs that say what they were
asked for."""

import os
import re
import unittest

from tests.support import processes

RUN = os.path.join(processes.ROOT, "tests", "gpu", "run")

SANITIZER = """#!/bin/bash
echo "stub of compute-sanitizer: $*"
[ ! -e "$(dirname "$0")/finds" ] || { echo "ERROR SUMMARY: 1 error"; exit 1; }
exec "${@: -1}" --gtest_brief=1
"""

PYTHON = """#!/bin/bash
case "$*" in
  *torch.cuda.is_available*) exit 0 ;;
  *torch_on_cuda.py*) echo "stub of torch: rank $COORDD_RANK of $COORDD_SIZE on $NCCL_HOSTID" ;;
  *--compare*) echo 0.00001 ;;
  *--save*) touch "${@: -1}"; echo "stub of digits: rank $COORDD_RANK of $COORDD_SIZE" ;;
  *) exec python3 "$@" ;;
esac
"""


@unittest.skipIf(processes.SANITIZED, "its programs are tests of their own, which run under sanitizers by themselves")
class GpuRunTest(processes.TestCase):

    def setUp(self):
        super().setUp()
        for name, text in (("compute-sanitizer", SANITIZER), ("python", PYTHON)):
            path = os.path.join(self.folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)

    def gpu_run(self, with_driver=True, **variables):
        """Its exit status and output."""
        if with_driver:
            os.symlink(os.path.join(processes.BUILD, "tests", "libfake_cuda.so"), os.path.join(self.folder, "libcuda.so.1"))
        environment = processes.clean_environment(
            COORDD_NCCL_LIBRARY=os.path.join(processes.BUILD, "tests", "libfake_nccl.so"), FAKE_NCCL_DIR=self.folder,
            FAKE_NCCL="shared_device=1,blocking=1", LD_LIBRARY_PATH=self.folder + ":" + os.environ.get("LD_LIBRARY_PATH", ""),
            PATH=self.folder + ":" + os.environ["PATH"], PYTHON=os.path.join(self.folder, "python"), **variables)
        return self.run_command(RUN, processes.BUILD, environment=environment, seconds=5 * processes.PATIENCE_S)

    def test_every_part_of_it(self):
        status, text = self.gpu_run(KILLS=2, MAX_BYTES=4096)
        self.assertEqual(status, 0, text)
        self.assertIn("tests/gpu/run: all that was run has passed", text)
        bench = ["bench-1", "bench-2"] if processes.is_built("coordd-bench") else []
        parts = ["kernels", "sanitizer-memcheck", "sanitizer-initcheck", "conformance", "hierarchy", "jobs", "torch-1",
                 "torch-2", "digits", *bench]
        found = re.findall("(?m)^=== (.*)$", text)
        self.assertEqual([part for part in found if part != "bench-hierarchical"], [*parts, "bars"], text)
        for tool in ("memcheck", "initcheck"):
            self.assertRegex(text, f"stub of compute-sanitizer: --tool {tool} --error-exitcode 1 .*/device_kernels_test")
        # Whole jobs of one, two and four ranks, each with a host of its own as far as NCCL knows; then the kills.
        self.assertRegex(text, "test_every_collective_of_one_two_and_four_ranks .*(ok|\n.*ok)")
        self.assertIn("# 2 losses of one of 4 ranks, hung processes: 0, wrong results read: 0 (bar: none) met", text)
        for rank in range(2):
            self.assertIn(f"stub of torch: rank {rank} of 2 on rank{rank}", text)
            self.assertIn(f"stub of digits: rank {rank} of 2", text)
        self.assertIn("# digits on CUDA: the weights of two processes and of one are 0.00001 apart", text)
        # Whatever the figures of a stand-in are, each bar is there, behind everything else.
        bars = text[text.index("=== bars"):]
        for bar in (r"\d+ losses of one of \d+ ranks, from the begin of the step in which it was lost until the program was told",
                    *(["host time of an allreduce", "time added on the device", "packing", "unpacking"] if bench else [])):
            self.assertRegex(bars, f"(?m)^# {bar}.*(met|MISSED)$")
        self.assert_nothing_left()

    def test_a_part_that_fails_is_named_and_the_others_run(self):
        with open(os.path.join(self.folder, "finds"), "w"):
            pass
        status, text = self.gpu_run(ONLY="kernels sanitizer hierarchy")
        self.assertEqual(status, 1, text)
        self.assertIn("tests/gpu/run: FAILED: sanitizer-memcheck sanitizer-initcheck\n", text)
        self.assertIn("=== hierarchy", text)
        self.assertNotIn("=== jobs", text)

    def test_without_a_gpu_it_says_so_and_succeeds(self):
        # Where there is a real one this would be a run on it.
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("this machine has a GPU")
        status, text = self.gpu_run(with_driver=False)
        self.assertEqual(status, 0, text)
        self.assertIn("NOTHING WAS TESTED ON A GPU", text)
        self.assertIn("CUDA", text)


if __name__ == "__main__":
    processes.main()
