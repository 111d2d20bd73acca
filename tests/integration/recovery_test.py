"""Jobs that outlive a worker: kill -9, and the others go on in the next generation."""

import json
import os
import re
import signal
import tempfile

from tests.support import processes
from tests.support.processes import ScriptedWorker, program, wait_for

STEPS = 60


class RecoveryTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        # All are in the first generation, however long their processes take to start.
        self.daemon = self.coordd("--settling-window", "10m")

    def members(self, count, on_failure, **variables):
        return self.workers(self.daemon, count, min_workers=2, COORDD_ON_FAILURE=on_failure, **variables)

    def train(self, workers, count=200_000, steps=STEPS, until=""):
        for worker in workers:
            worker.tell(f"train grad {count} {steps} {until}")
        for worker in workers:
            self.assertEqual(worker.answer(), "step 5")

    def next_of(self, worker, size):
        """Goes on to the generation of so many workers; its rank there."""
        while True:
            status, _, rank, found = worker.ask("next").split()
            self.assertEqual(status, "ok")
            if int(found) == size:
                return int(rank)
            self.assertTrue(wait_for(lambda: worker.ask("status") != "ok"))

    def assert_changed(self, worker, victim, text=None):
        text = text or worker.answer()
        self.assertTrue(text.startswith("changed "), text)
        self.assertIn(f"rank {victim.rank}", text)
        self.assertIn(f"pid {victim.pid}", text)
        self.assertIn("lost", text)

    def test_raise_a_killed_worker_is_an_error_and_the_others_go_on(self):
        workers = self.members(4, "raise")
        self.train(workers, until="change")
        victim, others = workers[1], [workers[0], *workers[2:]]
        victim.signal(signal.SIGKILL)
        for worker in others:
            self.assert_changed(worker, victim)
        answers = {worker.answer() for worker in others}
        self.assertEqual(len(answers), 1, answers)
        status, steps, generation, size = answers.pop().split()
        self.assertEqual((status, generation, size), ("ok", "2", "3"))
        self.assertGreaterEqual(int(steps), 4 + STEPS)
        # Rank 0 again, and the others have moved up.
        self.assertEqual([worker.ask("next") for worker in others], ["ok 2 0 3", "ok 2 1 3", "ok 2 2 3"])
        job = self.daemon.json("/v1/jobs")["jobs"][0]
        self.assertEqual(len(job["workers"]), 3)
        for worker in others:
            self.assertEqual(worker.ask("leave"), "ok")
        self.assertTrue(wait_for(lambda: self.daemon.metric("coordd_members") in (0, None)))

    def test_raise_one_after_the_other_and_one_that_comes_back(self):
        workers = self.members(4, "raise")
        self.train(workers, steps=10)
        for worker in workers:
            self.assertEqual(worker.answer(), "ok 10 1 4")
        # Two at once, rank 0 among them.
        first, second, others = workers[0], workers[3], workers[1:3]
        first.signal(signal.SIGKILL)
        second.signal(signal.SIGKILL)
        for worker in others:
            self.assertTrue(wait_for(lambda worker=worker: "lost" in worker.ask("status")))
            self.assertTrue(worker.ask("status").startswith("GENERATION_CHANGED generation 1 ended: "))
        # What was not acknowledged goes on being an error.
        text = others[0].ask("submit late float32 1 1")
        self.assertTrue(text.startswith("GENERATION_CHANGED "), text)
        # The second one may have been there when the next generation formed.
        self.assertEqual([self.next_of(worker, 2) for worker in others], [0, 1])
        # Below min_workers, the last one waits, until somebody comes.
        others[1].signal(signal.SIGKILL)
        last = others[0]
        self.assertTrue(wait_for(lambda: last.ask("status") != "ok"))
        fresh = self.start(ScriptedWorker(self.daemon.listen, COORDD_JOB_ID="test", COORDD_MIN_WORKERS=2,
                                          COORDD_MAX_WORKERS=4, COORDD_ON_FAILURE="raise",
                                          COORDD_JOIN_TIMEOUT=processes.PATIENCE_S))
        self.assertEqual(self.next_of(last, 2), 0)
        fresh.joined()
        self.assertEqual(fresh.rank, 1)
        for worker in (last, fresh):
            self.assertEqual(worker.ask("submit x float32 10 1"), "ok")
        for worker in (last, fresh):
            self.assertEqual(worker.ask("wait x"), "ok 2 2")
        # A goodbye is the end for all.
        self.assertEqual(fresh.ask("leave"), "ok")
        self.assertTrue(wait_for(lambda: "left" in last.ask("status")))
        self.assertTrue(last.ask("next").startswith("ABORTED "))

    def ask_all(self, workers, command):
        for worker in workers:
            worker.tell(command)
        return [worker.answer() for worker in workers]

    def go_on(self, workers):
        """They are all that is left of the last generation."""
        for worker in workers:
            self.assertTrue(wait_for(lambda worker=worker: worker.ask("status") != "ok"))
        for rank, worker in enumerate(workers):
            self.assertEqual(self.next_of(worker, len(workers)), rank)
            worker.place["rank"] = rank

    def reduce_in(self, number, workers):
        """Each gives 10 to the power of its rank."""
        for worker in workers:
            self.assertEqual(worker.ask(f"submit x float32 1000 {10 ** worker.rank} sum 60 {number}"), "ok")
        total = sum(10 ** worker.rank for worker in workers)
        self.assertEqual([worker.ask("wait x") for worker in workers], [f"ok {total} {total}"] * len(workers))

    def test_process_sets_survive_with_their_numbers_and_those_who_are_left(self):
        workers = self.members(4, "raise")
        self.assertEqual(self.ask_all(workers, "addset 0 1 3"), ["ok 1"] * 4)
        self.assertEqual(self.ask_all(workers, "addset 1 2"), ["ok 2"] * 4)
        self.assertEqual(self.ask_all(workers, "addset 1"), ["ok 3"] * 4)
        self.reduce_in(1, [workers[0], workers[1], workers[3]])
        self.reduce_in(2, workers[1:3])
        # What is pending in a set fails, as everything does.
        self.assertEqual(workers[0].ask("submit pending float32 10 1 sum 60 1"), "ok")
        victim, others = workers[1], [workers[0], *workers[2:]]
        victim.signal(signal.SIGKILL)
        self.assertTrue(workers[0].ask("wait pending").startswith("GENERATION_CHANGED "))
        self.go_on(others)
        self.assertEqual(self.ask_all(others, "sets"), ["ok 1:0,2 2:1"] * 3)
        self.reduce_in(1, [others[0], others[2]])
        self.reduce_in(2, [others[1]])
        text = others[0].ask("submit x float32 10 1 sum 60 3")
        self.assertRegex(text, "INVALID_ARGUMENT .*process set 3: has ended, since none of its ranks is left")
        # And once more, until one is left, who is below min_workers; then a newcomer, who is in none of them.
        others[0].signal(signal.SIGKILL)
        self.go_on(others[1:])
        self.assertEqual(self.ask_all(others[1:], "sets"), ["ok 1:1 2:0"] * 2)
        others[1].signal(signal.SIGKILL)
        last = others[2]
        self.assertTrue(wait_for(lambda: last.ask("status") != "ok"))
        fresh = self.start(ScriptedWorker(self.daemon.listen, COORDD_JOB_ID="test", COORDD_MIN_WORKERS=2,
                                          COORDD_MAX_WORKERS=4, COORDD_ON_FAILURE="raise",
                                          COORDD_JOIN_TIMEOUT=processes.PATIENCE_S))
        both = [last, fresh]
        self.assertEqual(self.next_of(last, 2), 0)
        fresh.joined()
        self.assertEqual(self.ask_all(both, "sets"), ["ok 1:0"] * 2)
        # Sets come and go with all, and no number comes again.
        self.assertEqual(self.ask_all(both, "addset 1"), ["ok 4"] * 2)
        self.reduce_in(4, [fresh])
        self.assertEqual(self.ask_all(both, "removeset 1"), ["ok"] * 2)
        self.assertEqual(self.ask_all(both, "sets"), ["ok 4:1"] * 2)

    def test_process_sets_survive_also_where_coordd_dies_with_the_worker(self):
        durable = ("--store", f"sqlite:{os.path.join(self.folder, 'state')}", "--settling-window", "10m",
                   "--lease", "5s", "--resume-grace", "1s")
        coordd = self.coordd(*durable)
        workers = self.workers(coordd, 4, min_workers=2, COORDD_ON_FAILURE="raise")
        self.assertEqual(self.ask_all(workers, "addset 0 1 3"), ["ok 1"] * 4)
        self.assertEqual(self.ask_all(workers, "addset 1"), ["ok 2"] * 4)
        self.assertEqual(self.ask_all(workers, "addset 2 3"), ["ok 3"] * 4)
        self.assertEqual(self.ask_all(workers, "removeset 3"), ["ok"] * 4)
        coordd.signal(signal.SIGKILL)
        workers[1].signal(signal.SIGKILL)
        coordd.wait()
        self.coordd(*durable, listen=coordd.listen)
        others = [workers[0], *workers[2:]]
        self.go_on(others)
        self.assertEqual(self.ask_all(others, "sets"), ["ok 1:0,2"] * 3)
        self.reduce_in(1, [others[0], others[2]])
        self.assertEqual(self.ask_all(others, "addset 1 2"), ["ok 4"] * 3)
        self.reduce_in(4, others[1:])

    def test_digits_trains_the_weights_of_one_process_whoever_is_killed(self):
        folder = tempfile.mkdtemp(dir=self.daemon.runtime)
        one, many = os.path.join(folder, "one"), os.path.join(folder, "many")
        status, text = self.run_command(program("digits"), "--quiet", "--dump-weights", one)
        self.assertEqual(status, 0, text)
        # Rank 0 is whom the others would ask.
        for crash, restarts in (("1:40", "1"), ("0:300", "0")):
            status, text = self.run_command(
                program("coordrun"), "-np", "3", "--min-np", "1", "--max-restarts", restarts, "--", program("digits"), "--elastic", "--crash", crash, "--json", "--dump-weights", many)
            self.assertEqual(status, 0, text)
            self.assertRegex(text, f"rank {crash[0]} .*was lost", text)
            self.assertRegex(text, f"rank {crash[0]} .*was killed by SIGKILL", text)
            last = json.loads(re.search(r'{"job":"digits-elastic".*}', text).group())
            self.assertGreaterEqual(last["generation"], 2)
            status, difference = self.run_command(program("digits"), "compare", one, many)
            self.assertEqual(status, 0, difference)
            self.assertLessEqual(float(difference), 1e-4)


if __name__ == "__main__":
    processes.main()
