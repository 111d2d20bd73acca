"""What the audit log and the events still know after somebody has tried to flush them."""

import json
import os
import re
import stat

from tests.support import processes
from tests.support.certificates import Certificates
from tests.support.processes import ScriptedWorker, program, wait_for
from tests.support.raw_http2 import Connection


def field(tag, value):
    """A field of a message of protobuf: a number, text, or another message's bytes."""
    if isinstance(value, int):
        return varint(tag << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(tag << 3 | 2) + varint(len(value)) + value


def varint(value):
    out = b""
    while value >= 128:
        out, value = out + bytes([value % 128 | 128]), value // 128
    return out + bytes([value])


def join_message(job, token, worker):
    host = field(1, "host") + field(2, "node")
    join = field(1, job) + field(2, token) + field(3, worker) + field(4, host) + field(5, 1) + field(9, field(1, 1))
    message = field(10, join)
    return b"\0" + len(message).to_bytes(4, "big") + message


class AuditTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.log = os.path.join(self.folder, "audit.log")

    def entries(self):
        with open(self.log, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def refused_joins(self, coordd, count, context=None):
        """So many with a wrong token."""
        client = Connection(coordd.listen, context=context)
        for i in range(count):
            client.answer("/coordd.v1.Coordinator/Session", join_message("train", "guess", f"w{i}"))
        client.close()

    def test_refused_joins_flush_neither_events_nor_the_audit_log(self):
        coordd = self.coordd("--audit-log", self.log)
        token = os.path.join(self.folder, "token")
        with open(token, "w", encoding="ascii") as out:
            out.write("secret")
        os.chmod(token, 0o600)
        self.workers(coordd, 2, job="train", min_workers=1, COORDD_TOKEN_FILE=token, COORDD_ON_FAILURE="raise")
        status, text = self.run_command(program("coordctl"), "evict", "1", "--job", "train", "--force", "--coordinator", coordd.listen)
        self.assertEqual(status, 0, text)
        self.refused_joins(coordd, 9000)
        self.assertEqual(coordd.metric("coordd_join_refusals_total"), 9000)
        events = coordd.json("/v1/events")
        self.assertEqual(events.get("forgotten", 0), 0)
        self.assertTrue(any("evicted" in event["text"] for event in events["events"]))
        self.assertLess(len(events["events"]), 200)
        self.assertTrue(wait_for(lambda: any(entry["code"] == "UNAUTHENTICATED" for entry in self.entries())))
        entries = self.entries()
        self.assertEqual([entry["what"] for entry in entries][0], "begins the job")
        self.assertIn("evict rank 1", [entry for entry in entries if entry["call"] == "Dismiss"][0]["what"])
        self.assertLess(len(entries), 40)
        self.assertEqual(stat.S_IMODE(os.stat(self.log).st_mode), 0o600)

    def test_it_says_who_has_tried_what(self):
        tls = Certificates(os.path.join(self.folder, "tls"))
        coordd = self.coordd(*tls.server_flags(), "--audit-log", self.log)
        self.workers(coordd, 2, job="train", **tls.variables("worker"))
        bob = tls.add("launcher", "bob")
        for stem, command in ((bob, ["evict", "0", "--job", "train", "--force"]), ("operator", ["evict", "1", "--job", "train", "--force"])):
            self.run_command(program("coordctl"), *command, "--coordinator", coordd.listen, *tls.flags(stem))
        self.assertTrue(wait_for(lambda: sum(entry["call"] == "Dismiss" for entry in self.entries()) == 2))
        begun, refused, done = [entry for entry in self.entries() if entry["call"] in ("Session", "Dismiss")]
        self.assertEqual((begun["role"], begun["name"], begun["what"]), ("worker", "*", "begins the job"))
        self.assertEqual((refused["role"], refused["name"], refused["code"]), ("launcher", "bob", "PERMISSION_DENIED"))
        self.assertIn("evict rank 0, by force", refused["what"])
        self.assertEqual((done["role"], done["job"], done["code"]), ("operator", "train", "OK"))
        self.assertIn("127.0.0.1:", done["peer"])
        self.assertEqual(coordd.metric("coordd_calls_denied_total", call="Dismiss", role="launcher"), 1)

    def token_file(self, token):
        path = os.path.join(self.folder, "token-" + token)
        with open(path, "w", encoding="ascii") as out:
            out.write(token)
        os.chmod(path, 0o600)
        return path

    def test_a_refused_call_is_a_line_of_the_log_with_its_address(self):
        tls = Certificates(os.path.join(self.folder, "tls"))
        coordd = self.coordd(*tls.server_flags(), "--audit-log", self.log)
        self.workers(coordd, 2, job="train", COORDD_TOKEN_FILE=self.token_file("right"), **tls.variables("worker"))
        bob = tls.add("launcher", "bob")
        self.run_command(program("coordctl"), "evict", "0", "--job", "train", "--force", "--coordinator", coordd.listen, *tls.flags(bob))
        said = r"a call of Dismiss was refused: .*launcher/bob at ipv4:127\.0\.0\.1:\d+"
        self.assertTrue(wait_for(lambda: re.search(said, coordd.text())), coordd.text())
        self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="train", COORDD_TOKEN_FILE=self.token_file("wrong"), **tls.variables("worker")))
        said = r"job train: .*token.* \(worker/\* at ipv4:127\.0\.0\.1:\d+\)"
        self.assertTrue(wait_for(lambda: re.search(said, coordd.text())), coordd.text())

    def test_a_file_that_cannot_be_written_is_said_at_once(self):
        status, text = self.run_command(program("coordd"), "--listen", "127.0.0.1:0", "--http", "off", "--store", "memory", "--audit-log",
                                        os.path.join(self.folder, "none", "audit.log"))
        self.assertEqual(status, 3, text)
        self.assertIn("audit log", text)


if __name__ == "__main__":
    processes.main()
