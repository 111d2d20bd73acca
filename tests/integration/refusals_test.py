"""What coordd refuses, in one sentence, and what refusing costs the others: nothing."""

import os
import random
import socket

from tests.support import processes
from tests.support.processes import ScriptedWorker, wait_for


class RefusalsTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.daemon = self.coordd()

    def token_file(self, token):
        path = os.path.join(self.folder, f"token-{token}")
        with open(path, "w", encoding="ascii") as out:
            out.write(token)
        os.chmod(path, 0o600)
        return path

    def refused(self, worker_id=None, **variables):
        """The one line with which a worker that cannot join ends."""
        variables = {"COORDD_JOB_ID": "test", "COORDD_MIN_WORKERS": 2, "COORDD_MAX_WORKERS": 2,
                     "COORDD_JOIN_TIMEOUT": 20, **variables}
        worker = self.start(ScriptedWorker(self.daemon.listen, worker_id, **variables))
        line = worker.answer()
        self.assertFalse(line.startswith("ok"), line)
        self.assertEqual(worker.wait(), 3)
        return line

    def assert_works(self, workers, name):
        for worker in workers:
            self.assertEqual(worker.ask(f"submit {name} int32 10 5"), "ok")
        for worker in workers:
            self.assertEqual(worker.ask(f"wait {name}"), f"ok {5 * len(workers)} {5 * len(workers)}")

    def test_mismatched_shape_is_an_error_on_every_rank_and_the_job_goes_on(self):
        workers = self.workers(self.daemon, 3)
        for worker, count in zip(workers, (3, 4, 3)):
            self.assertEqual(worker.ask(f"submit grad float32 {count} 1"), "ok")
        for worker in workers:
            text = worker.ask("wait grad")
            self.assertTrue(text.startswith("INVALID_ARGUMENT "), text)
            self.assertIn("grad", text)
            self.assertIn("rank 1", text)
            self.assertIn("[3]", text)
            self.assertIn("[4]", text)
        self.assert_works(workers, "grad")

    def test_mismatched_dtype_and_op(self):
        workers = self.workers(self.daemon, 2)
        for name, first, second, expected in (("a", "float32 2 1", "float64 2 1", ("float32", "float64")),
                                              ("b", "float32 2 1 sum", "float32 2 1 max", ("sum", "max"))):
            workers[0].ask(f"submit {name} {first}")
            workers[1].ask(f"submit {name} {second}")
            for worker in workers:
                text = worker.ask(f"wait {name}")
                self.assertTrue(text.startswith("INVALID_ARGUMENT "), text)
                for word in expected:
                    self.assertIn(word, text)
        self.assert_works(workers, "c")

    def test_a_name_that_is_pending_here(self):
        workers = self.workers(self.daemon, 2)
        self.assertEqual(workers[0].ask("submit grad float32 1 1"), "ok")
        self.assertTrue(workers[0].ask("submit grad float32 1 1").startswith("ALREADY_EXISTS "))

    def test_the_same_worker_twice(self):
        first = self.start(ScriptedWorker(self.daemon.listen, "twin", COORDD_JOB_ID="test", COORDD_MIN_WORKERS=2,
                                          COORDD_MAX_WORKERS=2))
        self.assertTrue(wait_for(lambda: "twin" in self.daemon.get("/v1/jobs")))
        text = self.refused("twin")
        self.assertTrue(text.startswith("ALREADY_EXISTS "), text)
        self.assertIn("twin", text)
        second = self.start(ScriptedWorker(self.daemon.listen, "other", COORDD_JOB_ID="test", COORDD_MIN_WORKERS=2,
                                           COORDD_MAX_WORKERS=2))
        self.assert_works([first.joined(), second.joined()], "a")

    def test_a_job_that_is_full(self):
        workers = self.workers(self.daemon, 2)
        text = self.refused()
        self.assertTrue(text.startswith("RESOURCE_EXHAUSTED "), text)
        self.assert_works(workers, "a")

    def test_the_wrong_token(self):
        workers = self.workers(self.daemon, 2, COORDD_TOKEN_FILE=self.token_file("right"))
        for variables in ({"COORDD_TOKEN_FILE": self.token_file("wrong")}, {}):
            text = self.refused(**variables)
            self.assertTrue(text.startswith("UNAUTHENTICATED "), text)
            self.assertNotIn("right", text)
        self.assert_works(workers, "a")

    def test_limits_that_do_not_fit_the_job(self):
        workers = self.workers(self.daemon, 2)
        text = self.refused(COORDD_MIN_WORKERS=3, COORDD_MAX_WORKERS=3)
        self.assertTrue(text.startswith(("FAILED_PRECONDITION ", "RESOURCE_EXHAUSTED ")), text)
        self.assert_works(workers, "a")

    def test_a_coordinator_that_is_not_there(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            worker = self.start(ScriptedWorker(f"127.0.0.1:{port}", COORDD_JOIN_TIMEOUT=2))
            text = worker.answer()
            self.assertTrue(text.startswith(("UNAVAILABLE ", "DEADLINE_EXCEEDED ")), text)
            self.assertIn(str(port), text)

    def test_too_few_workers_says_how_many_came(self):
        # On a busy machine a worker may not be one of them before its time is over: then the sentence is another one.
        for seconds in (1, 2, 4, 8, 16, 32):
            worker = self.start(ScriptedWorker(self.daemon.listen, COORDD_JOB_ID="test", COORDD_MIN_WORKERS=3,
                                               COORDD_MAX_WORKERS=3, COORDD_JOIN_TIMEOUT=seconds))
            text = worker.answer()
            self.assertTrue(text.startswith("DEADLINE_EXCEEDED "), text)
            if "1 of at least 3" in text:
                return
        self.fail(text)

    def test_garbage_on_the_port_disturbs_nobody(self):
        workers = self.workers(self.daemon, 2)
        chance = random.Random(1)
        host, port = self.daemon.listen.rsplit(":", 1)
        open_ones = []
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, bytes(chance.randrange(256) for _ in range(100000)),
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(chance.randrange(256) for _ in range(10000)), b""):
            connection = socket.create_connection((host, int(port)), 10)
            self.addCleanup(connection.close)
            try:
                connection.sendall(garbage)
            except OSError:
                pass  # coordd may hang up while we talk
            open_ones.append(connection)
        self.assert_works(workers, "a")
        self.assertEqual(self.daemon.get("/healthz").strip(), "ok")

    def test_after_fork_a_child_cannot_use_the_worker_and_the_parent_still_can(self):
        workers = self.workers(self.daemon, 2)
        text = workers[0].ask("fork")
        self.assertTrue(text.startswith("FAILED_PRECONDITION "), text)
        self.assert_works(workers, "a")


if __name__ == "__main__":
    processes.main()
