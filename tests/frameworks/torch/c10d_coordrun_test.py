"""Programs of torch.distributed under coordrun whose ranks end: who is named, by what, and with which status."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tests.frameworks.torch.c10d_processes_test import PATIENCE_S, environment, has_torch
from tests.support import processes
from tests.support.processes import program

PROGRAM = """
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
assert dist.get_rank() == int(os.environ["RANK"])
tensor = torch.ones(10)
dist.all_reduce(tensor)
rank = dist.get_rank()
{body}
dist.all_reduce(tensor)
dist.destroy_process_group()
"""


STORES = """
import torch, torch.distributed as dist
import coordd.torch.distributed
def reduced(backend):
    dist.init_process_group(backend, init_method="coordd://")
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size() == 3
    dist.destroy_process_group()
for backend in ("gloo", "gloo", "coordd", "coordd"):  # again, where the group before has left its keys
    reduced(backend)
own, rank, size = coordd.torch.distributed.connect()
assert size == 3
own.set(f"of {rank}", str(rank))
own.wait([f"of {one}" for one in range(size)])
other, _, _ = coordd.torch.distributed.connect()
assert not other.check(["of 0"])
named, _, _ = coordd.torch.distributed.connect(job="named")
assert named.add("members", 1) <= 3 and not named.check(["of 0"])
reduced("gloo")
own.set(f"through {rank}", "")
own.wait([f"through {one}" for one in range(size)])
"""


@unittest.skipUnless(has_torch(), "needs torch 2.1 or later")
class UnderCoordrun(processes.TestCase):
    def run_ranks(self, body, size=3):
        """Status and text."""
        return self.run_program(PROGRAM.format(body=body), size)

    def run_program(self, text, size=3):
        script = os.path.join(self.folder, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(text)
        run = self.start(processes.Process([program("coordrun"), "--torch-backend", "coordd", "-np", str(size), "--", sys.executable,
                                            "-u", script], environment(TMPDIR=self.folder)))
        return run.wait(PATIENCE_S), run.text()

    def test_a_store_of_coordds_is_there_for_one_group_after_the_other_and_beside_them(self):
        status, text = self.run_program(STORES)
        self.assertEqual(status, 0, text)

    def test_who_raises_is_named_with_its_error(self):
        status, text = self.run_ranks("""
if rank == 1:
    raise ValueError("bad batch")
""", size=4)
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"rank 1 \(pid \d+\) failed first: ValueError: bad batch")
        self.assertRegex(text, r"\[0\] .*rank 1 \(host .*\) failed: ValueError: bad batch")

    def test_who_raises_past_a_goodbye_in_finally_has_failed(self):
        status, text = self.run_ranks("""
if rank == 1:
    try:
        raise ValueError("bad batch")
    finally:
        dist.destroy_process_group()
""")
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"rank 1 \(pid \d+\) failed first: ValueError: bad batch")

    def test_who_exits_with_a_status_has_failed_at_once(self):
        status, text = self.run_ranks("""
if rank == 1:
    sys.exit(3)
""")
        self.assertEqual(status, 3, text)
        self.assertRegex(text, r"\[0\] .*rank 1 \(host .*\) failed: it exits with status 3")
        self.assertNotIn("left: shut down by its program", text)

    def test_who_is_killed_is_named_with_the_signal(self):
        status, text = self.run_ranks("""
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
""")
        self.assertEqual(status, 128 + 9, text)
        self.assertRegex(text, r"\[0\] .*rank 1 \(host .*\) was lost: it was killed by SIGKILL")

    def test_an_error_in_backward_is_told_with_the_line_of_the_program_and_without_those_of_torch(self):
        status, text = self.run_ranks("""
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
for step in range(4 if rank == 0 else 6):  # uneven, without join()
    model(torch.ones(2, 3)).sum().backward()
if rank == 0:
    dist.destroy_process_group()
    sys.exit(0)
""", size=2)
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"rank 1 \(pid \d+\) failed first: RuntimeError: [^\n]*rank 0 has left the comm, and calls this no more "
                               r"\[ABORTED\] \(train\.py, line 12, in <module>\)")

    def test_a_store_without_a_launcher_says_what_to_do(self):
        for call in ("coordd.torch.distributed.connect()", "dist.init_process_group('gloo', init_method='coordd://')"):
            run = self.start(processes.Process(
                [sys.executable, "-c", f"import torch.distributed as dist\nimport coordd.torch.distributed\n{call}"],
                environment(TMPDIR=self.folder)))
            self.assertEqual(run.wait(PATIENCE_S), 1, run.text())
            self.assertRegex(run.text(), r"ValueError: .*expected a program that coordrun or torchrun has started .*world_size")

    def test_a_group_that_lives_at_the_exit_is_no_failure(self):
        status, text = self.run_ranks("""
if rank == 1:
    dist.all_reduce(tensor)
    sys.exit(0)
dist.all_reduce(tensor)
time.sleep(1)
print("went on", flush=True)
sys.exit(0)
""")
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("went on"), 2, text)
        self.assertIn("all workers exited with status 0", text)

    def test_nobody_is_warned_of_where_one_comes_to_the_end_later_than_others(self):
        status, text = self.run_ranks("""
dist.all_reduce(tensor)
if rank == 0:
    time.sleep(2)  # the others have left their group, and have come to the end of Python, long before
dist.destroy_process_group()
sys.exit(0)
""")
        self.assertEqual(status, 0, text)
        self.assertNotRegex(text, r"torch\.goodbye|withdrew")


if __name__ == "__main__":
    processes.main()
