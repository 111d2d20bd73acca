"""Jobs whose programs need not notice a loss (COORDD_ON_FAILURE=continue): workers and coordd are killed at any instant, and
every result is that of the members which it names, once, the same on all who are left."""

import collections
import os
import random
import signal
import time

from tests.support import processes
from tests.support.processes import program, wait_for

JOBS = int(os.environ.get("COORDD_TEST_JOBS", "4" if processes.SANITIZED else "6"))  # of each kind
SEED = int(os.environ.get("COORDD_TEST_SEED", "1"))
NAMES = {"small", "large", "apart", "average", "half", "other_half", "scattered", "gathered", "root", "summed", "flags"}


class Member(processes.Process):
    """tests/integration/going_on_worker.cc"""

    def __init__(self, folder, number, coordd, job, limits, large, **variables):
        self.number = number
        self.log = os.path.join(folder, f"{job}.{number}")
        command = [program("going_on_worker"), str(number), self.log, os.path.join(folder, f"{job}.stop"), str(large)]
        super().__init__(command, processes.clean_environment(
            COORDD_ADDR=coordd.listen, COORDD_JOB_ID=job, COORDD_LAUNCHER="none", COORDD_MIN_WORKERS=limits[0],
            COORDD_MAX_WORKERS=limits[1], COORDD_ON_FAILURE="continue", COORDD_TIMEOUT=processes.PATIENCE_S,
            COORDD_JOIN_TIMEOUT=processes.PATIENCE_S, **variables))

    def lines(self):
        try:
            with open(self.log, encoding="ascii") as log:
                return [line.rstrip("\n") for line in log if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def steps(self):
        """That it has ended."""
        return sum(" flags " in line for line in self.lines())


class GoingOnTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.store = ("--store", f"sqlite:{os.path.join(self.folder, 'state')}")
        # All are in the first generation, however long their processes take to start.
        self.patient = (*self.store, "--settling-window", "10m")
        self.random = random.Random(SEED)

    def begin(self, coordd, job, count, least=1, most=None, large=200_000, per_node=None, **variables):
        """`count` members that have made five steps; on one node, or so many on each."""
        limits = (least, most or count)
        nodes = [{"COORDD_NODE_ID": f"node{number // per_node}"} if per_node else {} for number in range(count)]
        members = [self.start(Member(self.folder, number, coordd, job, limits, large, **nodes[number], **variables))
                   for number in range(count)]
        self.await_steps(members, 5)
        return members

    def await_steps(self, members, more):
        """Until each has made so many more."""
        goals = {member: member.steps() + more for member in members}
        self.assertTrue(wait_for(lambda: all(member.steps() >= goal or not member.running()
                                             for member, goal in goals.items())),
                        [member.lines()[-3:] for member in members])
        for member in members:
            self.assertTrue(member.running(), (member.number, member.lines()[-3:], member.text()))

    def kill(self, victim, at_most_s=0.01):
        time.sleep(self.random.random() * at_most_s)
        victim.signal(signal.SIGKILL)

    def end(self, job, members):
        """All who are left come to the same end, and what they have seen fits together. Generations that had results."""
        with open(os.path.join(self.folder, f"{job}.stop"), "w", encoding="ascii"):
            pass
        for member in members:
            self.assertEqual(member.wait(), 0, (member.number, member.lines()[-5:], member.text()))
        return self.check(members)

    def check(self, members):
        last_steps, seen, of_generation = set(), {}, {}
        for member in members:
            names, generations = collections.Counter(), []
            for line in member.lines():
                fields = line.split()
                self.assertNotEqual(fields[0], "WRONG", line)
                if fields[0] == "entered" or fields[-1] == "again":
                    continue
                if fields[0] == "end":
                    self.assertEqual(fields[2], "0", "what was submitted is answered once")
                    last_steps.add(fields[1])
                    continue
                step, name, generation, size, ranks = fields
                names[step, name] += 1
                generations.append(int(generation))
                # The root alone knows of whom a reduction is.
                self.assertEqual(seen.setdefault((step, name), (generation, size)), (generation, size), line)
                if ranks != "-":
                    self.assertEqual(of_generation.setdefault(generation, ranks), ranks, line)
            self.assertEqual(set(names.values()), {1})
            self.assertEqual(len({step for step, _ in names}) * len(NAMES), len(names))
            # In a step, what is reduced in it may be told in another order than it was executed in.
            by_step = collections.defaultdict(list)
            for (step, _), generation in zip(names, generations):
                by_step[int(step)].append(generation)
            ordered = [by_step[step] for step in sorted(by_step)]
            for before, after in zip(ordered, ordered[1:]):
                self.assertLessEqual(max(before), min(after))
        self.assertEqual(len(last_steps), 1, last_steps)
        return len({generation for generation, _ in seen.values()})

    def test_whoever_is_killed_at_any_instant(self):
        coordd = self.coordd(*self.patient)
        # On mapped memory, over shared memory by messages, and over UCX.
        for number in range(JOBS):
            transport = ("auto", "shm", "auto", "ucx" if processes.has_ucx() else "shm")[number % 4]
            large = (200_000, 3_000_000)[number % 2]
            job = f"kill-{number}"
            per_node = 1 if transport == "ucx" else None  # between nodes is where it is used
            members = self.begin(coordd, job, 4, large=large, per_node=per_node, COORDD_TRANSPORT=transport)
            left = list(members)
            while len(left) > 2:
                self.kill(left.pop(self.random.randrange(len(left))))
                self.await_steps(left, self.random.choice((0, 1, 5)))
            self.assertGreaterEqual(self.end(job, left), 2, job)

    def test_whoever_is_killed_on_nodes_of_two(self):
        coordd = self.coordd(*self.patient)
        # With two nodes, or three, the others may share a path that the first ones did not have.
        for number in range(max(1, JOBS // 2)):
            job = f"nodes-{number}"
            left = self.begin(coordd, job, 4 + number % 2 * 2, large=3_000_000, per_node=2)
            while len(left) > 2:
                self.kill(left.pop(self.random.randrange(len(left))))
                self.await_steps(left, self.random.choice((0, 1, 5)))
            self.assertGreaterEqual(self.end(job, left), 2, job)

    def test_two_at_once_and_one_while_the_others_recover(self):
        coordd = self.coordd(*self.patient)
        for number in range(JOBS):
            job = f"storm-{number}"
            left = self.begin(coordd, job, 5)
            for _ in range(3):
                self.kill(left.pop(self.random.randrange(len(left))), at_most_s=self.random.choice((0, 0.005, 0.05)))
            self.await_steps(left, 3)
            self.end(job, left)

    def test_coordd_is_killed_meanwhile(self):
        coordd = self.coordd(*self.patient)
        # Whoever died meanwhile is waited for: three jobs at a time.
        for turn in range(0, JOBS, 3):
            jobs = {f"coordd-{number}": self.begin(coordd, f"coordd-{number}", 4)
                    for number in range(turn, min(turn + 3, JOBS))}
            doomed = [left.pop(self.random.randrange(len(left))) for left in jobs.values()]
            doomed.insert(self.random.randrange(len(doomed) + 1), coordd)
            for process in doomed:
                self.kill(process, at_most_s=0.03)
            coordd.wait()
            coordd = self.coordd(*self.patient, listen=coordd.listen)
            for job, left in jobs.items():
                self.await_steps(left, 5)
                self.assertGreaterEqual(self.end(job, left), 2, job)

    def test_newcomers_afterwards(self):
        coordd = self.coordd(*self.patient)
        for number in range(max(1, JOBS // 2)):
            job = f"newcomer-{number}"
            members = self.begin(coordd, job, 3)
            for fresh in (3, 4):
                self.kill(members.pop(self.random.randrange(len(members))))
                self.await_steps(members, self.random.choice((0, 3)))
                newcomer = self.start(Member(self.folder, fresh, coordd, job, (1, 3), 200_000))
                self.assertTrue(wait_for(lambda: newcomer.steps() >= 3), (newcomer.lines(), newcomer.text()))
                members.append(newcomer)
            self.assertGreaterEqual(self.end(job, members), 3, job)

    def test_a_newcomer_and_a_loss_at_the_same_time(self):
        coordd = self.coordd(*self.store, "--settling-window", "2s")
        for number in range(max(1, JOBS // 2)):
            job = f"both-{number}"
            members = self.begin(coordd, job, 4, most=5)
            newcomer = self.start(Member(self.folder, 4, coordd, job, (1, 5), 200_000))
            self.kill(members.pop(self.random.randrange(len(members))), at_most_s=0.3)
            self.assertTrue(wait_for(lambda: newcomer.steps() >= 3), (newcomer.lines(), newcomer.text()))
            self.end(job, [*members, newcomer])


if __name__ == "__main__":
    processes.main()
