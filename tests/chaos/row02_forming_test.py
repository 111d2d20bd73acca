"""Row 2: kill -9 of a worker while a generation forms.

Injected: SIGKILL of one of three workers that have joined, at a different moment each time: while it waits for the others, and
from just before the last one joins until the data plane is connected. Observed: the other two become members without it, or lose
it and go on; no place stays taken; nobody hangs; every result is exact.
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes


class FormingTest(elastic.TestCase):
    def test_one_that_waits(self):
        coordd = self.coordd("--settling-window", "0.1s")
        victim = self.worker(coordd, most=2)
        joined = lambda: sum(job["joined"] for job in coordd.json("/v1/jobs")["jobs"])
        self.assertTrue(self.wait_for(lambda: joined() == 1), coordd.text())
        self.kill(victim)
        self.assertTrue(self.wait_for(lambda: joined() == 0), coordd.text())
        others = [self.worker(coordd, most=2) for _ in range(2)]
        self.assertEqual(sorted(worker.joined().rank for worker in others), [0, 1])

    def test_at_any_moment_of_its_becoming_a_member(self):
        coordd = self.coordd("--settling-window", "0.1s")
        for attempt in range(10):
            job = f"job{attempt}"
            victim, *others = (self.worker(coordd, most=3, job=job) for _ in range(3))
            time.sleep(0.03 * attempt)
            self.kill(victim)
            for worker in others:
                worker.joined()
                worker.tell(f"train grad 1000 {elastic.STEPS}")
            ends = {self.changes(worker)[1] for worker in others}
            self.assertEqual(len(ends), 1, ends)
            status, steps, _, size = ends.pop()
            self.assertEqual((status, int(steps), int(size)), ("ok", elastic.STEPS, 2))
            for worker in others:
                worker.tell("exit")
                worker.wait()


if __name__ == "__main__":
    processes.main()
