"""Rows 10 and 11: workers that do not reach each other, though coordd hears from all of them.

Injected: on four hosts, everything that two of the workers send each other is lost, without a word to either (row 11: no
connection ends); when the others have gone on, what one of them sends to another one, in one direction only. Observed: each time
exactly one worker is evicted, one of the two that are concerned, and told why; the others are in one generation of the rest,
every result exact; the answers of the kernel show to all other pairs that their links are good.
"""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import hosts
from tests.support import processes


class LinksTest(hosts.TestCase):
    def part(self, workers, pair):
        """One of the pair has to go, and does; the others."""
        ends = {worker: self.changes(worker) for worker in workers}
        gone = [worker for worker, (_, end) in ends.items() if end[0] != "ok"]
        self.assertEqual(len(gone), 1, ends)
        self.assertIn(gone[0], pair)
        rest = [worker for worker in workers if worker is not gone[0]]
        for worker in rest:
            told, end = ends[worker]
            # On a busy machine what the link's loss leads to may be heard before the loss itself: one more attempt.
            self.assertLessEqual(len(told), 2, told)
            self.assertIn(f"pid {gone[0].pid}) was evicted: nothing comes over the network", told[-1])
            self.assertEqual(end[3], str(len(rest)))
        self.assertNotEqual(gone[0].ask("status"), "ok")
        return rest

    def test_one_of_two_goes_and_nobody_else(self):
        coordd = self.hosts(4)
        workers = self.training_on_hosts(coordd, 4)
        pair = workers[:2]
        self.network.cut(pair[0].host, pair[1].host)
        self.network.cut(pair[1].host, pair[0].host)
        workers = self.part(workers, pair)

        for worker in workers:
            worker.tell("train again 20000 20 change")
        for worker in workers:
            self.assertEqual(worker.answer(), "step 5")
        self.network.cut(workers[0].host, workers[1].host)
        workers = self.part(workers, workers[:2])
        for worker in workers:
            worker.tell("train last 20000 10")
        for worker in workers:
            told, end = self.changes(worker)
            self.assertEqual((told, end[:2], end[3]), ([], ("ok", "10"), "2"))
        evicted = re.findall(r"^coordd W .* was evicted: ", coordd.text(), re.MULTILINE)
        self.assertEqual(len(evicted), 2, coordd.text())


if __name__ == "__main__":
    processes.main()
