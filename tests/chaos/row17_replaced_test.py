"""Row 17: a worker that is killed and started again at once, under the same name.

Injected: three times, SIGKILL of one of three members and a new process with its worker id, started before anybody can have
noticed; in between, a second process that claims the id of a member that lives. Observed: the old process is named as lost, the
new one waits and becomes nobody's twin; the other members go on in the generation of those who are left and every result is
exact; whoever claims the id of one that lives is refused, with the name of the id.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes


class ReplacedTest(elastic.TestCase):
    def test_the_new_process_takes_the_place_of_the_old_one(self):
        coordd = self.coordd("--settling-window", "10m")
        stop = os.path.join(self.folder, "stop")
        workers = [self.worker(coordd, 3, worker_id=f"w{number}") for number in range(3)]
        for worker in workers:
            worker.joined()
            worker.tell(f"commits {stop}")
        for worker in workers:
            self.assertEqual(worker.answer(), "step 5")
        job = lambda: coordd.json("/v1/jobs")["jobs"][0]
        killed = []
        for number in (0, 1, 2):
            twin = self.worker(coordd, 3, worker_id=f"w{(number + 1) % 3}")
            refused = twin.answer()
            self.assertFalse(refused.startswith("ok "), refused)
            self.assertIn(f"w{(number + 1) % 3}", refused)
            self.kill(workers[number])
            killed.append(workers[number].pid)
            workers[number] = self.worker(coordd, 3, worker_id=f"w{number}")
            workers[number].joined().tell(f"commits {stop}")
            self.assertEqual(workers[number].answer(), "step 5")
            self.assertTrue(self.wait_for(lambda: job()["size"] == 3), coordd.text())
            self.assertEqual({member["worker_id"] for member in job()["workers"]}, {"w0", "w1", "w2"})
            self.assertEqual({member["pid"] for member in job()["workers"]}, {worker.pid for worker in workers})
        with open(stop, "w", encoding="ascii"):
            pass
        for worker in workers:
            answer = worker.answer()
            self.assertTrue(answer.startswith("ok ") and answer.split()[2] == "3", answer)
        self.assertEqual(self.departed(coordd) & set(killed), set(killed))


if __name__ == "__main__":
    processes.main()
