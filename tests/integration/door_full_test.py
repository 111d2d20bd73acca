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


if __name__ == "__main__":
    unittest.main()
