"""What one tenant can take of coordd: beyond its share it hears so by a sentence, and the jobs of others go on."""

import os
import signal
import struct
import unittest

from tests.security.http2_test import LiveJob, memory_mib
from tests.support import processes
from tests.support.certificates import HAS_OPENSSL, Certificates
from tests.support.raw_http2 import DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS, Connection, call_headers, field, framed

BYTES = 1 << 20  # of a job, and what two jobs of one owner may have together
VALUE = "v" * 60000
NAMES = 20000  # more than fit
REFUSED = "RESOURCE_EXHAUSTED"
UNREAD = 600  # of which each has 240,000 bytes: twice what a caller may leave unread


class TenantTest(processes.TestCase):
    def tenant(self, coordd, count=2, job="tenant", **variables):
        return self.workers(coordd, count, job=job, **variables)

    def token(self):
        path = os.path.join(self.folder, "token")
        with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
            out.write("secret")
        return path

    def names_until_refused(self, worker):
        """Names tensors that nobody else does. What refused one of them."""
        for number in range(NAMES):
            worker.tell(f"submit {'n' * 400}{number} float32 1 1")
            answer = worker.answer()
            if answer != "ok":
                return answer
        for number in reversed(range(NAMES)):  # it was told later; the first ones still wait
            worker.tell(f"wait {'n' * 400}{number}")
            answer = worker.answer()
            if not answer.startswith("ok"):
                return answer
        self.fail(f"{NAMES} names were taken")

    def stores_until_refused(self, worker, first=""):
        for number in range(2 * BYTES // len(VALUE)):
            worker.tell(f"put {first}k{number} {VALUE}")
            answer = worker.answer()
            if answer != "ok":
                return number, answer
        self.fail("everything was taken")

    def assert_others_go_on(self, job):
        met = job.met
        self.assertTrue(processes.wait_for(lambda: job.met > met + 2))

    def test_names_that_nobody_else_submits(self):
        coordd = self.coordd("--max-pending-bytes-per-job", str(BYTES))
        with LiveJob(self.workers(coordd, 2, job="live")) as live:
            before = memory_mib(coordd.pid)
            answer = self.names_until_refused(self.tenant(coordd)[0])
            self.assertIn(REFUSED, answer)
            self.assertRegex(answer, "pending")
            self.assert_others_go_on(live)
            if not processes.SANITIZED:
                self.assertLess(memory_mib(coordd.pid, "VmHWM") - before, 64)
        self.assertEqual(live.answers, {"ok"})

    def test_names_that_come_all_at_once_are_refused_too(self):
        """To a coordd that was held up: each has an answer of its own, however many there are in one turn."""
        coordd = self.coordd("--max-pending-bytes-per-job", str(BYTES))
        worker = self.tenant(coordd)[0]
        coordd.signal(signal.SIGSTOP)
        for number in range(NAMES):
            worker.tell(f"submit {'n' * 400}{number} float32 1 1")
        self.assertEqual({worker.answer() for _ in range(NAMES)}, {"ok"})
        coordd.signal(signal.SIGCONT)
        for number in range(NAMES // 2, NAMES, 1000):
            answer = worker.ask(f"wait {'n' * 400}{number}")
            self.assertIn(REFUSED, answer)
            self.assertRegex(answer, "pending")

    def test_values_beyond_a_jobs_share_are_refused_until_others_are_deleted(self):
        coordd = self.coordd("--max-store-bytes-per-job", str(BYTES))
        with LiveJob(self.workers(coordd, 2, job="live")) as live:
            worker = self.tenant(coordd, 1)[0]
            stored, answer = self.stores_until_refused(worker)
            self.assertIn(REFUSED, answer)
            self.assertIn("job tenant stores", answer)
            self.assertGreater(stored, BYTES // len(VALUE) // 2)
            self.assertEqual(live.workers[0].ask(f"put own {VALUE}"), "ok")
            self.assertEqual(worker.ask("drop k0"), "ok")
            self.assertEqual(worker.ask(f"put again {VALUE}"), "ok")
            self.assert_others_go_on(live)
        self.assertEqual(live.answers, {"ok"})

    def test_answers_that_nobody_reads_are_refused_beyond_a_callers_share(self):
        coordd = self.coordd()
        with LiveJob(self.workers(coordd, 2, job="live")) as live:
            worker = self.tenant(coordd, 1, COORDD_TOKEN_FILE=self.token())[0]
            for number in range(4):
                self.assertEqual(worker.ask(f"put k{number} {VALUE}"), "ok")
            before = memory_mib(coordd.pid)
            client = Connection(coordd.listen, seconds=processes.PATIENCE_S).greeted()
            client.send(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))  # no window: nothing is read
            caller = field(1, field(1, b"tenant") + field(2, b"secret"))
            keys = b"".join(field(2, f"program/k{number}".encode()) for number in range(4))
            look = framed(caller + keys + b"\x18\x01")
            for stream in range(1, 2 * UNREAD, 2):
                client.send(HEADERS, END_HEADERS, stream, call_headers("/coordd.v1.Store/Look", grpc_timeout="60S"))
                client.send(DATA, END_STREAM, stream, look)
            # What needs no window: the ends of calls that have no answer.
            refused = next((payload for kind, flags, payload in client.frames() if kind == HEADERS and flags & END_STREAM), b"")
            self.assertIn(b"has not read", refused)
            self.assert_others_go_on(live)
            if not processes.SANITIZED:
                self.assertLess(memory_mib(coordd.pid, "VmHWM") - before, 384)
            client.close()
        self.assertEqual(live.answers, {"ok"})

    @unittest.skipUnless(HAS_OPENSSL, "there is no openssl")
    def test_an_owner_has_one_share_in_all_jobs_and_others_have_theirs(self):
        certificates = Certificates(os.path.join(self.folder, "tls"))
        owners = {name: {**certificates.variables(certificates.add("worker", name)), "COORDD_TOKEN_FILE": self.token()}
                  for name in ("alice", "bob")}
        coordd = self.coordd(*certificates.server_flags(), "--max-bytes-per-owner", str(BYTES))
        first, second = (self.tenant(coordd, 1, job=f"alice.{number}", **owners["alice"])[0] for number in range(2))
        other = self.tenant(coordd, 1, job="bob", **owners["bob"])[0]
        _, answer = self.stores_until_refused(first)
        self.assertIn(REFUSED, answer)
        self.assertIn("the jobs of the owner of job alice.0 take", answer)
        self.assertIn(REFUSED, second.ask(f"put k {VALUE}"))
        self.assertEqual(other.ask(f"put k {VALUE}"), "ok")
        # Those who look after coordd find who it was, and from where.
        self.assertIn(REFUSED, self.names_until_refused(self.tenant(coordd, 2, job="alice.2", **owners["alice"])[0]))
        self.assertRegex(coordd.text(), r"job alice\.2: .*more than this coordd keeps.* \(worker/alice at [^ ]*127\.0\.0\.1:")


if __name__ == "__main__":
    processes.main()
