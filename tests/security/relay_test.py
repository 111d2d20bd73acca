"""What other processes of its user can do to the relay of a node: the job behind it does not notice."""

import os
import random
import socket

from tests.security.http2_test import LiveJob
from tests.support import processes
from tests.support.processes import ScriptedWorker, wait_for
from tests.support.raw_http2 import PREFACE, SETTINGS, frame
from tests.support.relays import RelayCase

GARBAGE, SILENT = 300, 400


class RelayTest(RelayCase):
    def garbage(self):
        chance = random.Random(1)
        for first in (b"", PREFACE, PREFACE + frame(SETTINGS, 0, 0)) * (GARBAGE // 3):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(self.socket)
                try:
                    client.sendall(first + chance.randbytes(chance.randrange(600)))
                except OSError:  # it is closed already
                    pass

    def silent(self):
        found = []
        for _ in range(SILENT):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            if client.connect_ex(self.socket) != 0:
                client.close()
                break
            found.append(client)
        return found

    def test_garbage_and_silence_at_its_socket(self):
        coordd = self.coordd(*self.store)
        relay = self.relay(coordd)
        self.assertEqual(os.stat(self.socket).st_mode & 0o077, 0)

        def descriptors():
            return len(os.listdir(f"/proc/{relay.pid}/fd"))

        workers = self.behind(coordd, 2)
        before = descriptors()
        with LiveJob(workers) as job:
            self.garbage()
            silent = self.silent()
            self.assertGreater(len(silent), 0)
            met = job.met
            self.assertTrue(wait_for(lambda: job.met > met + 5), relay.text())
            for client in silent:
                client.close()
            self.assertTrue(wait_for(lambda: descriptors() <= before + 2), (before, descriptors()))
        self.assertEqual(job.answers, {"ok"})
        self.assertTrue(relay.running())

    def test_it_speaks_for_its_own_job_only(self):
        coordd = self.coordd(*self.store)
        self.relay(coordd)
        workers = self.behind(coordd, 2)
        other = self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="another", COORDD_NODE_SESSION=f"unix:{self.socket}"))
        self.assertIn("a Join to job another through a node session of job test", other.answer())
        self.assertNotEqual(other.wait(), 0)
        for worker in workers:
            worker.tell("barrier")
        self.assertEqual({worker.answer() for worker in workers}, {"ok"})


if __name__ == "__main__":
    processes.main()
