"""Row 12: a slow network that loses, delays and reorders packets.

Injected: between three hosts, 5 % of all packets to one of them are lost, and what another one sends goes through a line of
20 Mbit/s, coordd's messages too. Then: each packet to and from one of them takes 50 ms, up to 20 more or less, so that they
overtake each other. Observed: nobody is evicted and no generation ends, with the leases that coordd has by itself; steps become
slow, not wrong; when the network is good again the same members go on.
"""

import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import hosts
from tests.support import network, processes

DELAY_MS, JITTER_MS = 50, 20


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

    @unittest.skipIf(network.why_no_delays(), network.why_no_delays())
    def test_packets_that_are_late_and_overtake_each_other(self):
        steps = 15
        coordd = self.hosts(3, delayed={2: (DELAY_MS, JITTER_MS)})
        workers = [self.on_host(coordd, host, 3) for host in (1, 2, 3)]
        for worker in workers:
            worker.joined()
        began = time.monotonic()
        for worker in workers:
            worker.tell(f"train grad 20000 {steps}")
        for worker in workers:
            self.assertEqual(self.changes(worker), ([], ("ok", str(steps), "1", "3")))
        # That it was injected: no step is done before something has come to that host.
        took = time.monotonic() - began
        self.assertGreater(took, steps * (DELAY_MS - JITTER_MS) / 1000)
        self.assertNotIn("lost", coordd.text())
        print(f"{steps} steps in {took:.1f} s")


class SlowNetworkOverTcpTest(SlowNetworkTest):
    transport = "auto"


if __name__ == "__main__":
    processes.main()
