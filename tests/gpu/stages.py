"""The stages of tests/gpu/run: what each runs, for how long at most, and what has to be known to read its figures."""

import glob
import os
import re
import shutil
import subprocess

from runner import SKIPPED, Stage

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CALLS = (1, 2, 3)
CALL_S = 540  # a command on a borrowed machine may have ten minutes
LINES_SAID = 3  # of a program that does not start, the most that are repeated
# What check-build says of a driver where there is no GPU; 34: the toolkit's stub of a driver.
NO_DEVICE = ("the driver sees no device", "the driver reports error 100 (cuInit)", "the driver reports error 34 (cuInit)")
PATIENCE_S = 150  # of tests whose four ranks share a GPU

ONE_RANK = "one rank: NCCL launches nothing, so this tells what coordd adds and nothing of NCCL"
SHARED = "the ranks share one GPU and the host's loopback: times are of time slices, and say nothing of NCCL between GPUs"

# Tests of tests/integration/gpu_test.py that have stages of their own; the stage "jobs" runs the others.
COLLECTIVES = ("test_every_collective_of_one_two_and_four_ranks",)
SURVIVORS = "test_survivors_of_a_killed_rank_form_anew_and_read_no_wrong_result"
ALONE = "test_the_survivor_of_two_goes_on_alone_and_reads_no_wrong_result"
KILLED = ("test_a_killed_rank_is_named_and_nobody_hangs", SURVIVORS,
          "test_host_and_device_memory_under_one_name_is_an_error_that_names_both")
BESIDE = ("test_where_each_is_waited_for_before_the_next_is_called_every_order_goes_well",
          "test_where_there_is_room_ranks_may_launch_in_different_orders")

FACTS = """
nvidia-smi; nvidia-smi topo -m; ldconfig -p | grep -E 'libcuda[.]so|libnccl|libnvidia-ml'
env | grep -E '^(CUDA|NCCL|COORDD_NCCL|NVIDIA_VISIBLE|LD_LIBRARY_PATH)' | grep -v '^NVIDIA_REQUIRE'
"$0" -c 'import torch; print("torch", torch.__version__, torch.cuda.is_available(), torch.cuda.nccl.version())'
uname -r; nproc; ls /sys/class/net; df -h /dev/shm | tail -n 1
"$1/bin/coordctl" check-build
ldd "$1"/bin/coordd "$1"/tests/gpu_ranks | grep 'not found' && exit 1
exit 0
"""

# Of one process and of two the same weights.
DIGITS = """
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
for ranks in 1 2; do
  "$2/bin/coordrun" -np $ranks -- bash -c 'NCCL_HOSTID=rank$COORDD_RANK exec "$0" "$@"' "$0" "$1" --device cuda --epochs 3 \\
    --save "$folder/$ranks.pt" || exit
done
apart=$("$0" "$1" --compare "$folder/1.pt" "$folder/2.pt" | tail -n 1) || exit
met=$("$0" -c 'import sys; print("met" if float(sys.argv[1]) < 1e-3 else "MISSED")' "$apart")
echo "# digits on CUDA: the weights of two processes and of one are $apart apart (bar: below 1e-3) $met"
[ "$met" = met ]
"""


def run_to_end(command):
    """(exit status, output, errors); a command that cannot be started is as the shell has it."""
    try:
        # In words that Python 3.6 knows, whose version is to be refused in a sentence.
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    except OSError as error:
        return 126, "", f"it cannot be started: {error.strerror}"
    return run.returncode, run.stdout, run.stderr


def is_absence(line, library):
    """Whether coordctl says of a component that there is none: it is not built in, not installed, or there is no GPU. A library that is
    there and does not load, or a driver that reports another error, is none of these."""
    return "built for " not in line or line.endswith((f" {library}: cannot open shared object file: No such file or directory",
                                                      *NO_DEVICE))


class Setup:
    """What there is to run, and on what. `build`: a build's folder; `python`: that which may have torch with CUDA."""

    def __init__(self, build, python, kills, max_bytes):
        self.build, self.python, self.kills, self.max_bytes = build, python, kills, max_bytes
        self.check_python()
        self.torch_lacks = self.jax_lacks = None
        self.gpus = len(glob.glob("/dev/nvidia[0-9]*"))
        # All stages are to have one NCCL: torch's, which is the one in the process where torch is, unless another is named.
        library = os.environ.get("COORDD_NCCL_LIBRARY") or self.nccl_of_torch()
        if library:
            os.environ["COORDD_NCCL_LIBRARY"] = library
        # Tests that hold on stand-ins, too, take what the loader finds.
        os.environ.update(COORDD_TEST_GPU="1", COORDD_BUILD_DIR=build)
        os.environ.setdefault("NCCL_DEBUG", "WARN")
        self.table = ""
        self.missing = []  # why nothing can be tested on a GPU here
        self.broken = []  # what is here, and does not work
        if os.path.exists(self.program("coordctl")):
            self.check_build()

    def check_python(self):
        """ValueError: it is no Python that the stages can have."""
        found = "no such program"
        if shutil.which(self.python):
            status, version, said = self.asks_python("import sys; print('Python %d.%d' % sys.version_info[:2]); sys.exit(sys.version_info < (3, 9))")
            if status == 0:
                return
            found = version or said or f"a program that ends with exit status {status}"
        raise ValueError(f"--python {self.python}: found {found}, expected Python 3.9 or later")

    def check_build(self):
        """Asks coordctl for what there is."""
        status, self.table, errors = run_to_end([self.program("coordctl"), "check-build"])
        if status != 0:
            said = "; ".join(errors.strip().splitlines()[:LINES_SAID]) or "it said nothing"
            self.broken.append(f"{self.program('coordctl')} check-build ended with exit status {status}: {said}")
            return
        for component, library in (("CUDA", "libcuda.so.1"), ("NCCL", os.environ.get("COORDD_NCCL_LIBRARY") or "libnccl.so.2")):
            found = re.search(rf"(?m)^\[(.)\] ({component}\b.*)$", self.table)
            if found is None:
                self.broken.append(f"coordctl check-build says nothing of {component}")
            elif found[1] != "X":
                (self.missing if is_absence(found[2], library) else self.broken).append(found[2])

    def program(self, name):
        return os.path.join(self.build, "bin", name)

    def test(self, name):
        return os.path.join(self.build, "tests", name)

    def lacks(self, *paths):
        """Why a stage of these cannot run: the first that is not there."""
        return next((f"{path} is not there" for path in paths if not os.path.exists(path)), "")

    def asks_python(self, code):
        """What `code` ends with there, what it prints, and the last line of its errors."""
        status, text, errors = run_to_end([self.python, "-c", code])
        return status, text.strip(), (errors.strip().splitlines() or [""])[-1]

    def nccl_of_torch(self):
        return self.asks_python("""if True:
            import glob, os, sys
            for folder in sys.path:
                for name in glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", "libnccl.so.2")):
                    sys.exit(print(name))
            """)[1]

    def lacks_torch(self):
        """As `lacks`; asked when the first stage needs it, since it takes seconds."""
        if self.torch_lacks is None:
            self.torch_lacks = self.lacks_module("torch", "torch.cuda.is_available()")
        return self.torch_lacks

    def with_torch(self):
        """Variables of programs that import coordd.torch."""
        return {"COORDD_ALLOW_SHARED_GPU": "1", "PYTHONPATH": os.path.join(TREE, "client", "python"),
                "COORDD_LIBRARY": os.path.join(self.build, "lib", "libcoordd.so"), "PYTHONUNBUFFERED": "1"}

    def lacks_jax(self):
        """Of coordd.jax: likewise."""
        if self.jax_lacks is None:
            self.jax_lacks = self.lacks_module("jax", "jax.default_backend() == 'gpu'")
        return self.jax_lacks

    def lacks_module(self, name, uses_gpus):
        """As `lacks`. A module that is there and cannot be imported lacks nothing: its stages run, and fail with its own words."""
        status, _, said = self.asks_python(f"""if True:
            import importlib.util, sys
            if importlib.util.find_spec("{name}") is None:
                sys.exit({SKIPPED})
            import {name}
            sys.exit(0 if {uses_gpus} else {SKIPPED})
            """)
        if status != SKIPPED:
            return ""
        return f"coordd.{name} is not tested: {self.python} has no {name} with CUDA" + (f": {said}" if said else "")

    def ranks(self, count, *command):
        """A command of `count` ranks, each a host of its own as far as NCCL knows: else it refuses two on one GPU."""
        return [self.program("coordrun"), "-np", str(count), "--", "bash", "-c", 'NCCL_HOSTID=rank$COORDD_RANK exec "$0" "$@"',
                *command]

    def note(self, ranks):
        """What has to be known of figures of so many ranks."""
        return ONE_RANK if ranks == 1 else SHARED if ranks > self.gpus else ""

    def facts(self):
        """For the summary; of "on": GPUs' files in /dev, of which the stand-ins have none."""
        names = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout if shutil.which("nvidia-smi") else ""
        return {"check_build": self.table.splitlines(), "gpus": self.gpus, "on": names.splitlines(),
                "nccl_library": os.environ.get("COORDD_NCCL_LIBRARY", "")}


def call_one(setup):
    """What GPUs are, what is assumed of them, and whether anything works at all."""
    driver_probe = setup.test("gpu_driver_probe")
    nccl_probe = os.path.join(TREE, "tests", "gpu", "nccl_probe.py")
    torch = os.path.join(TREE, "tests", "gpu", "torch_on_cuda.py")
    killed = os.path.join(TREE, "tests", "gpu", "c10d_killed.py")
    jax = os.path.join(TREE, "tests", "frameworks", "tensorflow", "jax_ranks.py")
    kernels = setup.test("device_kernels_test")
    return [
        Stage("facts", 1, 60, "driver, libraries, devices, network, check-build", ["bash", "-c", FACTS, setup.python, setup.build]),
        Stage("driver-probe", 1, 60, "which calls of CUDA's driver wait for a held gate, and which threads they hold up",
              [driver_probe], needs=setup.lacks(driver_probe)),
        Stage("driver-probe-connection", 1, 60, "the same with CUDA_DEVICE_MAX_CONNECTIONS=1",
              [driver_probe], {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, needs=setup.lacks(driver_probe)),
        Stage("nccl-probe", 1, 60, "what NCCL's calls cost, and which of them wait for a held gate",
              [setup.python, nccl_probe], note=setup.note(2)),
        Stage("kernels", 1, 60, "kernels against references", [kernels], needs=setup.lacks(kernels)),
        jobs(setup, "collectives", 1, 150, "every collective and type in jobs of 1, 2 and 4 ranks", COLLECTIVES),
        jobs(setup, "killed", 1, 150, "a rank killed in training, three times", KILLED, kills=3),
        *(Stage(f"torch-{ranks}", 1, 120, f"coordd.torch on CUDA tensors, {ranks} rank(s)", setup.ranks(ranks, setup.python, torch),
                setup.with_torch(), needs=setup.lacks_torch, note=setup.note(ranks)) for ranks in (1, 2)),
        *(c10d(setup, ranks) for ranks in (1, 2)),
        c10d(setup, 2, "c10d-windows", 120, "memory that torch reduces and gathers, as symmetric windows where NCCL makes some, 2 ranks",
             ("check_c10d_gpu",), COORDD_GPU_REGISTER="symmetric", COORDD_TEST_ONLY="registered", COORDD_TEST_PATIENCE_S="90"),
        Stage("c10d-killed", 1, 60, "one of two ranks of torch.distributed over coordd killed", [setup.python, killed],
              setup.with_torch(), needs=setup.lacks_torch, note=setup.note(2)),
        *(Stage(f"jax-{ranks}", 1, 120, f"coordd.jax on a GPU, {ranks} rank(s)", setup.ranks(ranks, setup.python, jax),
                {**setup.with_torch(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, needs=setup.lacks_jax, note=setup.note(ranks))
          for ranks in (1, 2)),
    ]


C10D = ("check_c10d_gpu", "check_c10d_collectives", "check_c10d_works", "check_c10d_training")


def c10d(setup, ranks, name=None, limit_s=180, what=None, checks=C10D, **variables):
    """Checks of coordd as a backend of torch.distributed, on tensors that are on a GPU where nothing else is said."""
    program = os.path.join(TREE, "tests", "frameworks", "torch", "c10d_ranks.py")
    return Stage(name or f"c10d-{ranks}", 1, limit_s, what or f"torch.distributed over coordd on CUDA tensors, {ranks} rank(s)",
                 [setup.python, program, str(ranks), *checks],
                 {**setup.with_torch(), "COORDD_TEST_DEVICE": "cuda", "COORDD_TEST_NAMES": "1", "COORDD_TEST_PATIENCE_S": "150", **variables},
                 needs=setup.lacks_torch, note=setup.note(ranks))


def call_two(setup):
    """The kernels once more, backends, training, and what coordd adds."""
    kernels = setup.test("device_kernels_test")
    conformance = setup.test("nccl_backend_conformance_test")
    gpu_tests = setup.test("gpu_tests")
    digits = os.path.join(TREE, "client", "examples", "python", "digits.py")
    sanitizer = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin")
    needs = setup.lacks(kernels) if sanitizer else "no compute-sanitizer: kernels are not run under it"
    # A rank on each of several GPUs, two nodes of two where there are four.
    note = ONE_RANK if setup.gpus == 1 else ""
    return [
        *(Stage(f"sanitizer-{tool}", 2, 90, f"kernels under compute-sanitizer's {tool}",
                [sanitizer, "--tool", tool, "--error-exitcode", "1", kernels], needs=needs, unsupported="Device not supported")
          for tool in ("memcheck", "initcheck", "racecheck")),
        Stage("conformance", 2, 90, "NcclBackend against the conformance suite, a rank on each GPU", [conformance],
              needs=setup.lacks(conformance), note=note),
        Stage("hierarchy", 2, 60, "hierarchical allreduces", [gpu_tests, "--gtest_filter=HierarchicalAllreduceOnAGpu.*"],
              needs=setup.lacks(gpu_tests), note=note),
        jobs(setup, "nvml", 2, 60, "how a GPU is, as coordd tells it, beside nvidia-smi",
             ("test_what_is_told_of_a_gpu_is_what_nvidia_smi_says",), file="gpu_health_test.py", ranks=0),
        jobs(setup, "words", 2, 90, "what coordd says that tensors travel over, beside what NCCL says with NCCL_DEBUG=INFO",
             ("test_coordd_says_what_nccl_says",), file="gpu_words_test.py", ranks=2),
        jobs(setup, "beside", 2, 150, "coordd's calls beside NCCL groups of the program's own, 4 ranks", BESIDE, file="gpu_beside_test.py"),
        jobs(setup, "jobs", 2, 200, "what else of the tests of whole jobs holds on GPUs", None),
        Stage("digits", 2, 150, "digits on CUDA: two processes against one", ["bash", "-c", DIGITS, setup.python, digits, setup.build],
              setup.with_torch(), needs=setup.lacks_torch, note=setup.note(2)),
        *(bench(setup, ranks) for ranks in (1, 2)),
    ]


def call_three(setup):
    """What takes long."""
    ddp = os.path.join(TREE, "bench", "gpu", "ddp.py")
    stages = [Stage(name, 3, 200, f"training by torch's DDP over NCCL beside coordd's, {ranks} rank(s)",
                    setup.ranks(ranks, setup.python, ddp, *more), setup.with_torch(), needs=setup.lacks_torch, note=setup.note(ranks))
              for name, ranks, more in (("ddp-2", 2, ()), ("ddp-bfloat16", 2, ("--dtype", "bfloat16")), ("ddp-1", 1, ()))]
    stages.append(Stage("c10d-bench", 3, 120, "torch.distributed.all_reduce over coordd beside NCCL, 2 rank(s)",
                        setup.ranks(2, setup.python, os.path.join(TREE, "bench", "gpu", "c10d.py")), setup.with_torch(),
                        needs=setup.lacks_torch, note=setup.note(2)))
    stages.append(jobs(setup, "kills", 3, 400, f"a rank killed in training, {setup.kills} times", (ALONE, SURVIVORS), kills=setup.kills))
    if setup.gpus > 1:
        # Hosts of two ranks, which share the GPUs: the hierarchy beside NCCL alone, both over this machine's loopback.
        stages.append(bench(setup, 4, name="bench-hierarchical", call=3, more=("--gpu-algorithm", "hierarchical")))
    return stages


def bench(setup, ranks, name=None, call=2, more=()):
    program = setup.program("coordd-bench")
    return Stage(name or f"bench-{ranks}", call, 120, f"coordd beside bare NCCL, {ranks} rank(s)",
                 [program, "collectives", "--device", "cuda", "--ranks", str(ranks), "--share-gpu", "--min", "4096", "--max",
                  str(setup.max_bytes if ranks == 1 else min(setup.max_bytes, 64 << 20)), *more],
                 needs=setup.lacks(program, os.path.join(setup.build, "bench", "gpu_rank")), note=setup.note(ranks))


def jobs(setup, name, call, limit_s, what, tests, kills=1, file="gpu_test.py", ranks=4):
    """Tests of a file of tests/integration; `tests`: None: those of gpu_test.py without a stage of their own."""
    path = os.path.join(TREE, "tests", "integration", file)
    group = {"gpu_test.py": "GpuTest", "gpu_health_test.py": "GpuHealthTest"}.get(file) or {
        "gpu_beside_test.py": "GpuBesideTest", "gpu_words_test.py": "GpuWordsTest"}[file]
    if tests is None:
        with open(path, encoding="utf-8") as source:
            tests = [test for test in re.findall(r"(?m)^    def (test_\w+)", source.read()) if test not in COLLECTIVES + KILLED + (ALONE,)]
    return Stage(name, call, limit_s, what, [setup.python, path, *(f"{group}.{test}" for test in tests)],
                 {"PYTHONPATH": TREE, "COORDD_TEST_KILLS": str(kills), "COORDD_TEST_PATIENCE_S": str(PATIENCE_S),
                  "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"},
                 needs=setup.lacks(setup.test("gpu_ranks")), note=setup.note(ranks))


def all_stages(setup):
    return call_one(setup) + call_two(setup) + call_three(setup)


def choose(stages, names, call):
    """`names`: of stages, or what stands before a name's first "-"; None: all. ValueError: there is no such stage, or none in this call."""
    chosen = [stage for stage in stages if call is None or stage.call == call]
    if names is None:
        return chosen
    wanted = names.replace(",", " ").split()
    those = f"those there are: {' '.join(stage.name for stage in stages)}"
    if not wanted:
        raise ValueError(f"--stages names no stage: {those}")
    for name in wanted:
        calls = sorted({stage.call for stage in stages if stage.is_named(name)})
        if not calls:
            raise ValueError(f"there is no stage {name}: {those}")
        if call is not None and call not in calls:
            raise ValueError(f"--call {call} has no stage {name}: it is of call {' and '.join(map(str, calls))}")
    return [stage for stage in chosen if any(stage.is_named(name) for name in wanted)]
