"""Programs of torch.distributed over coordd whose ranks end: killed, by an error, without a goodbye; and how they are started."""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tests.support import processes
from tests.support.processes import clean_environment, program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PATIENCE_S = float(os.environ.get("COORDD_TEST_PATIENCE_S", "240"))

# Ranks are forks of a process that has imported torch. Each prints "rank N ended: STATUS" at its end, by its parent.
LAUNCH = """
import os, signal, sys, time, traceback
import torch, torch.distributed as dist
import coordd.torch.distributed
from torch.nn.parallel import DistributedDataParallel
import datetime
size, folder = int(sys.argv[1]), sys.argv[2]
def program(rank, size):
{body}
ranks = {{}}
for rank in range(size):
    pid = os.fork()
    if pid == 0:
        status = 1
        torch.set_num_threads(1)
        if {init!r}:
            dist.init_process_group("coordd", init_method=f"file://{{folder}}/store", rank=rank, world_size=size,
                                    timeout=datetime.timedelta(seconds=60))
        try:
            program(rank, size)
            status = 0
        except Exception as error:
            print(f"rank {{rank}} failed: {{type(error).__name__}}: {{error}}", flush=True)
            sys.excepthook(*sys.exc_info())
        from multiprocessing import util
        util._exit_function()
        sys.stdout.flush()
        os._exit(status)
    ranks[pid] = rank
while ranks:
    pid, status = os.wait()
    print(f"rank {{ranks.pop(pid)}} ended: {{status}}", flush=True)
"""


def has_torch():
    try:
        import torch
    except ImportError:
        return False
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 1)


def environment(**more):
    return clean_environment(PYTHONPATH=os.path.join(ROOT, "client", "python"), COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"),
                             OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", **more)


@unittest.skipUnless(has_torch(), "needs torch 2.1 or later")
class Ends(processes.TestCase):
    def ranks(self, size, body, init=True):
        """What they print."""
        text = LAUNCH.format(body="".join(f"    {line}\n" for line in body.strip().splitlines()), init=init)
        launched = self.start(processes.Process([sys.executable, "-u", "-c", text, str(size), self.folder],
                                                environment(TMPDIR=self.folder)))
        launched.wait(PATIENCE_S)
        return launched.text()

    def assert_names_the_killed(self, text, survivors):
        for rank in survivors:
            self.assertRegex(text, rf"rank {rank} failed: .*coordd: .*rank 1 \(host [^)]*pid \d+\).* was lost", text)
            self.assertIn(f"rank {rank} ended: 256", text)
        self.assertNotIn("cast", text)

    def test_a_rank_killed_in_ddp_is_an_error_that_names_it(self):
        text = self.ranks(3, """
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 50)), bucket_cap_mb=0.001)
for step in range(1000):
    if rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.ones(2, 50)).sum().backward()
""")
        self.assert_names_the_killed(text, (0, 2))

    def test_a_rank_that_does_not_come_is_named_long_before_the_timeout(self):
        text = self.ranks(3, """
dist.all_reduce(torch.ones(1))
if rank == 2:
    time.sleep(14)
dist.all_reduce(torch.ones(10000))
""")
        late = re.findall(r"comm torch: allreduce number \d+: rank 2 had not come as far within 10s; this rank waits up to 1m", text)
        self.assertEqual(len(late), 1, text)  # of those who wait the first
        self.assertEqual(len(re.findall(r"rank \d ended: 0", text)), 3, text)

    def test_a_call_between_nodes_whose_timeout_is_over_names_who_has_not_come(self):
        text = self.ranks(3, """
os.environ["COORDD_NODE_ID"] = f"node{rank}"
dist.init_process_group("coordd", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=8))
dist.all_reduce(torch.ones(1))
while rank == 2 and not os.path.exists(folder + "/failed"):
    time.sleep(0.05)
try:
    dist.all_reduce(torch.ones(10000))
finally:
    open(folder + "/failed", "w").close()
""", init=False)
        for rank in range(3):
            self.assertRegex(text, rf"rank {rank} failed: .*comm torch: allreduce number \d+ lacked rank 2\b")

    def test_a_rank_killed_in_async_works_is_an_error_of_waits_and_of_futures(self):
        text = self.ranks(3, """
works = []
for step in range(100):
    if rank == 1 and step == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    works.append(dist.all_reduce(torch.ones(10), async_op=True))
future = works[-1].get_future().then(lambda done: done.value())
try:
    future.wait()
except Exception as error:
    print(f"rank {rank} future: {error}", flush=True)
for work in works:
    work.wait()
""")
        self.assert_names_the_killed(text, (0, 2))
        self.assertRegex(text, r"rank 0 future: (.|\n)*rank 1 \(host")

    def test_a_signal_ends_a_wait_behind_a_call_that_is_copied_and_one_for_a_group(self):
        text = self.ranks(2, """
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
if rank == 0:
    for wait in (lambda: [dist.all_reduce(torch.ones(4, 4)[:, ::2], async_op=True) for _ in range(2)][1].wait(),
                 lambda: dist.new_group([0, 1])):
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            wait()
            print("not interrupted", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    open(f"{folder}/through", "w").close()
    os._exit(0)
while not os.path.exists(f"{folder}/through"):
    time.sleep(0.01)
os._exit(0)
""")
        self.assertEqual(text.count("interrupted"), 2, text)
        self.assertNotIn("not interrupted", text)

    def test_an_exit_with_a_call_that_the_others_do_not_make_holds_nobody_up(self):
        for call in ("dist.all_reduce(torch.ones(4), async_op=True)", "dist.all_reduce(torch.ones(4, 4)[:, ::2], async_op=True)"):
            text = self.ranks(2, f"""
from coordd.torch.distributed import _job
_job.GOODBYE_S = 3600.0
if rank == 1:
    work = {call}
else:
    dist.destroy_process_group()
""")
            self.assertEqual(sorted(text.splitlines()), ["rank 0 ended: 0", "rank 1 ended: 0"], text)

    def test_a_wait_for_a_key_ends_with_the_loss_of_a_rank(self):
        for wait in ("store.get('nobody sets this')", "store.wait(['nobody sets this'])"):
            text = self.ranks(2, f"""
from coordd.torch.distributed import Store
store = Store(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))._channel.worker) if False else \
    Store(coordd.torch.distributed._group.default()._channel.worker, datetime.timedelta(hours=1))
if rank == 1:
    store.get("begun")
    os.kill(os.getpid(), signal.SIGKILL)
store.set("begun", "yes")
{wait}
""")
            self.assertRegex(text, r"rank 0 failed: .*nobody has set the key 'nobody sets this': .*rank 1 \(host .* was lost")

    def test_a_child_of_a_fork_makes_no_group_and_its_parent_goes_on(self):
        text = self.ranks(2, """
child = os.fork()
if child == 0:
    dist.distributed_c10d._world.__init__()
    try:
        dist.init_process_group("coordd", init_method=f"file://{folder}/child{rank}", rank=0, world_size=1)
        print("made one", flush=True)
    except Exception as error:
        print(f"child: {error}", flush=True)
    os._exit(0)
os.waitpid(child, 0)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(f"goes on with {tensor[0]:g}", flush=True)
dist.barrier()
""")
        self.assertEqual(len(re.findall("child: .*forked from .*spawn or forkserver", text)), 2, text)
        self.assertEqual(text.count("goes on with 2"), 2, text)

    def test_a_rank_killed_in_sends_is_an_error(self):
        text = self.ranks(2, """
if rank == 1:
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.recv(torch.ones(1), 1)
""")
        self.assert_names_the_killed(text, (0,))

    def test_a_rank_killed_in_fsdp_is_an_error(self):
        text = self.ranks(2, """
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    print("no fully_shard")
    return
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2,))
model = fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
for step in range(1000):
    if rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.ones(2, 8)).sum().backward()
""")
        if "no fully_shard" not in text:
            self.assert_names_the_killed(text, (0,))

    def test_a_rank_killed_before_new_group_is_an_error_of_the_others(self):
        text = self.ranks(3, """
dist.all_reduce(torch.ones(1))
if rank == 1:
    time.sleep(1)  # the others wait for it by then, or come when it is lost already
    os.kill(os.getpid(), signal.SIGKILL)
dist.new_group([0, 1, 2])
""")
        self.assert_names_the_killed(text, (0, 2))

    def test_what_was_called_last_is_done_before_a_rank_ends(self):
        text = self.ranks(2, """
tensor = torch.ones(8)[::2]  # which takes a copy before and behind: the group's thread executes it
if rank == 0:
    time.sleep(0.5)
work = dist.all_reduce(tensor, async_op=True)
if rank == 0:
    work.wait()
    assert tensor.tolist() == [2.0] * 4, tensor
""")
        for rank in range(2):
            self.assertIn(f"rank {rank} ended: 0", text, text)

    def test_groups_are_destroyed_right_behind_their_calls(self):
        text = self.ranks(3, """
for turn in range(150):
    members = [[0, 1, 2], [0, 1], [1, 2], [0, 2], [0], [2, 1, 0]][turn % 6]
    group = dist.new_group(members)
    if rank in members:
        dist.all_reduce(torch.ones(8)[::2], group=group, async_op=True)
        dist.destroy_process_group(group)
""")
        for rank in range(3):
            self.assertIn(f"rank {rank} ended: 0", text, text)

    def test_ranks_that_call_different_things_hear_so(self):
        calls = (("dist.all_reduce(torch.ones(8 if rank else 4))", r"allreduce \(sum\) of 8 float32", r"allreduce \(sum\) of 4 float32"),
                 ("dist.all_reduce(torch.ones(100000 if rank else 8))", r"allreduce \(sum\) of 100000 float32", r"of 8 float32"),
                 ("dist.all_reduce(torch.ones(8, dtype=torch.float64 if rank else torch.float32))", "8 float64", "8 float32"),
                 ("dist.all_reduce(torch.ones(8), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)", r"\(max\)", r"\(sum\)"),
                 ("dist.broadcast(torch.ones(8), 0) if rank else dist.all_reduce(torch.ones(8))", "broadcast of 32 bytes from member 0",
                  r"allreduce \(sum\) of 8 float32"),
                 ("dist.all_gather_into_tensor(torch.ones(2 * (4 if rank else 8)), torch.ones(4 if rank else 8))", "allgather of 32 bytes",
                  "allgather of 64 bytes"))
        for call, ones, zeros in calls:
            text = self.ranks(2, f"dist.barrier()\n{call}\ntime.sleep(60)")
            self.assertRegex(text, rf"rank 0 failed: .*member 1 of the group calls [^,]*{ones}[^,]*, this one [^,]*{zeros}")
            self.assertRegex(text, rf"rank 1 failed: .*member 0 of the group calls [^,]*{zeros}[^,]*, this one [^,]*{ones}")

    def test_an_error_of_one_rank_is_told_to_the_others(self):
        text = self.ranks(2, """
dist.barrier()
if rank == 1:
    from coordd.torch.distributed import _channel
    _channel.fail_all("ValueError: a bad batch")
    os._exit(3)
dist.all_reduce(torch.ones(1))
""")
        self.assertRegex(text, r"rank 0 failed: .*rank 1 .*ValueError: a bad batch")

    def test_the_root_may_leave_right_after_a_broadcast(self):
        text = self.ranks(3, """
for _ in range(20):
    group = dist.new_group([0, 1, 2])
    tensor = torch.full((100000,), float(rank))
    if rank == 2:
        time.sleep(0.01)
    dist.broadcast(tensor, 0, group=group)
    assert tensor[0] == 0
    dist.destroy_process_group(group)
""")
        for rank in range(3):
            self.assertIn(f"rank {rank} ended: 0", text, text)

    def test_ranks_that_end_without_destroying_their_group_end_well(self):
        text = self.ranks(2, """
works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(10)]
works[-1].wait()
dist.isend(torch.ones(1), 1 - rank)
received = torch.empty(1)
dist.recv(received, 1 - rank)
""")
        for rank in range(2):
            self.assertIn(f"rank {rank} ended: 0", text, text)


PROGRAM = """
import sys
import torch, torch.distributed as dist
import coordd.torch.distributed
dist.init_process_group("coordd")
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
print(f"sum {tensor.item()} by {dist.get_backend()} of {dist.get_world_size()}", flush=True)
dist.destroy_process_group()
"""


@unittest.skipUnless(has_torch(), "needs torch 2.1 or later")
class Launches(processes.TestCase):
    def run_it(self, *command, text=PROGRAM, **variables):
        script = os.path.join(self.folder, "program.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(text)
        run = self.start(processes.Process([*command, script], environment(TMPDIR=self.folder, **variables)))
        self.assertEqual(run.wait(PATIENCE_S), 0, run.text())
        return run.text()

    def test_under_coordrun_and_under_torchrun(self):
        for command in ([program("coordrun"), "-np", "2", "--", sys.executable],
                        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]):
            self.assertEqual(self.run_it(*command).count("sum 3.0 by coordd of 2"), 2)
            self.assert_nothing_left()

    def test_torchrun_with_a_coordd_of_ones_own_shows_its_group_to_coordctl(self):
        text = self.run_it(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", text=LOOKS_AT_ITSELF,
                           COORDD_ADDR=self.coordd().listen, COORDCTL=program("coordctl"))
        self.assertRegex(text, r"job .*\.group-[0-9a-f]{16}: running .* 2 ranks, 2 connected")

    def test_an_unchanged_program_of_gloo_under_torch_backend(self):
        text = UNCHANGED
        plain = self.run_it(program("coordrun"), "-np", "2", "--", sys.executable, text=text)
        ours = self.run_it(program("coordrun"), "--torch-backend", "coordd", "-np", "2", "--", sys.executable, text=text)
        self.assertEqual(plain.count("over gloo"), 2, plain)
        self.assertEqual(ours.count("over coordd"), 2, ours)
        self.assertEqual(*({line.partition("weights ")[2] for line in run.splitlines() if "weights" in line} for run in (plain, ours)))

    def test_torchrun_with_coordd_as_rendezvous(self):
        coordd = self.coordd()
        script = os.path.join(self.folder, "program.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(FAILS_ONCE)
        agents = [self.start(processes.Process(
            [sys.executable, "-m", "coordd.torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2",
             "--monitor-interval", "0.2", "--rdzv-backend", "coordd", "--rdzv-endpoint", coordd.listen, "--rdzv-id", "test", script],
            environment(TMPDIR=self.folder, FOLDER=self.folder))) for _ in range(2)]
        for agent in agents:
            self.assertEqual(agent.wait(PATIENCE_S), 0, agent.text())
        together = "".join(agent.text() for agent in agents)
        self.assertEqual(together.count("first sum 3.0"), 2, together)  # one of them then failed
        self.assertEqual(together.count("second sum 3.0"), 2, together)
        self.assertNotIn("RendezvousConnectionError", together)


UNCHANGED = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).double())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((2, 3), dist.get_rank() + step + 1.0).double()).sum().backward()
    optimizer.step()
group = dist.distributed_c10d._get_default_group()
group = group._get_backend(torch.device("cpu")) if not type(group).__module__.startswith("coordd") else group
print("over", "coordd" if type(group).__module__.startswith("coordd") else "gloo", "weights", model.module.weight.flatten().tolist(), flush=True)
dist.destroy_process_group()
"""

LOOKS_AT_ITSELF = """
import os, subprocess
import torch.distributed as dist
import coordd.torch.distributed
dist.init_process_group("coordd")
if dist.get_rank() == 0:
    subprocess.run([os.environ["COORDCTL"], "status"], check=True)
dist.barrier()
dist.destroy_process_group()
"""

FAILS_ONCE = """
import os, torch, torch.distributed as dist
import coordd.torch.distributed
dist.init_process_group("coordd")
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
failed = os.path.join(os.environ["FOLDER"], "failed")
print("second" if os.path.exists(failed) else "first", "sum", tensor.item(), flush=True)
dist.barrier()
if dist.get_rank() == 1 and not os.path.exists(failed):
    open(failed, "w").close()
    os._exit(3)
dist.barrier()
dist.destroy_process_group()
"""


class Refusal(unittest.TestCase):
    def test_a_torch_that_cannot_have_it_is_refused_by_a_sentence(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        if has_torch():
            self.skipTest("this one can")
        sys.path.insert(0, os.path.join(ROOT, "client", "python"))
        with self.assertRaisesRegex(ImportError, f"torch {torch.__version__.split('+')[0]}.*expected 2.1 or later"):
            import coordd.torch.distributed  # noqa: F401


if __name__ == "__main__":
    processes.main()
