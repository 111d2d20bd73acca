"""tests/gpu/run over the stand-ins of CUDA's driver and NCCL: every stage of it runs here, so that what a GPU is used for first
is not the script's own mistakes. compute-sanitizer, and a Python that has torch with CUDA, are stubs that say what they were
asked for."""

import json
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
  *torch.cuda.is_available* | *jax.default_backend*) exit 0 ;;
  *torch_on_cuda.py*) echo "stub of torch: rank $COORDD_RANK of $COORDD_SIZE on $NCCL_HOSTID" ;;
  *c10d_ranks.py*) shift; echo "stub of torch.distributed: $COORDD_TEST_DEVICE, sizes $* $COORDD_GPU_REGISTER" ;;
  *jax_ranks.py*) echo "stub of jax: rank $COORDD_RANK of $COORDD_SIZE on $NCCL_HOSTID" ;;
  *c10d_killed.py*) echo "# the other rank is told who was lost, by the stub: yes (bar: yes) met" ;;
  *gpu/c10d.py*) echo "# all_reduce over coordd over that over NCCL, by the stub: the call 1.00 times" ;;
  *ddp.py*) echo "# a training step by the stub, rank $COORDD_RANK of $COORDD_SIZE: 1.00 times (bar: at most 1.05) met" ;;
  *--compare*) echo 0.00001 ;;
  *--save*) touch "${@: -1}"; echo "stub of digits: rank $COORDD_RANK of $COORDD_SIZE" ;;
  *) exec python3 "$@" ;;
esac
"""

# As the stand-in of NVML has it.
SMI = """#!/bin/bash
case "$*" in
  *--query-gpu=*) id=${*#*--id=}; echo "${id%% *}, 37, 1024, 81559, 71.50, 32, 3, 0" ;;
  *) echo "stub of nvidia-smi: $*" ;;
esac
"""

# Leaves a process that no longer is in the group of the stage.
LEAVES = """#!/bin/bash
setsid sleep 1000 &
exec sleep 1000
"""


class GpuRunCase(processes.TestCase):
    """`run`: the script; `build`: what it is to use; both of the tree unless a test says otherwise."""

    run_script, build = RUN, processes.BUILD

    def setUp(self):
        super().setUp()
        self.out = os.path.join(self.folder, "out")
        for name, text in (("compute-sanitizer", SANITIZER), ("python", PYTHON), ("nvidia-smi", SMI)):
            self.stub(name, text)

    def stub(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def gpu_run(self, *arguments, with_driver=True, wrapper=(), **variables):
        """Its exit status and output."""
        if with_driver:
            for name, library in (("libcuda.so.1", "libfake_cuda.so"), ("libnvidia-ml.so.1", "libfake_nvml.so")):
                os.symlink(os.path.join(self.build, "tests", library), os.path.join(self.folder, name))
        environment = processes.clean_environment(**{
            "COORDD_NCCL_LIBRARY": os.path.join(self.build, "tests", "libfake_nccl.so"), "FAKE_NCCL_DIR": self.folder,
            "FAKE_NCCL": "shared_device=1,blocking=1", "LD_LIBRARY_PATH": self.folder,
            "PATH": self.folder + ":" + os.environ["PATH"], "PYTHON": os.path.join(self.folder, "python"), "OUT": self.out,
            **variables})
        return self.run_command(*wrapper, self.run_script, self.build, *arguments, environment=environment,
                                seconds=5 * processes.PATIENCE_S)

    def summary(self):
        with open(os.path.join(self.out, "summary.json"), encoding="utf-8") as file:
            return json.load(file)

    def results(self):
        return {stage["stage"]: stage["result"] for stage in self.summary()["stages"]}


@unittest.skipIf(processes.SANITIZED, "its programs are tests of their own, which run under sanitizers by themselves")
class GpuRunTest(GpuRunCase):

    def test_every_stage_of_it(self):
        # Limits are for real GPUs. On two busy cores every dtype and operator takes most of one, and is nccl_backend_conformance_test's.
        status, text = self.gpu_run(KILLS=2, MAX_BYTES=4096, GTEST_FILTER="-*EveryDtypeAndOp*")
        self.assertEqual(status, 0, text)
        self.assertIn("tests/gpu/run: all that was run has passed", text)
        stages = ["facts", "driver-probe", "driver-probe-connection", "nccl-probe", "kernels", "collectives", "killed", "torch-1",
                  "torch-2", "c10d-1", "c10d-2", "c10d-windows", "c10d-killed", "jax-1", "jax-2", "sanitizer-memcheck", "sanitizer-initcheck", "sanitizer-racecheck", "conformance", "hierarchy",
                  "nvml", "words", "beside", "jobs", "digits", "bench-1", "bench-2", "ddp-2", "ddp-bfloat16", "ddp-1", "c10d-bench",
                  "kills"]
        found = re.findall("(?m)^=== (.*)$", text)
        self.assertEqual([part for part in found if part != "bench-hierarchical"], [*stages, "summary", "bars"], text)
        bench = processes.is_built("coordd-bench")
        for stage, result in self.results().items():
            # What else holds on GPUs needs two of them, or four.
            skipped = stage.startswith("bench") and not bench or stage == "beside"
            self.assertEqual(result, "skipped" if skipped else "passed", text)
        for tool in ("memcheck", "initcheck", "racecheck"):
            self.assertRegex(text, f"stub of compute-sanitizer: --tool {tool} --error-exitcode 1 .*/device_kernels_test")
        # Whole jobs of one, two and four ranks, each with a host of its own as far as NCCL knows; then the kills.
        self.assertRegex(text, "test_every_collective_of_one_two_and_four_ranks .*(ok|\n.*ok)")
        self.assertIn("# 2 losses of one of 4 ranks, hung processes: 0, wrong results read: 0 (bar: none) met", text)
        for rank in range(2):
            self.assertIn(f"stub of torch: rank {rank} of 2 on rank{rank}", text)
            self.assertIn(f"stub of jax: rank {rank} of 2 on rank{rank}", text)
            self.assertIn(f"stub of digits: rank {rank} of 2", text)
        self.assertRegex(text, r"coordd says: in a node: -; between nodes: [A-Z].*\nNCCL says: NET/Socket \(2\)")
        for ranks in (1, 2):
            self.assertIn(f"stub of torch.distributed: cuda, sizes {ranks} check_c10d_gpu", text)
        self.assertIn("stub of torch.distributed: cuda, sizes 2 check_c10d_gpu symmetric", text)
        self.assertIn("# digits on CUDA: the weights of two processes and of one are 0.00001 apart", text)
        # What runs over stand-ins of its own without a GPU takes those that the loader finds here.
        for stage in ("conformance", "hierarchy"):
            with open(os.path.join(self.out, stage + ".log"), encoding="utf-8") as log:
                self.assertRegex(log.read(), r"on \d x Fake GPU, NCCL 22809")
        # The stand-in of the driver frees as the real one does, and its gate holds up nobody.
        self.assertRegex(text, "(?m)^cuMemFree +WAITS for the device; meanwhile BLOCKED in another thread: launch")
        self.assertRegex(text, "(?m)^cuEventCreate +returns in ")
        self.assertIn("ncclCommAbort: result 0, ", text)
        # Whatever the figures of a stand-in are, each bar is there, behind everything else, in the text and in the file.
        bars = text[text.index("=== bars"):]
        for bar in ("2 losses of one of 4 ranks, from the begin of the step in which it was lost until the program was told", "streams of 32 that stand still",
                    "ncclCommRevoke returns while a gate is held", "a training step by the stub, rank 1 of 2",
                    "of 7 readings of a GPU, other than nvidia-smi's: none",
                    *(["host time of an allreduce", "time added on the device", "packing", "unpacking"] if bench else [])):
            self.assertRegex(bars, f"(?m)^# {bar}.*(met|MISSED)$")
            self.assertTrue([each for each in self.summary()["bars"] if each["bar"].startswith(bar)], bar)
        if bench:
            self.assertIn("bench-1: one rank: NCCL launches nothing", bars)
            self.assertRegex(bars, r"(?m)^# host time of .*one rank: NCCL launches nothing.*(met|MISSED)$")
            self.assertIn("bench-2: the ranks share one GPU", bars)
        self.assert_nothing_left()

    def test_a_stage_that_fails_is_named_and_the_others_run(self):
        self.stub("finds", "")
        status, text = self.gpu_run("--stages", "kernels sanitizer hierarchy")
        self.assertEqual(status, 1, text)
        self.assertIn("tests/gpu/run: FAILED: sanitizer-memcheck sanitizer-initcheck sanitizer-racecheck\n", text)
        self.assertEqual(self.results(), {"kernels": "passed", "sanitizer-memcheck": "FAILED", "sanitizer-initcheck": "FAILED",
                                          "sanitizer-racecheck": "FAILED", "hierarchy": "passed"})
        with open(os.path.join(self.out, "sanitizer-memcheck.log"), encoding="utf-8") as log:
            self.assertIn("ERROR SUMMARY: 1 error", log.read())

    def test_a_stage_that_does_not_end_is_ended_and_what_follows_is_not_run_without_time(self):
        self.stub("compute-sanitizer", LEAVES)
        status, text = self.gpu_run("--stages", "kernels sanitizer-memcheck hierarchy", "--budget", "12")
        self.assertEqual(status, 1, text)
        self.assertEqual(self.results(), {"kernels": "passed", "sanitizer-memcheck": "TIMED OUT", "hierarchy": "not run"})
        self.assertIn("tests/gpu/run: FAILED: sanitizer-memcheck hierarchy\n", text)
        self.assert_nothing_left()

    def test_a_sanitizer_that_does_not_know_the_device_is_no_failure(self):
        self.stub("compute-sanitizer", "#!/bin/bash\necho 'Error: Device not supported.'\nexit 1\n")
        status, text = self.gpu_run("--stages", "sanitizer-memcheck")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.results(), {"sanitizer-memcheck": "skipped"})

    def test_the_calls_hold_every_stage_once_and_what_there_is_not_is_named(self):
        status, text = self.gpu_run("--list")
        self.assertEqual(status, 0, text)
        listed = [line.split()[0] for line in text.splitlines()]
        self.assertEqual(len(set(listed)), len(listed))
        by_call = []
        for call in ("1", "2", "3"):
            status, text = self.gpu_run("--list", "--call", call, with_driver=False)
            by_call += [line.split()[0] for line in text.splitlines()]
        self.assertEqual(by_call, listed)
        status, text = self.gpu_run("--stages", "kernel", with_driver=False)
        self.assertEqual(status, 1, text)
        self.assertIn("tests/gpu/run: there is no stage kernel: those there are: facts ", text)

    def test_without_a_gpu_it_says_so_and_succeeds(self):
        # Where there is a real one this would be a run on it.
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("this machine has a GPU")
        status, text = self.gpu_run(with_driver=False)
        self.assertEqual(status, 0, text)
        self.assertIn("NOTHING WAS TESTED ON A GPU", text)
        self.assertIn("CUDA", text)
        self.assertEqual(self.summary()["result"], "skipped")


if __name__ == "__main__":
    processes.main()
