"""Row 12: a slow network that loses packets.

Injected: between three hosts, 5 % of all packets to one of them are lost, and what another one sends goes through a line of
20 Mbit/s, coordd's messages too. Observed: nobody is evicted and no generation ends, with the leases that coordd has by itself;
steps become slow, not wrong; when the network is good again the same members go on.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import hosts
from tests.support import processes


class SlowNetworkTest(hosts.TestCase):
    def test_it_costs_time_and_nothing_else(self):
        coordd = self.hosts(3)
        workers = [self.on_host(coordd, host, 3) for host in (1, 2, 3)]
        workers = sorted((worker.joined() for worker in workers), key=lambda worker: worker.rank)
        heal = self.network.lossy(workers[0].host, 5)
        self.network.slow(workers[1].host, "20mbit")
        for worker in workers:
            worker.tell("train grad 50000 40")
        for worker in workers:
            self.assertEqual(self.changes(worker), ([], ("ok", "40", "1", "3")))
        heal()
        for worker in workers:
            worker.tell("train again 50000 40")
        for worker in workers:
            self.assertEqual(self.changes(worker), ([], ("ok", "40", "1", "3")))
        self.assertNotIn("lost", coordd.text())


if __name__ == "__main__":
    processes.main()
