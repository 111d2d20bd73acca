"""coordd that dies again and again under a running job, or stands still: no result is wrong or lost, and nobody is a new
member."""

import os
import signal
import time

from tests.support import processes
from tests.support.processes import wait_for


class ResumeTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.store = ("--store", f"sqlite:{os.path.join(self.folder, 'state')}")

    def again(self, coordd, *arguments):
        """Another coordd where this one was."""
        return self.coordd(*self.store, *arguments, listen=coordd.listen)

    def job(self, coordd):
        jobs = coordd.json("/v1/jobs")["jobs"]
        self.assertEqual(len(jobs), 1, jobs)
        return jobs[0]

    def goes_on(self, coordd, size):
        """All ranks are back in generation 1, and have said since that they live."""
        # First what it says: one that was stopped still counts as running until it has noticed.
        self.assertTrue(wait_for(lambda: "generation 1 goes on: all" in coordd.text()), coordd.text())
        self.assertTrue(wait_for(lambda: self.job(coordd)["phase"] == "running"), coordd.text())
        job = self.job(coordd)
        self.assertEqual((job["generation"], job["joined"]), (1, size))

    def stop_file(self, name):
        path = os.path.join(self.folder, name)
        return path, lambda: open(path, "w", encoding="ascii").close()

    def kill(self, coordd):
        coordd.signal(signal.SIGKILL)
        coordd.wait()

    def test_a_job_does_not_notice_that_coordd_is_killed_five_times(self):
        coordd = self.coordd(*self.store)
        workers = self.workers(coordd, 4)
        for kind, schedules in (("", True), ("unique", False)):
            path, stop = self.stop_file("stop" + kind)
            for worker in workers:
                worker.tell(f"steps {path} {kind}")
            if schedules:
                self.assertTrue(wait_for(lambda: self.job(coordd)["schedules"] > 0), coordd.text())
            for _ in range(5):
                self.kill(coordd)
                coordd = self.again(coordd)
                self.goes_on(coordd, 4)
                # In force still; or again, where a rank was silent for too long on a busy machine.
                if schedules:
                    self.assertTrue(wait_for(lambda: self.job(coordd)["schedules"] > 0), coordd.text())
            stop()
            answers = {worker.answer() for worker in workers}
            self.assertEqual(len(answers), 1, answers)
            self.assertRegex(answers.pop(), r"^ok \d+$")
        self.assertEqual(coordd.json("/v1/jobs")["epoch"], 11)
        for worker in workers:
            worker.tell("leave")
        self.assertEqual([worker.answer() for worker in workers], ["ok"] * 4)

    def test_who_loses_patience_with_a_stopped_coordd_comes_back_to_it(self):
        lease = ("--lease", "2s", "--heartbeat-interval", "400ms")
        coordd = self.coordd(*self.store, *lease)
        workers = self.workers(coordd, 3)
        path, stop = self.stop_file("stop")
        for worker in workers:
            worker.tell(f"steps {path} unique")
        coordd.signal(signal.SIGSTOP)
        time.sleep(5)  # all have lost it by then
        coordd.signal(signal.SIGCONT)
        self.goes_on(coordd, 3)
        stop()
        answers = {worker.answer() for worker in workers}
        self.assertEqual(len(answers), 1, answers)
        self.assertRegex(answers.pop(), r"^ok \d+$")
        self.assertEqual(coordd.json("/v1/jobs")["epoch"], 1)

    def test_a_rank_that_does_not_come_back_is_named(self):
        lease = ("--lease", "2s", "--heartbeat-interval", "400ms")
        coordd = self.coordd(*self.store, *lease)
        workers = self.workers(coordd, 3)
        for worker in workers[:2]:
            worker.tell("submit a float32 2 1")
            self.assertEqual(worker.answer(), "ok")
        self.kill(coordd)
        workers[2].signal(signal.SIGKILL)
        workers[2].wait()
        coordd = self.again(coordd, *lease, "--resume-grace", "2s")
        for worker in workers[:2]:
            answer = worker.ask("wait a")
            self.assertIn("ABORTED", answer)
            self.assertIn("rank 2 (host", answer)
            self.assertIn(f"pid {workers[2].pid}) was lost", answer)

    def test_an_upgrade_is_no_end_and_a_plain_stop_is(self):
        coordd = self.coordd(*self.store)
        workers = self.workers(coordd, 2)
        coordd.signal(signal.SIGUSR1)
        self.assertEqual(coordd.wait(), 0, coordd.text())
        workers[0].tell("submit a float32 2 1")
        workers[1].tell("submit a float32 2 2")
        coordd = self.again(coordd)
        for worker in workers:
            self.assertEqual(worker.answer(), "ok")
            self.assertEqual(worker.ask("wait a"), "ok 3 3")
        self.goes_on(coordd, 2)
        coordd.signal(signal.SIGTERM)
        self.assertEqual(coordd.wait(), 0, coordd.text())
        # Whom its last words did not reach hears it from the next one.
        self.again(coordd)
        for worker in workers:
            self.assertIn("generation 1 ended", worker.ask("barrier"))

    def test_what_nobody_remembers_nobody_resumes(self):
        coordd = self.coordd("--store", "memory")
        workers = self.workers(coordd, 1)
        self.kill(coordd)
        self.assertTrue(wait_for(lambda: "ok" != workers[0].ask("status")))
        said = workers[0].ask("status")
        self.assertIn("the connection to coordd has ended", said)
        self.assertIn("COORDD_RESUME_TIMEOUT is not waited for", said)

    def test_another_state_is_not_taken_for_this_one(self):
        coordd = self.coordd(*self.store)
        workers = self.workers(coordd, 1)
        self.kill(coordd)
        self.store = ("--store", f"sqlite:{os.path.join(self.folder, 'another')}")
        self.again(coordd)
        self.assertTrue(wait_for(lambda: "ok" != workers[0].ask("status")))
        self.assertIn("coordd does not take this rank back", workers[0].ask("status"))


if __name__ == "__main__":
    processes.main()
