"""Row 3: a worker that stands still, and wakes up after the others have gone on without it.

Injected: SIGSTOP of one of three workers for longer than its lease; SIGCONT when the next generation runs. Observed: it is named
and gone when its lease is over; the others go on, every result exact over the two of them; when it wakes up its collective fails
and says why, it can submit nothing, and the generation of the others does not change; a new process in its place is welcome.
"""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes


class StoppedWorkerTest(elastic.TestCase):
    def test_it_is_gone_and_never_acts_again(self):
        coordd = self.coordd("--settling-window", "10m", "--lease", "2s", "--heartbeat-interval", "400ms")
        workers = self.training(coordd, 3)
        stopped, others = workers[1], [workers[0], workers[2]]
        stopped.signal(signal.SIGSTOP)
        for worker in others:
            told, end = self.changes(worker)
            self.assertEqual((end[0], end[2:]), ("ok", ("2", "2")))
            self.assertEqual(len(told), 1, told)
            self.assertTrue(self.names_it(told[0], stopped), told)
            self.assertIn("its lease is 2s", told[0])
        stopped.signal(signal.SIGCONT)
        _, end = self.changes(stopped)
        self.assertNotEqual(end[0], "ok")
        self.assertNotEqual(stopped.ask("status"), "ok")
        self.assertFalse(stopped.ask("submit late float32 1 1").startswith("ok"))
        # The others have not noticed; nor has the memory that it shared with them.
        for worker in others:
            worker.tell("train again 20000 50")
        for worker in others:
            self.assertEqual(worker.answer(), "step 5")
            self.assertEqual(worker.answer(), "ok 50 2 2")
        fresh = self.worker(coordd, most=3)
        job = lambda: coordd.json("/v1/jobs")["jobs"][0]
        self.assertTrue(self.wait_for(lambda: job()["joined"] == 3), coordd.text())
        self.assertEqual((job()["generation"], job()["size"]), (2, 2))
        self.assertTrue(fresh.running())


if __name__ == "__main__":
    processes.main()
