"""Members that are asked to leave, and members that are made to: the others go on."""

import json
import os
import pwd
import re
import signal

from tests.support import processes
from tests.support.processes import Process, clean_environment, program, wait_for


class DrainTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.stop = os.path.join(self.folder, "stop")

    def coordctl(self, coordd, *arguments, status=0):
        found, text = self.run_command(program("coordctl"), *arguments, "--coordinator", coordd.listen)
        self.assertEqual(found, status, text)
        return text

    def events(self, coordd, kind):
        events = json.loads(self.coordctl(coordd, "events", "test", "--json"))["events"]
        return [event for event in events if event["kind"] == kind]

    def training(self, coordd, count=3, **variables):
        """Members that step and commit."""
        workers = self.workers(coordd, count, min_workers=1, COORDD_ON_FAILURE="raise", **variables)
        for worker in workers:
            worker.tell(f"commits {self.stop}")
        for worker in workers:
            self.assertEqual(worker.answer(), "step 5")
        return workers

    def finish(self, workers, size):
        """Lets them come to their end; how many of their collectives have failed."""
        with open(self.stop, "w", encoding="ascii"):
            pass
        failed = []
        for worker in workers:
            how, _, found, failures = worker.answer().split()
            self.assertEqual((how, int(found)), ("ok", size))
            failed.append(int(failures))
        return failed

    def left(self, worker):
        """It has left by itself, no collective of it has failed, and its process ends well."""
        how, steps, _, failed = worker.answer().split()
        self.assertEqual((how, failed), ("left", "0"))
        self.assertGreaterEqual(int(steps), 5)
        worker.child.stdin.close()
        self.assertEqual(worker.wait(), 0, worker.text())

    def test_a_drained_worker_leaves_at_a_commit_and_no_collective_fails(self):
        coordd = self.coordd("--settling-window", "10m")
        workers = self.training(coordd)
        drained, others = workers[1], [workers[0], workers[2]]
        text = self.coordctl(coordd, "drain", "1", "--job", "test", "--grace", "600")
        self.assertRegex(text, rf"^rank 1 \(host \S+, pid {drained.pid}\) of job test is asked to leave at its next commit, within 10 min")
        self.left(drained)
        self.assertEqual(self.finish(others, 2), [0, 0])
        gone = self.events(coordd, "worker_departed")
        self.assertEqual([(event["cause"], event.get("warning", False)) for event in gone], [("drained", False)])
        self.assertRegex(gone[0]["text"], r"was drained: \S+@\S+ had asked it to leave")
        self.assertEqual(len(self.events(coordd, "drain_began")), 1)
        self.assertEqual(coordd.metric("coordd_departures_total", cause="drained"), 1)

    def test_rank_0_and_a_whole_node(self):
        coordd = self.coordd("--settling-window", "10m")
        workers = self.training(coordd, 4)
        self.coordctl(coordd, "drain", "0", "--job", "test")
        self.left(workers[0])
        self.assertTrue(wait_for(lambda: coordd.json("/v1/jobs")["jobs"][0]["generation"] == 2))
        # All of them are on this machine, and one has to be left.
        name = json.loads(self.coordctl(coordd, "status", "--json"))["jobs"][0]["workers"][0]["hostname"]
        text = self.coordctl(coordd, "drain", name, status=5)
        self.assertIn("only 0 workers of job test would be left, and it needs 1 (min_workers)", text)
        self.assertEqual(json.loads(self.coordctl(coordd, "drain", name, "--force", "--json"))["workers"][0]["rank"], 0)
        for worker in workers[1:]:
            self.left(worker)
        self.assertTrue(wait_for(lambda: self.events(coordd, "job_ended")))

    def test_an_evicted_worker_is_told_and_the_others_go_on(self):
        coordd = self.coordd("--settling-window", "10m")
        workers = self.training(coordd)
        evicted, others = workers[2], workers[:2]
        self.assertIn("of job test is evicted", self.coordctl(coordd, "evict", "2", "--job", "test"))
        text = evicted.answer()
        self.assertTrue(text.startswith("ABORTED "), text)
        self.assertRegex(text, r"this worker was evicted by \S+@\S+")
        self.finish(others, 2)
        gone = self.events(coordd, "worker_departed")
        self.assertEqual([(event["cause"], event["warning"]) for event in gone], [("evicted", True)])
        self.assertRegex(gone[0]["text"], rf"rank 2 \(host \S+, pid {evicted.pid}\) was evicted by \S+@")

    def test_whoever_does_not_leave_in_time_is_evicted(self):
        coordd = self.coordd("--settling-window", "10m")
        workers = self.workers(coordd, 2, min_workers=1, COORDD_ON_FAILURE="raise")
        self.coordctl(coordd, "drain", "1", "--job", "test", "--grace", "600")
        self.assertTrue(wait_for(lambda: float(workers[1].ask("drain-seconds").split()[1]) > 0))
        self.assertIn("may stay", self.coordctl(coordd, "drain", "1", "--job", "test", "--lift"))
        self.assertTrue(wait_for(lambda: float(workers[1].ask("drain-seconds").split()[1]) < 0))
        self.coordctl(coordd, "drain", "1", "--job", "test", "--grace", "0.2")
        self.assertTrue(wait_for(lambda: workers[1].ask("status").startswith("ABORTED ")))
        self.assertIn("was evicted: it had not left 200ms after ", workers[1].ask("status"))
        self.assertTrue(wait_for(lambda: workers[0].ask("status") != "ok"))
        self.assertEqual(workers[0].ask("next"), "ok 2 0 1")

    def test_a_process_may_ask_for_itself_and_coordd_may_be_started_again_meanwhile(self):
        store = os.path.join(self.folder, "state")
        coordd = self.coordd("--settling-window", "10m", "--store", f"sqlite:{store}")
        address = coordd.listen
        workers = self.workers(coordd, 3, min_workers=1, COORDD_ON_FAILURE="raise")
        self.coordctl(coordd, "drain", "1", "--job", "test", "--grace", "600")
        coordd.signal(signal.SIGKILL)
        coordd.wait()
        self.assertEqual(workers[2].ask("ask-to-leave 600"), "ok")
        coordd = self.coordd("--settling-window", "10m", "--store", f"sqlite:{store}", listen=address)
        # For a moment the new one has nothing to tell of the job.
        wait_for(lambda: self.run_command(program("coordctl"), "events", "test", "--coordinator", coordd.listen)[0] == 0)
        began = lambda: {event["text"].split(" (")[0] for event in self.events(coordd, "drain_began")}
        self.assertTrue(wait_for(lambda: began() == {"rank 1", "rank 2"}), self.coordctl(coordd, "events", "test"))
        for worker in workers:
            worker.tell(f"commits {self.stop}")
        self.left_early(workers[1])
        self.left_early(workers[2])
        self.assertEqual(workers[0].answer(), "step 5")
        self.finish(workers[:1], 1)

    def left_early(self, worker):
        how = worker.answer()
        if how == "step 5":
            how = worker.answer()
        self.assertTrue(how.startswith("left "), how)

    def test_what_cannot_be_is_one_sentence(self):
        coordd = self.coordd()
        self.assertIn("there is no job plain", self.coordctl(coordd, "drain", "0", "--job", "plain", status=4))
        self.workers(coordd, 2, job="plain")
        self.assertRegex(self.coordctl(coordd, "drain", "0", "--job", "plain", status=5),
                         "job plain ends for all 2 when a member goes .*coordrun --min-np.*nobody in it can be drained")
        self.assertIn("expected --force", self.coordctl(coordd, "evict", "0", "--job", "plain", status=5))
        self.assertIn("there is no job other", self.coordctl(coordd, "evict", "0", "--job", "other", status=4))
        self.assertIn("job plain has no rank 7: it has 2, from 0", self.coordctl(coordd, "evict", "7", "--job", "plain", status=4))
        self.assertIn("has no worker on a node moon", self.coordctl(coordd, "evict", "moon", status=4))
        self.workers(coordd, 1, job="second")
        self.assertIn("2 jobs are running (plain, second): expected the name of one (--job)",
                      self.coordctl(coordd, "evict", "moon", status=2))
        for command in ("evict", "drain"):
            self.assertIn("rank 0 is named without a job, and every job has one: expected --job NAME", self.coordctl(coordd, command, "0", status=2))
        self.coordctl(coordd, "drain", status=2)


class DrainUnderCoordrunTest(processes.TestCase):
    """The worker is digits --elastic: a program in C++ that leaves at a step."""

    def setUp(self):
        super().setUp()
        self.environment = clean_environment(TMPDIR=self.folder, XDG_RUNTIME_DIR=self.folder)

    def started(self, *arguments):
        command = f"echo pid $$; exec {program('digits')} --elastic --report-every 5 --epochs 100000"
        run = self.start(Process([program("coordrun"), *arguments, "--job", "shrinks", "--json", "--", "bash", "-c", command], self.environment))
        self.assert_says(run, r"\[0\] epoch +5 ")
        return run

    def assert_says(self, run, pattern):
        self.assertTrue(wait_for(lambda: re.search(pattern, run.text()) or not run.running()), run.text())
        self.assertRegex(run.text(), pattern)

    def pid_of(self, run, rank):
        return int(re.findall(rf"\[{rank}\] pid (\d+)", run.text())[-1])

    def test_sigterm_to_one_worker_is_no_failure_and_its_slot_stays_empty(self):
        run = self.started("-np", "3", "--min-np", "1", "--max-restarts", "5")
        os.kill(self.pid_of(run, 1), signal.SIGTERM)
        self.assert_says(run, r"rank 1 \(pid \d+\) was asked to leave and exited with status 0 after .*; 2 workers go on")
        self.assert_says(run, r": 2 workers go on after")
        # Killed, another one is started again; this one is not.
        os.kill(self.pid_of(run, 2), signal.SIGKILL)
        self.assert_says(run, r"rank 2 is started again")
        self.assertNotIn("rank 1 is started again", run.text())
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)
        summary = json.loads(run.text().splitlines()[-1])
        self.assertEqual(summary["drained"], [1])

    def test_drained_by_an_operator(self):
        run = self.started("-np", "3", "--min-np", "2")
        nameless = {name: value for name, value in self.environment.items() if name not in ("USER", "LOGNAME")}
        status, text = self.run_command(program("coordctl"), "drain", "0", "--job", "shrinks", environment=nameless)
        self.assertEqual(status, 0, text)
        status, text = self.run_command(program("coordctl"), "events", environment=self.environment)
        self.assertIn(f"by operator/owner (which says: {pwd.getpwuid(os.geteuid()).pw_name}@", text)
        self.assert_says(run, r"rank 0 \(pid \d+\) was asked to leave and exited with status 0")
        status, text = self.run_command(program("coordctl"), "drain", "0", "--job", "shrinks", environment=self.environment)
        self.assertEqual(status, 5, text)
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)


if __name__ == "__main__":
    processes.main()
