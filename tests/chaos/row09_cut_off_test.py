"""Row 9: a worker that is cut off from everybody.

Injected: the link of one of three hosts goes down. Observed: the other two go on in place, every result exact over the two of
them, and say who is missing; the one that was cut off does not believe for longer than its lease that it is a member, and is
refused when it is back.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import hosts
from tests.support import processes


class CutOffTest(hosts.TestCase):
    def test_the_others_go_on_in_place(self):
        coordd = self.hosts(3, "--lease", "3s", "--heartbeat-interval", "500ms")
        workers = self.training_on_hosts(coordd, 3)
        alone, others = workers[1], [workers[0], workers[2]]
        self.network.disconnect(alone.host)
        for worker in others:
            told, end = self.changes(worker)
            self.assertEqual((end[0], end[3]), ("ok", "2"))
            self.assertTrue(self.names_it(told[0], alone), told)
        _, end = self.changes(alone)
        self.assertNotEqual(end[0], "ok")
        self.network.reconnect(alone.host)
        self.assertNotEqual(alone.ask("status"), "ok")
        for worker in others:
            worker.tell("train again 20000 20")
        for worker in others:
            self.assertEqual(self.changes(worker)[1], ("ok", "20", "2", "2"))


class CutOffOverTcpTest(CutOffTest):
    transport = "auto"


if __name__ == "__main__":
    processes.main()
