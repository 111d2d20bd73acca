"""Row 2, at named points: kill -9 of a worker while its data plane is being connected.

Injected: one of three workers of a node ends itself by SIGKILL in the middle of a call (tests/chaos/preload.c): before its memory
is there, before anybody can reach it, while it greets the others, between the memory that it has handed over and that which it is
given. Observed: each time the others are told that it was lost, become the next generation without it, and every result is exact;
nothing of its memory stays.
"""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes
from tests.support.processes import program

POINTS = ("memfd:1", "memfd:2", "bind:1", "connect:1", "connect:2", "accept:1", "accept:2", "send:1", "send:2", "send:3",
          "receive:1", "receive:2", "receive:3")


@unittest.skipIf(processes.SANITIZED, "a sanitizer wants to be loaded first: no worker can be ended in the middle of a call")
class FailpointsTest(elastic.TestCase):
    def joined(self, coordd, name):
        """How many have, also of those who have died since."""
        return sum(f" job {name}: worker " in line and " joined: " in line for line in coordd.text().splitlines())

    def test_at_each_point(self):
        coordd = self.coordd("--settling-window", "10m")
        for point in POINTS:
            with self.subTest(point):
                job = point.replace(":", "-")
                fault = {"LD_PRELOAD": program("libcoordd_faults.so"), "COORDD_TEST_DIE_AT": point}
                # Lower ranks wait to be greeted by the higher ones: the first to come is rank 0.
                faults = [{}, {}, fault] if point.startswith("connect") else [fault, {}, {}]
                workers = []
                for variables in faults:
                    workers.append(self.worker(coordd, 3, job=job, **variables))
                    self.assertTrue(self.wait_for(lambda: self.joined(coordd, job) == len(workers)), coordd.text())
                victim = workers[faults.index(fault)]
                self.assertEqual(victim.wait(20), -signal.SIGKILL)
                others = [worker for worker in workers if worker is not victim]
                for worker in others:
                    worker.joined()
                    worker.tell(f"train grad 1000 {elastic.STEPS}")
                ends = {self.changes(worker)[1] for worker in others}
                self.assertEqual(len(ends), 1, ends)
                status, steps, _, size = ends.pop()
                self.assertEqual((status, int(steps), int(size)), ("ok", elastic.STEPS, 2))
                self.assertIn(f"pid {victim.pid}) was lost", coordd.text())
                for worker in others:
                    worker.tell("leave")
                for worker in others:
                    worker.answer()
                    worker.end()
        coordd.end()
        self.assert_nothing_left()


if __name__ == "__main__":
    processes.main()
