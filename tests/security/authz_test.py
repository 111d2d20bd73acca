"""Who may call what, tried with real certificates: a tenant with a worker's certificate, other people's launchers, a viewer, and a
certificate of before there were roles."""

import json
import os
import socket
import unittest

from tests.support import processes
from tests.support.certificates import HAS_OPENSSL, Certificates
from tests.support.processes import Process, ScriptedWorker, clean_environment, program, wait_for
from tests.support.raw_http2 import Connection

# A worker that stays, of coordrun's.
WORKS = ["sh", "-c", f"sleep 100 | {os.path.join(processes.BUILD, 'tests', 'scripted_worker')}"]
DENIED = b"grpc-status\x017"  # PERMISSION_DENIED, as it is on the wire


class AuthzTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.tls = Certificates(os.path.join(self.folder, "tls"))
        self.daemon = self.coordd(*self.tls.server_flags())

    def token(self, text):
        path = os.path.join(self.folder, f"token-{text}")
        with open(path, "w", encoding="ascii") as out:
            out.write(text)
        os.chmod(path, 0o600)
        return path

    def job(self, name, stem="worker", count=2, token="secret", **variables):
        return self.workers(self.daemon, count, job=name, COORDD_TOKEN_FILE=self.token(token), **self.tls.variables(stem), **variables)

    def ask(self, stem, *arguments, token=None):
        return self.run_command(program("coordctl"), *arguments, "--coordinator", self.daemon.listen, *self.tls.flags(stem),
                                *(["--token-file", self.token(token)] if token else []))

    def may(self, stem, *arguments, **options):
        status, text = self.ask(stem, *arguments, **options)
        self.assertEqual(status, 0, text)
        return text

    def may_not(self, stem, *arguments, **options):
        status, text = self.ask(stem, *arguments, **options)
        self.assertEqual(status, 6, text)
        self.assertIn("may not", text)
        return text

    def join(self, job, stem, token="secret"):
        return self.start(ScriptedWorker(self.daemon.listen, COORDD_JOB_ID=job, COORDD_MIN_WORKERS=1, COORDD_MAX_WORKERS=1,
                                         COORDD_TOKEN_FILE=self.token(token), COORDD_JOIN_TIMEOUT=processes.PATIENCE_S,
                                         **self.tls.variables(stem)))

    def still_works(self, workers):
        for worker in workers:
            worker.tell("barrier")
        self.assertEqual({worker.answer() for worker in workers}, {"ok"})

    def test_a_worker_of_another_job_sees_and_ends_nothing(self):
        victims = self.job("train7", token="alice")
        mallory = "worker"  # the certificate that all workers have
        for command in (["status"], ["status", "train7"], ["jobs"], ["events"], ["events", "train7"], ["trace", "train7", "--seconds", "1"],
                        ["evict", "1", "--job", "train7", "--force"], ["evict", "node1", "--force"], ["drain", "0", "--job", "train7"]):
            self.assertNotIn(str(victims[0].pid), self.may_not(mallory, *command))
            self.may_not(mallory, *command, token="guess")
        self.still_works(victims)

    def test_nor_does_it_by_messages_of_its_own(self):
        victims = self.job("train7", token="alice")
        evict = b"\x0a\x06train7" + b"\x10\x01" + b"\x18\x01" + b"\x38\x01" + b"\x42\x0calice@login1"
        for path, message in (("/coordd.v1.Admin/GetState", b""), ("/coordd.v1.Admin/GetEvents", b""),
                              ("/coordd.v1.Admin/GetEvents", b"\x0a\x06train7"),
                              ("/coordd.v1.Admin/Trace", b"\x0a\x06train7\x10\x01"), ("/coordd.v1.Admin/Dismiss", evict)):
            client = Connection(self.daemon.listen, context=self.tls.context("worker"))
            self.assertIn(DENIED, client.answer(path, b"\0" + len(message).to_bytes(4, "big") + message), path)
            client.close()
        self.still_works(victims)

    def test_who_made_a_job_may_end_it_and_others_may_not(self):
        alice, bob = self.tls.add("launcher", "alice"), self.tls.add("launcher", "bob")
        train, other = self.job("train", alice, token="a"), self.job("other", bob, token="b")
        self.assertIn("train", self.may(alice, "jobs"))
        self.assertNotIn("other", self.may(alice, "jobs"))
        self.may_not(alice, "evict", "0", "--job", "other", "--force")
        self.may_not(alice, "events", "other")
        self.may_not(alice, "trace", "other", "--seconds", "1")
        self.assertIn("train", self.may(alice, "events", "train"))
        self.assertIn("it may do so for jobs of its own, and has named none", self.may_not(alice, "events"))
        self.may(alice, "evict", socket.gethostname(), "--force")  # of the only one that is hers
        self.still_works(other)
        self.assertIn("evicted", self.may("operator", "events", "train"))
        del train

    def test_the_token_of_a_job_makes_it_a_launchers_own(self):
        bob = self.tls.add("launcher", "bob")
        self.job("train", "worker", token="of-train")
        self.may_not(bob, "status", "train")
        self.may_not(bob, "status", "train", token="wrong")
        self.assertIn("train", self.may(bob, "status", "train", token="of-train"))
        self.may(bob, "evict", "1", "--job", "train", "--force", token="of-train")

    def test_a_viewer_looks_and_changes_nothing(self):
        viewer = self.tls.add("viewer", "grafana")
        workers = self.job("train")
        self.assertIn("train", self.may(viewer, "status"))
        self.assertIn("joined", self.may(viewer, "events", "train"))
        self.may_not(viewer, "evict", "0", "--job", "train", "--force")
        self.may_not(viewer, "trace", "train", "--seconds", "1")
        answer = self.join("other", viewer).answer()
        self.assertIn("PERMISSION_DENIED", answer)
        self.assertIn("viewer/grafana may not be a worker", answer)
        self.still_works(workers)

    def test_a_workers_certificate_is_for_its_job(self):
        stem = self.tls.add("worker", "train")
        self.job("train", stem, count=1)
        self.job("train.group-1f", stem, count=1)
        self.job("other", count=1, token="of-other")
        for job in ("train7", "other"):
            answer = self.join(job, stem, token="of-other").answer()
            self.assertIn("PERMISSION_DENIED", answer)
            self.assertIn("worker/train may not be a worker of job " + job, answer)
        self.assertIn("train", self.may(stem, "status", "train"))
        self.may_not(stem, "status", "other", token="of-other")

    def test_events_say_who_it_was_and_not_who_it_said_it_was(self):
        self.job("train")
        olga = self.tls.add("operator", "olga")
        status, text = self.run_command(program("coordctl"), "evict", "0", "--job", "train", "--force", "--coordinator", self.daemon.listen,
                                        *self.tls.flags(olga), environment=clean_environment(USER="alice"))
        self.assertEqual(status, 0, text)
        events = json.loads(self.may("operator", "events", "train", "--json"))["events"]
        evicted = [event["text"] for event in events if "evicted" in event["text"]]
        self.assertTrue(evicted)
        self.assertIn("operator/olga (which says: alice@", evicted[0])

    def test_state_tells_whose_a_job_is(self):
        self.job("train", self.tls.add("launcher", "alice"))
        self.assertEqual(json.loads(self.may("operator", "status", "--json"))["jobs"][0]["owner"], "launcher/alice")

    @unittest.skipUnless(HAS_OPENSSL, "no openssl here")
    def test_jobs_with_certificates_of_before_go_on_and_their_bearer_is_told_what_to_make(self):
        old = self.tls.add_by_hand("old")
        workers = self.job("train", old, token="t")
        self.still_works(workers)
        text = self.may_not(old, "status")
        self.assertIn("says no role", text)
        self.assertIn("coordctl certs DIR --role operator", text)
        self.may_not(old, "evict", "0", "--job", "train", "--force", token="t")
        self.assertIn("train", self.may(old, "status", "train", token="t"))
        # What it says is there.
        self.may("operator", "status")

    @unittest.skipUnless(HAS_OPENSSL, "no openssl here")
    def test_a_certificate_that_says_two_things_says_nothing(self):
        for stem, uris in (("both", ["coordd://worker/a", "coordd://operator/b"]), ("unknown", ["coordd://root/b"])):
            self.tls.add_by_hand(stem, *uris)
            status, text = self.ask(stem, "status")
            self.assertNotEqual(status, 0)
            self.assertIn("expected one of coordd://operator/NAME", text)
            self.assertIn("PERMISSION_DENIED", self.join("train", stem).answer())

    def test_coordrun_of_a_launcher_owns_its_job(self):
        alice, bob = self.tls.add("launcher", "alice"), self.tls.add("launcher", "bob")
        run = self.start(Process([program("coordrun"), "-np", "2", "--job", "mine", "--coordinator", self.daemon.listen,
                                  *self.tls.flags(alice), "--", *WORKS],
                                 clean_environment()))
        self.assertTrue(wait_for(lambda: "mine" in self.ask("operator", "jobs")[1]), run.text())
        self.assertTrue(wait_for(lambda: '"owner":"launcher/alice"' in self.may("operator", "status", "--json").replace(" ", "")))
        self.may_not(bob, "evict", "0", "--job", "mine", "--force")

    def test_a_run_has_certificates_of_its_own_for_each_role(self):
        runtime = os.path.join(self.folder, "runtime")
        os.mkdir(runtime, 0o700)
        environment = clean_environment(XDG_RUNTIME_DIR=runtime)
        self.start(Process([program("coordrun"), "-np", "2", "--job", "mine", "--node-sessions", "on", "--", *WORKS], environment))
        self.assertTrue(wait_for(lambda: "mine" in self.run_command(program("coordctl"), "jobs", environment=environment)[1]))
        status, text = self.run_command(program("coordctl"), "status", "--json", environment=environment)
        self.assertEqual(status, 0, text)
        self.assertEqual(json.loads(text)["node_sessions"], 1)


if __name__ == "__main__":
    processes.main()
