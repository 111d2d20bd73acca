"""Row 1, between hosts: kill -9 of a worker at any step of a ring over UCX.

Injected: six workers on three hosts reduce 80 KB without a pause; one after the other, four of them are killed, each at another
moment of a step. Observed: after each of them the others go on in one generation, and all name the one that was killed; every
result is exact over the members of its generation.
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import hosts
from tests.support import processes

KILLS = 4


class BetweenHostsTest(hosts.TestCase):
    def test_at_any_step(self):
        coordd = self.hosts(3)
        workers = self.training_on_hosts(coordd, 3, each=2)
        for attempt in range(KILLS):
            time.sleep(0.003 * attempt)  # no condition: the moment is what is varied
            # Another host, and another place in the ring.
            victim = workers.pop((5 * attempt) % len(workers))
            self.kill(victim)
            for worker in workers:
                told, end = self.changes(worker)
                self.assertEqual((end[0], end[2:]), ("ok", (str(attempt + 2), str(len(workers)))))
                self.assertEqual(len(told), 1, told)
                self.assertIn(f"pid {victim.pid}) was lost", told[0])
            for worker in workers:
                worker.tell(f"train g{attempt} 20000 20 change")
            if len(workers) > 2:
                for worker in workers:
                    self.assertEqual(worker.answer(), "step 5")
        self.assertNotIn("evicted", coordd.text())


if __name__ == "__main__":
    processes.main()
