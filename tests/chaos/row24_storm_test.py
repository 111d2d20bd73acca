"""Row 24: storms of joins, and a worker that comes and goes.

Injected: 1,000 simulated workers join over real gRPC at once (coordd-bench); then, beside a job of two that admits whoever waits,
a process that is started and killed ten times a second, for three seconds. Observed: one generation for the thousand, and how
long it took; the two stay members throughout, every result is exact, and who came and went costs at most two generations each:
the one with it and the one without; coordd answers all the time.
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes
from tests.support.processes import program

FLAPS = 30


class StormTest(elastic.TestCase):
    def test_a_thousand_joins(self):
        status, text = self.run_command(program("coordd-bench"), "control", "--rendezvous", "--ranks", "1000", "--channels", "8",
                                        "--rounds", "1")
        self.assertEqual(status, 0, text)
        print(text.strip().splitlines()[-1])

    def test_one_that_comes_and_goes(self):
        coordd = self.coordd("--settling-window", "50ms")
        stop = os.path.join(self.folder, "stop")
        steady = [self.worker(coordd, 3) for _ in range(2)]
        for worker in steady:
            worker.joined()
            worker.tell(f"commits {stop}")
        for worker in steady:
            self.assertEqual(worker.answer(), "step 5")
        for _ in range(FLAPS):
            flapping = self.worker(coordd, 3, worker_id="flapping")
            time.sleep(0.1)  # no condition: wherever it has come by then
            self.kill(flapping)
            flapping.wait()
        job = coordd.json("/v1/jobs")["jobs"][0]
        self.assertLessEqual(job["generation"], 1 + 2 * FLAPS)
        self.assertTrue({worker.pid for worker in steady} <= {member["pid"] for member in job["workers"]}, json.dumps(job))
        with open(stop, "w", encoding="ascii"):
            pass
        for worker in steady:
            self.assertRegex(worker.answer(), r"^ok \d+ 2 \d+$")


if __name__ == "__main__":
    processes.main()
