"""Whoever waits does not burn: an idle job uses next to no CPU."""

import time

from tests.support import processes
from tests.support.processes import cpu_seconds

IDLE_S = 5.0
# A heartbeat every 2 s costs well below a millisecond; the clock of /proc ticks every 10 ms.
ALLOWED_S = 0.1


class IdleTest(processes.TestCase):
    def test_idle_workers_and_coordd_use_no_cpu(self):
        if processes.SANITIZED:
            self.skipTest("a sanitizer's own threads use CPU")
        coordd = self.coordd()
        workers = self.workers(coordd, 4)
        for worker in workers:
            worker.ask("submit a float32 1000 1")
        for worker in workers:
            self.assertEqual(worker.ask("wait a"), "ok 4 4")
        everyone = [coordd, *workers]
        before = [cpu_seconds(process.pid) for process in everyone]
        time.sleep(IDLE_S)
        used = [cpu_seconds(process.pid) - start for process, start in zip(everyone, before)]
        self.assertLess(max(used), ALLOWED_S, f"coordd and workers used {used} s of CPU in {IDLE_S} s of idling")


if __name__ == "__main__":
    processes.main()
