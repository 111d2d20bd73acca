"""Tests with a relay of a node, `coordd-relay`, and workers behind it."""

import os

from tests.support import processes


class RelayCase(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.store = ("--store", f"sqlite:{os.path.join(self.folder, 'state')}")
        self.socket = os.path.join(self.folder, "relay")

    def relay(self, coordd, *arguments):
        reading, writing = os.pipe()
        relay = self.start(processes.Process(
            [processes.program("coordd-relay"), "--coordinator", coordd.listen, "--listen", f"unix:{self.socket}",
             "--ready-fd", str(writing), *arguments], pass_fds=[writing]))
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            self.assertEqual(said.readline(), b"ready\n", relay.text())
        return relay

    def behind(self, coordd, count, **variables):
        """`count` workers that go through the relay, in the order of their ranks."""
        return self.workers(coordd, count, COORDD_NODE_SESSION=f"unix:{self.socket}", **variables)
