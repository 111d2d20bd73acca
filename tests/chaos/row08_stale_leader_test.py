"""Row 8: a leader that is cut off from etcd by the network, and not stopped.

Injected: etcd, the coordd that leads, a standby and two workers on hosts of their own; everything between the leader and etcd is
lost, in both directions, until the standby leads, while workers reach both coordds. Observed: the old one goes on with the
members that it has, every result exact; it forms nothing new, since nothing of it can be stored; when it hears from etcd again
it ends itself and says why; the members go on under the new one, in the same generation, and what is new is reduced.
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import hosts
from tests.support import etcd, processes
from tests.support.processes import ScriptedWorker, program

LEADER, ETCD, STANDBY, WORKERS = 0, 1, 2, 3


@unittest.skipUnless(etcd.installed(), "no etcd is installed here (Debian: etcd-server): a leader without it is not tested")
class StaleLeaderTest(hosts.TestCase):
    def test_its_members_go_on_and_come_to_the_standby(self):
        self.make_network(3, names=(LEADER, STANDBY))
        addresses = self.network.addresses
        server = self.start(etcd.Etcd(address=f"{addresses[ETCD]}:2379", wrapper=self.network.on(ETCD)))
        self.assertTrue(server.ready(), server.text())
        store = ("--store", f"etcd:{server.address}/lab", "--store-lease", "3s")
        leader = self.coordd_on(LEADER, *store)
        # A name that both have, so that workers can be told of it before it is there.
        listen = f"{addresses[STANDBY]}:29650"
        standby = self.start(processes.Process([*self.network.on(STANDBY), program("coordd"), "--listen", listen, "--http",
                                                "127.0.0.1:0", "--connection-file", "", "--standby", *self.server_tls, *store]))
        self.assertTrue(self.wait_for(lambda: "standing by" in standby.text()), standby.text())
        workers = [self.start(ScriptedWorker(f"{leader.listen},{listen}", wrapper=self.network.on(WORKERS), COORDD_JOB_ID="test",
                                             COORDD_MIN_WORKERS=2, COORDD_MAX_WORKERS=2, **self.variables)) for _ in range(2)]
        for worker in workers:
            worker.joined()
        self.train(workers, "before")
        heal = [self.network.cut(LEADER, ETCD), self.network.cut(ETCD, LEADER)]
        self.assertTrue(self.wait_for(lambda: " ready: " in standby.text()), standby.text())
        self.assertIn("epoch 2", standby.text())
        other = self.start(ScriptedWorker(leader.listen, wrapper=self.network.on(WORKERS), COORDD_JOB_ID="other",
                                          COORDD_MAX_WORKERS=1, COORDD_JOIN_TIMEOUT=3, **self.variables))
        self.train(workers, "cut")
        self.assertFalse(other.answer().startswith("ok "))
        for end in heal:
            end()
        self.assertNotEqual(leader.wait(), 0, leader.text())
        self.assertIn("does not lead", leader.text())
        self.train(workers, "after")
        self.assertIn("generation 1 goes on: all", standby.text())

    def train(self, workers, name):
        for worker in workers:
            worker.tell(f"train {name} 1000 20")
        for worker in workers:
            self.assertEqual(self.changes(worker), ([], ("ok", "20", "1", "2")))


if __name__ == "__main__":
    processes.main()
