"""What calls cost that have begun and do not end: a client sends their headers, and nothing more."""

import re
import unittest

from tests.integration.door_test import GROUP_MIB, MIB, can_show_control_groups, in_control_group
from tests.support import processes
from tests.support.processes import ScriptedWorker, wait_for
from tests.support.raw_http2 import Connection

ENDED = r"a connection of (\S+) was ended: it has (\d+) calls under way, more than any other"
CALLS = 1000  # of one connection; coordd takes 1,024
METHODS = ("/coordd.v1.Store/Set", "/coordd.v1.Coordinator/Session")


class DoorCallsTest(processes.TestCase):
    def workers(self, coordd, count):
        workers = [self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="honest", COORDD_MIN_WORKERS=count,
                                             COORDD_MAX_WORKERS=count, COORDD_JOIN_TIMEOUT=processes.PATIENCE_S))
                   for _ in range(count)]
        for worker in workers:
            worker.joined()
        return workers

    @unittest.skipUnless(can_show_control_groups(), "no mount namespaces here: they need root, or unshare --map-root-user")
    def test_calls_that_do_not_end_cost_their_connection(self):
        coordd = self.coordd(wrapper=in_control_group(GROUP_MIB * MIB))
        workers = self.workers(coordd, 2)
        strangers = []
        while not re.search(ENDED, coordd.text()) and len(strangers) < 40:
            strangers.append(Connection(coordd.listen, seconds=processes.PATIENCE_S).greeted())
            self.addCleanup(strangers[-1].close)
            strangers[-1].begin_calls(METHODS[len(strangers) % 2], CALLS)
            strangers[-1].answered_a_ping()
        self.assertTrue(wait_for(lambda: re.search(ENDED, coordd.text())), coordd.text())
        peer, calls = re.search(ENDED, coordd.text()).groups()
        self.assertIn(peer, [f"{one.name[0]}:{one.name[1]}" for one in strangers])
        self.assertTrue(1 < int(calls) <= CALLS, calls)
        self.assertGreaterEqual(coordd.metric("coordd_connections_refused_total", reason="endless"), 1)
        for worker in workers:
            worker.tell("barrier")
        self.assertEqual({worker.answer() for worker in workers}, {"ok"})

    def test_a_member_may_ask_the_store_as_often_as_it_likes(self):
        """Each small answer moves two windows on, so that its frames are more than its bytes are worth."""
        coordd = self.coordd()
        worker, = self.workers(coordd, 1)
        self.assertEqual(worker.ask("put key value"), "ok")
        for _ in range(8000):  # of two calls each, and one after the other
            self.assertEqual(worker.ask("look key"), "ok value")
        self.assertNotIn("was ended", coordd.text())
        self.assertNotIn("lost", coordd.text())


if __name__ == "__main__":
    unittest.main()
