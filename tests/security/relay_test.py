"""What other processes of its user can do to the relay of a node: the job behind it does not notice."""

import os
import random
import select
import socket

from tests.security.http2_test import MOST_MIB, LiveJob, memory_mib
from tests.support import processes
from tests.support.processes import ScriptedWorker, wait_for
from tests.support.raw_http2 import END_HEADERS, HEADERS, PREFACE, SETTINGS, call_headers, frame
from tests.support.relays import RelayCase

GARBAGE, SILENT = 300, 400
CALLS = 60000  # without a bound these take more than a gibibyte
# Of a relay, whose neighbours on a busy machine leave it the less time to end refused calls: 135 MiB alone, 416 at a load of 13.
RELAY_MOST_MIB = 512
WRONG_WORKERS, WRONG_TENSORS = 12, 800


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

    def flooded(self, reads):
        """Begins calls that never say anything, without an acknowledgement of the settings; how many until it was closed, or not read any
        more."""
        begun = 0
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self.socket)
            client.settimeout(processes.PATIENCE_S if reads else 2)
            client.sendall(PREFACE + frame(SETTINGS, 0, 0))
            try:
                while begun < CALLS:
                    client.sendall(b"".join(frame(HEADERS, END_HEADERS, stream, call_headers("/coordd.v1.Coordinator/Session"))
                                            for stream in range(2 * begun + 1, 2 * begun + 201, 2)))
                    begun += 100
                    while reads and select.select([client], [], [], 0)[0] and client.recv(65536):
                        pass
            except OSError:  # closed, or held up
                pass
        return begun

    def third(self, coordd):
        """What a third member of a job of two is told."""
        return self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="test", COORDD_NODE_SESSION=f"unix:{self.socket}",
                                         COORDD_MIN_WORKERS=2, COORDD_MAX_WORKERS=2)).answer()

    def test_calls_that_never_say_anything(self):
        coordd = self.coordd(*self.store)
        relay = self.relay(coordd)
        workers = self.behind(coordd, 2)
        with LiveJob(workers) as job:
            for reads in (True, False):
                with self.subTest(reads=reads):
                    self.flooded(reads)
                    met = job.met
                    self.assertTrue(wait_for(lambda met=met: job.met > met + 5), relay.text())
                    if not processes.SANITIZED:
                        self.assertLess(memory_mib(relay.pid, "VmHWM"), RELAY_MOST_MIB)
        self.assertEqual(job.answers, {"ok"})
        self.assertIn("sessions of workers, as many as it takes", relay.text())
        # Nor does coordd keep anything of it, and others find room again: what refuses this one is coordd.
        self.assertLess(memory_mib(coordd.pid, "VmHWM"), MOST_MIB)
        self.assertTrue(wait_for(lambda: "the job is full" in self.third(coordd)), relay.text())

    def test_what_many_workers_do_wrong_is_answered_and_ends_nobody(self):
        """A step of a program in which every rank has another shape: each tensor fails on each rank."""
        coordd = self.coordd(*self.store)
        self.relay(coordd)
        workers = self.behind(coordd, WRONG_WORKERS)
        for rank, worker in enumerate(workers):
            for number in range(WRONG_TENSORS):
                worker.tell(f"submit wrong.{number} float32 {rank + 1} 1")
        for worker in workers:
            self.assertEqual({worker.answer() for _ in range(WRONG_TENSORS)}, {"ok"})
        for worker in workers:
            for number in range(WRONG_TENSORS):
                worker.tell(f"wait wrong.{number}")
        for worker in workers:
            self.assertEqual({worker.answer().split()[0] for _ in range(WRONG_TENSORS)}, {"INVALID_ARGUMENT"})
        for worker in workers:
            worker.tell("barrier")
        self.assertEqual({worker.answer() for worker in workers}, {"ok"})

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
