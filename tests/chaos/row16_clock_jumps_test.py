"""Row 16: the wall clock jumps.

Injected: under a running job with short leases, the wall clock of coordd jumps an hour ahead, that of one of three workers an
hour back, and then each to the other side (tests/chaos/preload.c: only these processes see it). Observed: coordd's log has the
hour, so that it was told; nobody is lost, no generation ends, every result is exact; a member that is killed then is gone as
soon as ever, and the others go on.
"""

import os
import re
import struct
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes
from tests.support.processes import program

HOUR_NS = 3600 * 10**9


class Clock:
    """A file that says by how much the clock of a process is off."""

    def __init__(self, folder, name):
        self.path = os.path.join(folder, name)
        self.jump(0)

    def jump(self, nanoseconds):
        with open(self.path, "r+b" if os.path.exists(self.path) else "wb") as file:
            file.write(struct.pack("q", nanoseconds))

    def variables(self):
        return {"LD_PRELOAD": program("libcoordd_faults.so"), "COORDD_TEST_CLOCK": self.path}


@unittest.skipIf(processes.SANITIZED, "a sanitizer wants to be loaded first: no clock is shifted")
class ClockJumpsTest(elastic.TestCase):
    def test_leases_do_not_notice(self):
        clocks = [Clock(self.folder, name) for name in ("coordd", "worker")]
        coordd = self.coordd("--settling-window", "10m", "--lease", "2s", "--heartbeat-interval", "400ms",
                             environment=processes.clean_environment(XDG_RUNTIME_DIR=self.folder, **clocks[0].variables()))
        workers = self.begin([self.worker(coordd, 3, **variables) for variables in ({}, {}, clocks[1].variables())])
        for jumps in ((HOUR_NS, -HOUR_NS), (-HOUR_NS, HOUR_NS)):
            for clock, jump in zip(clocks, jumps):
                clock.jump(jump)
            time.sleep(3)  # no condition: longer than a lease
            job = coordd.json("/v1/jobs")["jobs"][0]
            self.assertEqual((job["generation"], job["size"], job.get("departures", [])), (1, 3, []), coordd.text())
        self.kill(workers[0])
        for worker in workers[1:]:
            told, end = self.changes(worker)
            self.assertEqual((len(told), end[0], end[2:]), (1, "ok", ("2", "2")), told)
            self.assertTrue(self.names_it(told[0], workers[0]), told)
        hours = {int(hour) for hour in re.findall(r" (\d\d):\d\d:\d\d\.\d+ ", coordd.text())}
        self.assertGreater(len(hours), 1, coordd.text())


if __name__ == "__main__":
    processes.main()
