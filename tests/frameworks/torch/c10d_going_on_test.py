"""Programs of torch.distributed that go on without ranks that are lost (recover), under coordrun --min-np."""

import os
import re
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tests.frameworks.torch.c10d_processes_test import PATIENCE_S, environment, has_torch
from tests.support import processes
from tests.support.processes import program

# Each step's 12 rows are shared evenly by whoever is there, so the weights are those of one process, however many ranks there are.
TRAINING = """
import os, signal, sys
import torch, torch.distributed as dist
import coordd.torch.distributed as coordd
STEPS, BACKEND, DEATHS = 12, sys.argv[1], dict(zip(map(int, sys.argv[2::2]), map(int, sys.argv[3::2])))
me = int(os.environ["RANK"])  # at first

def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 5, generator=generator, dtype=torch.float64), torch.randn(12, 1, generator=generator, dtype=torch.float64)

def made():
    torch.manual_seed(7)
    model = torch.nn.Linear(5, 1, dtype=torch.float64)
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

dist.init_process_group(BACKEND)
model, optimizer = made()
parallel, step, sizes = torch.nn.parallel.DistributedDataParallel(model), 0, [dist.get_world_size()]
while step < STEPS:
    try:
        inputs, targets = (part[dist.get_rank()::dist.get_world_size()] for part in batch(step))
        optimizer.zero_grad()
        outputs = parallel(inputs)
        if DEATHS.get(me) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.nn.functional.mse_loss(outputs, targets).backward()
    except RuntimeError as error:
        rank, size = coordd.recover(error)
        assert (rank, size) == (dist.get_rank(), dist.get_world_size()), (rank, size)
        assert os.environ["RANK"] == str(rank) and os.environ["WORLD_SIZE"] == str(size)
        step, of_model, of_optimizer = coordd.share_newest(step, lambda: (step, model.state_dict(), optimizer.state_dict()))
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        sizes.append(size)
        if size > 1:
            pair, of_pair = dist.new_group([0, size - 1]), torch.ones(3)
            if rank in (0, size - 1):
                dist.all_reduce(of_pair, group=pair)
                assert of_pair.tolist() == [2.0] * 3, of_pair
        continue
    optimizer.step()
    step += 1

alone, its = made()
for one in range(STEPS):
    inputs, targets = batch(one)
    its.zero_grad()
    torch.nn.functional.mse_loss(alone(inputs), targets).backward()
    its.step()
apart = max((one - other).abs().max().item() for one, other in zip(model.parameters(), alone.parameters()))
print("trained", me, dist.get_rank(), sizes, "as one process" if apart < 1e-12 else f"differently by {apart}", flush=True)
dist.destroy_process_group()
"""

# Shards of the lost rank are in a checkpoint alone.
SHARDED = """
import os, signal, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import coordd.torch.distributed as coordd
STEPS, EVERY, folder, dies_in = 12, 3, sys.argv[1], int(sys.argv[2])
me = int(os.environ["RANK"])

def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 5, generator=generator, dtype=torch.float64), torch.randn(12, 4, generator=generator, dtype=torch.float64)

def made(shard):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8, dtype=torch.float64), torch.nn.Tanh(), torch.nn.Linear(8, 4, dtype=torch.float64))
    if shard:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

def state():
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": torch.tensor(step)}

def saved():
    dcp.save(state(), checkpoint_id=os.path.join(folder, str(step)))
    return step

dist.init_process_group("coordd")
(model, optimizer), step = made(True), 0
last = saved()
while step < STEPS:
    try:
        inputs, targets = (part[dist.get_rank()::dist.get_world_size()] for part in batch(step))
        optimizer.zero_grad()
        outputs = model(inputs)
        if (me, step) == (1, dies_in):
            os.kill(os.getpid(), signal.SIGKILL)
        torch.nn.functional.mse_loss(outputs, targets).backward()
        optimizer.step()
        step += 1
        if step % EVERY == 0:
            last = saved()
    except RuntimeError as error:
        coordd.recover(error)
        last = coordd.share_newest(last, lambda: last)
        (model, optimizer), step = made(True), last
        if last > 0:
            read = state()
            dcp.load(read, checkpoint_id=os.path.join(folder, str(last)))
            set_state_dict(model, optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"])

alone, its = made(False)
for one in range(STEPS):
    inputs, targets = batch(one)
    its.zero_grad()
    torch.nn.functional.mse_loss(alone(inputs), targets).backward()
    its.step()
apart = max((one.full_tensor() - other).abs().max().item() for one, other in zip(model.parameters(), alone.parameters()))
print("trained", me, dist.get_rank(), dist.get_world_size(), "as one process" if apart < 1e-12 else f"differently by {apart}", flush=True)
dist.destroy_process_group()
"""

REFUSED = """
import torch, torch.distributed as dist
import coordd.torch.distributed as coordd
def said(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "nothing"
print("before:", said(coordd.recover), flush=True)
dist.init_process_group("coordd")
own = RuntimeError("a mistake of the program")
print("own:", said(lambda: coordd.recover(own)), flush=True)
print("none:", said(coordd.recover), flush=True)
tensor = torch.ones(2)
dist.all_reduce(tensor)
print("sum:", tensor.tolist(), coordd.share_newest(dist.get_rank(), lambda: f"state of {dist.get_rank()}"), flush=True)
dist.destroy_process_group()
"""


def has_fsdp2():
    """Whether this torch can shard over a backend in Python."""
    if not has_torch():
        return False
    import torch
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 14)


@unittest.skipUnless(has_torch(), "needs torch 2.1 or later")
class GoingOn(processes.TestCase):
    def run_ranks(self, flags, text, *arguments):
        """Status and text."""
        script = os.path.join(self.folder, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(text)
        run = self.start(processes.Process([program("coordrun"), *flags, "--", sys.executable, "-u", script, *map(str, arguments)],
                                           environment(TMPDIR=self.folder)))
        return run.wait(PATIENCE_S), run.text()

    def trained(self, flags, backend, deaths, sizes):
        """`deaths`: rank at first, step in which it is killed."""
        status, text = self.run_ranks(flags, TRAINING, backend, *[number for death in deaths for number in death])
        self.assertEqual(status, 0, text)
        found = re.findall(r"trained (\d+) (\d+) (\[[\d, ]+\]) (.*)\n", text)
        left = [rank for rank in range(sizes[0]) if rank not in dict(deaths)]
        self.assertEqual(sorted(int(me) for me, *_ in found), left, text)
        for me, rank, seen, how in found:
            self.assertEqual((int(rank), seen, how), (left.index(int(me)), str(sizes), "as one process"), text)

    def test_ranks_that_are_killed_one_after_the_other(self):
        self.trained(["-np", "4", "--min-np", "2"], "coordd", [(0, 3), (2, 7)], [4, 3, 2])

    @unittest.skipUnless(has_fsdp2(), "needs torch 2.14 or later")
    def test_shards_come_back_from_a_checkpoint(self):
        status, text = self.run_ranks(["-np", "3", "--min-np", "2"], SHARDED, os.path.join(self.folder, "checkpoint"), 7)
        self.assertEqual(status, 0, text)
        self.assertEqual(sorted(re.findall(r"trained (\d+) (\d+) (\d+) (.*)\n", text)),
                         [("0", "0", "2", "as one process"), ("2", "1", "2", "as one process")], text)

    def test_one_that_is_left_alone(self):
        self.trained(["-np", "2", "--min-np", "1"], "coordd", [(1, 5)], [2, 1])

    def test_in_gloos_place(self):
        self.trained(["-np", "3", "--min-np", "1", "--torch-backend", "coordd"], "gloo", [(1, 4)], [3, 2])

    def test_fewer_than_the_least_number_end(self):
        status, text = self.run_ranks(["-np", "3", "--min-np", "3"], TRAINING, "coordd", 1, 4)
        self.assertNotEqual(status, 0, text)
        self.assertNotIn("trained", text)
        self.assertRegex(text, r"killed by SIGKILL")

    def test_nobody_was_lost(self):
        status, text = self.run_ranks(["-np", "2", "--min-np", "1"], REFUSED)
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("before: recover(): there is no default group of coordd's"), 2, text)
        self.assertEqual(text.count("own: a mistake of the program\n"), 2, text)
        self.assertEqual(len(re.findall(r"none: coordd: recover\(\): no rank was lost of generation 1, which has 2", text)), 2, text)
        self.assertEqual(text.count("sum: [2.0, 2.0] state of 1\n"), 2, text)

    def test_a_job_that_ends_with_a_loss_says_what_is_expected(self):
        status, text = self.run_ranks(["-np", "2"], REFUSED)
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("expected COORDD_ON_FAILURE=raise on all ranks before init_process_group"), 4, text)
        self.assertEqual(text.count("sum: [2.0, 2.0] state of 1\n"), 2, text)

    def test_the_example_goes_on_when_somebody_kills_a_worker(self):
        example = os.path.join(processes.ROOT, "client", "examples", "python", "ddp_going_on.py")
        run = self.start(processes.Process([program("coordrun"), "-np", "3", "--min-np", "1", "--", sys.executable, "-u", example,
                                            "--steps", "60", "--pause", "0.05"], environment(TMPDIR=self.folder)))
        processes.wait_for(lambda: "step 10:" in run.text(), PATIENCE_S)
        os.kill(workers_that_run(example, self.folder)[0], signal.SIGKILL)
        self.assertEqual(run.wait(PATIENCE_S), 0, run.text())
        self.assertEqual(len(re.findall(r"rank [01] of 2 goes on with step \d+\n", run.text())), 2, run.text())
        done = re.findall(r"rank ([01]) of 2 is done: 60 steps, loss 0\.\d+, weights ([-\d.]+)\n", run.text())
        self.assertEqual(sorted(rank for rank, _ in done), ["0", "1"], run.text())
        self.assertEqual(done[0][1], done[1][1], run.text())


def workers_that_run(script, folder):
    """Their process ids, of those whose TMPDIR is this folder."""
    found = []
    for entry in os.scandir("/proc"):
        try:
            with open(f"/proc/{entry.name}/cmdline", encoding="utf-8") as command, \
                    open(f"/proc/{entry.name}/environ", encoding="utf-8") as variables:
                words = command.read().split("\0")
                if words[0] == sys.executable and script in words and f"TMPDIR={folder}" in variables.read().split("\0"):
                    found.append(int(entry.name))
        except OSError:
            continue  # no process, or one that has ended
    return found


if __name__ == "__main__":
    processes.main()
