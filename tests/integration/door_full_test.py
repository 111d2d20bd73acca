"""What those hear who come to a coordd that takes no more connections, over TLS."""

import os
import unittest

from tests.support import processes
from tests.support.certificates import Certificates
from tests.support.processes import program
from tests.support.raw_http2 import Connection

DESCRIPTORS = 48  # leave a connection or two, and no room to let others in to be told


class DoorFullTest(processes.TestCase):
    def test_nobody_hears_that_it_speaks_no_tls(self):
        tls = Certificates(os.path.join(self.folder, "tls"))
        coordd = self.coordd(*tls.server_flags(), wrapper=("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"))
        most = int(coordd.metric("coordd_connections_max"))
        for _ in range(most + 5):
            try:
                opened = Connection(coordd.listen, context=tls.context("worker")).greeted()
                self.addCleanup(opened.close)
            except (OSError, AssertionError):
                pass
        self.assertEqual(int(coordd.metric("coordd_connections")), most)
        status, text = self.run_command(program("coordctl"), "status", "--coordinator", coordd.listen, *tls.flags("operator"))
        self.assertNotEqual(status, 0)
        self.assertIn("takes no more connections", text)
        self.assertNotIn("speaks no TLS", text)

    def test_one_name_leaves_room_for_others(self):
        tls = Certificates(os.path.join(self.folder, "tls"))
        coordd = self.coordd(*tls.server_flags(), wrapper=("prlimit", "--nofile=192:192"))
        greedy, other = tls.add("worker", "greedy"), tls.add("worker", "other")
        most = int(coordd.metric("coordd_connections_max"))
        self.assertGreater(most, 32)
        for _ in range(most):
            try:
                opened = Connection(coordd.listen, context=tls.context(greedy)).greeted()
                self.addCleanup(opened.close)
            except (OSError, AssertionError):
                pass
        self.assertGreater(coordd.metric("coordd_connections_refused_total", reason="name_full"), 0)
        self.assertRegex(coordd.text(), r"a connection of 127\.0\.0\.1:\d+ \(worker/greedy\) was refused: worker/greedy has \d+ of the")
        self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="full"), 0)
        self.assertEqual(len(self.workers(coordd, 1, job="other", **tls.variables(other))), 1)

        def hears_why():
            """Few are told at a time; the others are closed at once."""
            status, text = self.run_command(program("coordctl"), "status", "--coordinator", coordd.listen, *tls.flags(greedy))
            self.assertNotEqual(status, 0)
            return "the others are kept for other names" in text

        self.assertTrue(processes.wait_for(hears_why))


if __name__ == "__main__":
    unittest.main()
