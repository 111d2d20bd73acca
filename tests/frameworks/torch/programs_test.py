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
PATIENCE_S = 120

# The shape of a Horovod script: what it imports, in the ways that people import it, and the steps that it makes.
HOROVOD_SCRIPT = """
import os
import sys
import horovod
import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.common.util import split_list
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
    assert os.environ["HOROVOD_SIZE"] == "2"
    hvd.init()
    assert hvd is coordd.torch and horovod.torch is hvd and hvd.elastic.TorchState is TorchState
    assert coordd.torch.__spec__.name == "coordd.torch"
    assert tuple(map(int, horovod.__version__.split("."))) >= (0, 28)
    assert sys.argv[1:] == ["--flag", "value"] and split_list([1, 2, 3], 2) == [[1, 2], [3]]
    try:
        import horovod.tensorflow
    except ImportError as error:
        assert "horovod.torch only" in str(error)
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
    same = hvd.allgather(model.weight.detach().unsqueeze(0), name="weights")
    assert all(torch.equal(one, same[0]) for one in same)
    print("done on", hvd.rank(), "of", hvd.size())
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
from coordd.torch import _gradients

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
assert [type(unit) for unit in units] == [_gradients._Bucket], units
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


class Programs(unittest.TestCase):

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
