"""Whole programs: the examples, and scripts that are written for Horovod."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import torch  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/install-deps --test installs torch for {sys.executable}", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
EXAMPLES = os.path.join(ROOT, "client", "examples", "python")
COORDRUN = os.path.join(os.environ.get("COORDD_BUILD_DIR", os.path.join(ROOT, "build")), "bin", "coordrun")
# Of one program; tools/test-frameworks, whose torch takes long to import in each of its processes, waits for longer.
PATIENCE_S = max(120.0, float(os.environ.get("COORDD_TEST_PATIENCE_S", "0")) / 2)

# The shape of a Horovod script: what it imports, in the ways that people import it, and the steps that it makes.
HOROVOD_SCRIPT = """
import os
import sys
import horovod
import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.common.util import env, split_list
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.torch.compression import Compression
from horovod.torch.elastic import TorchState
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import StateHandler
from horovod.torch.functions import broadcast_object
from horovod.torch.mpi_ops import allreduce, is_homogeneous
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
import coordd.torch

if __name__ == "__main__":
    assert os.environ["HOROVOD_SIZE"] == "2" and os.environ["HOROVOD_HOSTNAME"]
    place = [int(os.environ["HOROVOD_" + name]) for name in ("RANK", "LOCAL_RANK", "CROSS_RANK", "CROSS_SIZE")]
    hvd.init()
    assert place == [hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.cross_size()], place
    assert hvd.gloo_built() or hvd.mpi_built()
    with env(OF_THIS_TEST="1", NOT_SET=None):
        assert os.environ["OF_THIS_TEST"] == "1" and "NOT_SET" not in os.environ
    assert "OF_THIS_TEST" not in os.environ
    assert hvd is coordd.torch and horovod.torch is hvd and hvd.elastic.TorchState is TorchState
    assert coordd.torch.__spec__.name == "coordd.torch"
    assert tuple(map(int, horovod.__version__.split("."))) >= (0, 28)
    assert sys.argv[1:] == ["--flag", "value"] and split_list([1, 2, 3], 2) == [[1, 2], [3]]
    try:
        import horovod.mxnet
    except ImportError as error:
        assert "horovod.keras only" in str(error)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         compression=hvd.Compression.fp16, op=hvd.Average)
    data = torch.utils.data.TensorDataset(torch.ones(8, 4) * hvd.rank())
    loader = torch.utils.data.DataLoader(data, 4, num_workers=1, multiprocessing_context="spawn")
    for inputs, in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    assert sorted(optimizer._parameter_names.values()) == ["bias", "weight"]
    same = hvd.allgather(model.weight.detach().unsqueeze(0), name="weights")
    assert all(torch.equal(one, same[0]) for one in same)
    print("done on", hvd.rank(), "of", hvd.size())
"""

# Data loaders that are derived from horovod.data's classes.
LOADERS_SCRIPT = """
import threading
import coordd.horovod
coordd.horovod.install()
from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

class Numbers(BaseDataLoader):
    def __init__(self, count, fails=False):
        self.count, self.fails = count, fails
    def __len__(self):
        return self.count
    def _iterate(self):
        yield from range(self.count)
        if self.fails:
            raise ValueError("the end of the data")
    def _process_batch(self, batch):
        return 10 * batch

class Ahead(AsyncDataLoaderMixin, Numbers):
    pass

whole = list(Numbers(7))
for size in (0, 1, 64):
    loader = Ahead(size, False, 7)
    assert len(loader) == 7 and list(loader) == list(loader) == whole == [0, 10, 20, 30, 40, 50, 60]
    loader = Ahead(size, False, 1000)
    for number in loader:  # and no further: the thread must not stay behind
        if number == 20:
            break
    loader.close_async_loader()
    try:
        list(Ahead(size, count=3, fails=True))
        raise AssertionError("no error")
    except ValueError as error:
        assert "the end of the data" in str(error)
assert not [thread for thread in threading.enumerate() if thread.name == "async-loader"]
print("read")
"""

# A step and collectives under torch.compile.
COMPILED_SCRIPT = """
import coordd.torch as hvd
import torch

hvd.init()
torch.manual_seed(0)
compile = lambda function: torch.compile(function, backend="eager")

@compile
def reduced(x):
    return hvd.allreduce(x * 2, op=hvd.Sum) + 1

for count in range(1, 12):  # more shapes than torch compiles anew
    assert torch.equal(reduced(torch.ones(count)), torch.full((count,), 2.0 * hvd.size() + 1))

# torch 2.1 fails by itself to compile a step with momentum.
momentum = 0.0 if torch.__version__.startswith("2.1.") else 0.9
model, alone = torch.nn.Linear(4, 2).double(), torch.nn.Linear(4, 2).double()
alone.load_state_dict(model.state_dict())
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum), model.named_parameters())
plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=momentum)

@compile
def step(inputs):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()

for number in range(6):
    inputs = torch.arange(16.0, dtype=torch.float64).view(4, 4) / (number + 1)
    step(inputs.chunk(hvd.size())[hvd.rank()])
    plain.zero_grad()
    alone(inputs).pow(2).mean().backward()
    plain.step()
assert torch.allclose(model.weight, alone.weight), (model.weight, alone.weight)
from torch._dynamo.utils import counters
print("frames", counters["frames"]["total"])
"""

# One rank ends by an error of its own; the others go on, and it comes back.
ELASTIC_SCRIPT = """
import coordd.torch as hvd
import torch

hvd.init()
state = hvd.elastic.TorchState(step=0, total=0.0, sizes=[])
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
sizes = []

@hvd.elastic.run
def train(state):
    while state.step < 40 or hvd.size() < 3:
        if state.step == 20 and hvd.size() == 3 and hvd.rank() == 0:
            raise ValueError("an error of the program")
        state.total += hvd.allreduce(torch.ones(3), name="x", op=hvd.Average)[0].item()
        state.step += 1
        state.commit()

train(state)
assert state.total == state.step
print("done", hvd.rank(), hvd.size(), sizes)
hvd.barrier()
"""

# The same with gradients in buckets, which are made anew whenever the members change.
ELASTIC_VIEWS_SCRIPT = """
import coordd.torch as hvd
import torch
from coordd.torch import _units

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(3, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters(),
                                     gradient_as_bucket_view=True)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
sizes = []

@hvd.elastic.run
def train(state):
    since = state.step
    while state.step < 40 or state.step < since + 3 or hvd.size() < 3:
        if state.step == 20 and hvd.size() == 3 and hvd.rank() == 0:
            raise ValueError("an error of the program")
        optimizer.zero_grad(set_to_none=state.step % 2 == 0)
        model(torch.full((1, 3), float(hvd.rank() + state.step % 5))).pow(2).mean().backward()
        optimizer.step()
        state.step += 1
        state.commit()

train(state)
units = set(optimizer._coordd_exchange._units.values())
assert [type(unit) for unit in units] == [_units.Bucket], units
bucket, = units
assert all(parameter.grad is bucket._views[parameter] for parameter in model.parameters())
for values in (model.weight.detach(), model.weight.grad):
    same = hvd.allgather(values.unsqueeze(0), name="same")
    assert same.isfinite().all() and all(torch.equal(one, same[0]) for one in same)
print("done", hvd.rank(), hvd.size(), sizes)
hvd.barrier()
"""

# One rank's process is told to end; it leaves at a commit, and nothing fails.
DRAIN_SCRIPT = """
import os, signal
import coordd.torch as hvd
import torch

hvd.init()
state = hvd.elastic.TorchState(step=0, total=0.0)
state.register_drain_callbacks([lambda: print("checkpoint", hvd.rank(), hvd.size(), state.step == state.total)])

@hvd.elastic.run
def train(state):
    while state.step < 40 or hvd.size() > 2:
        if state.step == 20 and os.environ["COORDD_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        state.total += hvd.allreduce(torch.ones(3), name="x", op=hvd.Average)[0].item()
        state.step += 1
        state.commit()

train(state)
assert state.total == state.step and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
print("done", hvd.rank(), hvd.size())
hvd.barrier()
"""

# One rank is killed and comes back; nobody takes anything back, and every step is what all who were left say it is.
CONTINUE_SCRIPT = """
import os
import coordd.elastic
import coordd.torch as hvd
import torch

hvd.init()
model = torch.nn.Linear(2, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, seen=[])
heard, resets = [], []
coordd.elastic.on_members_changed(lambda place: heard.append(place.size))
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
killed = os.path.join(os.path.dirname(__file__), "killed")
is_new = os.path.exists(killed)

@hvd.elastic.run
def train(state):
    while state.step < 40 or 2 not in state.seen or state.seen[-1] < 3:
        if state.step == 20 and hvd.rank() == 0 and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), 9)
        state.seen.append(int(hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum)[0]))
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        hvd.allreduce_(model.weight.grad, name="gradient", op=hvd.Average)
        optimizer.step()
        state.step += 1
        state.commit()

train(state)
assert len(state.seen) == state.step
assert state.seen[:20] == [3] * 20, state.seen[:20]
weights = hvd.allgather_object((state.seen, model.weight.tolist()))
assert all(one == weights[0] for one in weights), weights
assert is_new or (heard[:2] == [2, 3] and resets[:2] == [2, 3]), (heard, resets)
print("done", hvd.rank(), hvd.size(), "new" if is_new else "old")
hvd.barrier()
"""

FUNCTION_SCRIPT = """
import horovod

def train(factor, add=0):
    import horovod.torch as hvd
    hvd.init()
    return hvd.rank() * factor + add

if __name__ == "__main__":
    print(horovod.run(train, args=(10,), kwargs={"add": 1}, np=2))
"""


class ProgramsCase(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="coordd-programs-")
        self.addCleanup(self.folder.cleanup)

    def path(self, name, text=None):
        path = os.path.join(self.folder.name, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def run_command(self, *command):
        environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python"), "OMP_NUM_THREADS": "1",
                       "COORDD_COORDRUN": COORDRUN}
        ended = subprocess.run(command, env=environment, cwd=self.folder.name, text=True, timeout=PATIENCE_S,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return ended.stdout

    def run_ranks(self, count, *arguments, options=()):
        return self.run_command(COORDRUN, "-np", str(count), *options, "--", sys.executable, *arguments)

    def example(self, count, name, *arguments):
        return self.run_ranks(count, os.path.join(EXAMPLES, name), *arguments)


class ElasticPrograms(ProgramsCase):

    def test_digits_have_the_weights_of_one_process(self):
        for count in (1, 3):
            self.example(count, "digits.py", "--epochs", "3", "--save", self.path(f"{count}.pt"))
        # Two of four are killed, one after the other, rank 0 among them.
        output = self.run_ranks(4, os.path.join(EXAMPLES, "digits_elastic.py"), "--epochs", "3", "--save",
                                self.path("elastic.pt"), "--crash", "0:20", "--crash", "3:40", options=("--min-np", "2"))
        self.assertRegex(output, r"rank 0 \(pid \d+\) was killed by SIGKILL after [\d.]+ s; 3 workers go on")
        self.assertIn("going on with 2 worker(s)", output)
        self.assertIn("2 were lost, the others exited with status 0", output)
        for name in ("3.pt", "elastic.pt"):
            difference = self.run_command(sys.executable, os.path.join(EXAMPLES, "digits.py"), "--compare", self.path("1.pt"),
                                          self.path(name))
            self.assertLess(float(difference.splitlines()[-1]), 1e-4)  # warnings of torch may come before

    def test_a_rank_that_fails_is_started_again_and_joins_the_others(self):
        output = self.run_ranks(3, self.path("elastic.py", ELASTIC_SCRIPT), options=("--min-np", "2", "--max-restarts", "1"))
        self.assertIn("ValueError: an error of the program", output)
        self.assertRegex(output, r"rank 0 is started again \(pid \d+\)")
        for rank in range(2):
            self.assertIn(f"done {rank} 3 [2, 3]", output)
        self.assertIn("done 2 3 []", output)
        self.assertIn("all workers exited with status 0", output)

    def test_gradients_are_views_again_when_a_rank_has_failed_and_joined(self):
        output = self.run_ranks(3, self.path("views.py", ELASTIC_VIEWS_SCRIPT), options=("--min-np", "2", "--max-restarts", "1"))
        for rank in range(2):
            self.assertIn(f"done {rank} 3 [2, 3]", output)
        self.assertIn("done 2 3 []", output)
        self.assertIn("all workers exited with status 0", output)

    def test_a_rank_that_gets_sigterm_leaves_at_a_commit(self):
        output = self.run_ranks(3, self.path("drain.py", DRAIN_SCRIPT), options=("--min-np", "2", "--max-restarts", "1"))
        self.assertIn("checkpoint 1 3 True", output)
        self.assertRegex(output, r"rank 1 \(pid \d+\) was asked to leave and exited with status 0 after [\d.]+ s; \d workers? goe?s? on")
        for rank in range(2):
            self.assertIn(f"done {rank} 2", output)
        self.assertNotIn("is started", output)
        self.assertIn("all workers exited with status 0", output)

    def test_a_rank_that_is_killed_takes_nothing_back_where_the_others_go_on(self):
        output = self.run_ranks(3, self.path("continue.py", CONTINUE_SCRIPT),
                                options=("--min-np", "2", "--max-restarts", "1", "--on-failure", "continue"))
        self.assertEqual(output.count(" old\n"), 2, output)
        self.assertEqual(output.count(" new\n"), 1, output)


class Programs(ProgramsCase):

    def test_digits_learn_under_ddp_with_the_hook(self):
        output = self.example(2, "ddp_digits.py")
        self.assertGreater(float(re.search(r"test accuracy ([\d.]+) with 2 worker", output).group(1)), 0.9, output)

    def test_images_learn(self):
        output = self.example(2, "images.py", "--epochs", "2", "--loaders", "1")
        self.assertGreater(float(re.search(r"epoch 2  test accuracy ([\d.]+)", output).group(1)), 0.8, output)

    def test_the_synthetic_benchmark_says_what_people_compare(self):
        common = ("--model", "small", "--image-size", "32", "--batch-size", "2", "--num-warmup-batches", "1",
                  "--num-batches-per-iter", "1", "--num-iters", "2")
        for how in ((), ("--ddp-hook",)):
            output = self.example(2, "synthetic_benchmark.py", *common, *how)
            self.assertRegex(output, r"Img/sec per worker: [\d.]+ \+-[\d.]+")
            self.assertRegex(output, r"Total img/sec on 2 worker\(s\): [\d.]+ \+-[\d.]+")

    def test_a_horovod_script_runs_unchanged(self):
        script = self.path("train.py", HOROVOD_SCRIPT)
        output = self.run_ranks(2, script, "--flag", "value", options=("--horovod",))
        self.assertIn("done on 1 of 2", output)

    def test_data_loaders_read_ahead_and_leave_no_thread(self):
        self.assertIn("read", self.run_command(sys.executable, self.path("loaders.py", LOADERS_SCRIPT)))

    def test_torch_compile_does_not_look_into_the_package(self):
        if not hasattr(torch, "compile") or sys.version_info >= (3, 11) and torch.__version__ < "2.1":
            self.skipTest("this torch has no torch.compile")
        output = self.run_ranks(2, self.path("compiled.py", COMPILED_SCRIPT))
        self.assertNotIn("Exception ignored", output)
        self.assertNotIn("recompile", output)
        self.assertNotIn("does not know how to trace", output)
        for frames in re.findall(r"frames (\d+)", output):
            self.assertLess(int(frames), 40, output)  # those of the script; it were 200 with the package's

    def test_a_function_runs_on_several_processes(self):
        output = self.run_command(sys.executable, "-m", "coordd.horovod", self.path("function.py", FUNCTION_SCRIPT))
        self.assertIn("[1, 11]", output)

    def test_the_shim_says_what_it_cannot_run(self):
        ended = subprocess.run([sys.executable, "-m", "coordd.horovod", self.path("absent.py")], text=True,
                               env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python")},
                               stderr=subprocess.PIPE, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("absent.py: No such file", ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
