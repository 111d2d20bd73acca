"""Row 27: losses while a loss is being repaired, and coordd's death in the middle of it.

Injected: SIGKILL of a member; of another as soon as the first survivor hears of it; of a third as soon as one hears of that;
the same once more with coordd killed behind the first loss and started again on its state. Observed: the three who are left are
in one generation at the end, every result exact; nobody hangs; no rank that lives is named as lost.
"""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes


class DuringRecoveryTest(elastic.TestCase):
    def end_of(self, survivors, victims):
        ends = set()
        for worker in survivors:
            told, end = self.changes(worker)
            ends.add(end[:1] + end[2:])
            blamed = {int(pid) for text in told for pid in re.findall(r"pid (\d+)\) was lost", text)}
            self.assertLessEqual(blamed, {victim.pid for victim in victims}, told)
        self.assertEqual(len(ends), 1, ends)
        status, generation, size = ends.pop()
        self.assertEqual((status, int(size)), ("ok", len(survivors)))
        return int(generation)

    def test_three_deep(self):
        coordd = self.coordd("--settling-window", "10m")
        workers = self.training(coordd, 6)
        victims, survivors = workers[:3], workers[3:]
        for victim, witness in zip(victims, survivors):
            self.kill(victim)
            self.assertTrue(witness.answer().startswith("changed "))
        self.assertLessEqual(self.end_of(survivors, victims), 4)

    def test_and_coordd(self):
        coordd = self.coordd(*self.durable)
        workers = self.training(coordd, 5)
        victims, survivors = workers[:2], workers[2:]
        self.kill(victims[0])
        self.assertTrue(survivors[0].answer().startswith("changed "))
        self.kill(coordd, victims[1])
        coordd = self.again(coordd)
        self.end_of(survivors, victims)
        self.assertEqual(coordd.json("/v1/jobs")["epoch"], 2)


if __name__ == "__main__":
    processes.main()
