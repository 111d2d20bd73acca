"""Whether coordd and coordrun stay as they are while workers come and go: 8 elastic workers, of which one is killed every 3 s.

    PYTHONPATH=. COORDD_BUILD_DIR=build python3 bench/python/churn.py [--seconds N]

A row every 30 s: workers, kills so far, and of coordd and of coordrun memory (MiB), descriptors, threads. Behind "# " the bars of issue
"nobody in who does not belong": each of these has grown by less than 10 % since the first minute, and no zombie is left.
"""

import argparse
import os
import random
import signal
import sys
import time
import unittest

from tests.security.dataplane_test import descendants
from tests.support import processes
from tests.support.processes import program, wait_for

WORKERS, KILL_EVERY_S, ROW_EVERY_S, SETTLED_S = 8, 3, 30, 60
WHAT = ("mib", "descriptors", "threads")


def status(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        return next(line.split()[1] for line in lines if line.startswith(field + ":"))


def named(root, name):
    found = []
    for pid in descendants(root):
        try:
            if status(pid, "Name") == name:
                found.append(pid)
        except (OSError, StopIteration):
            pass  # it has ended
    return found


def sizes(pid):
    return [int(status(pid, "VmRSS")) / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(status(pid, "Threads"))]


class Bench(processes.TestCase):
    seconds = 600

    def tree(self, name):
        for _ in range(100):
            try:
                return named(self.run_of.pid, name)
            except OSError:  # one ended while it was looked at
                pass
        return []

    def zombies(self):
        return [pid for pid in self.tree("digits") if status(pid, "State") == "Z"]

    def test_churn(self):
        command = [program("coordrun"), "-np", str(WORKERS), "--min-np", "2", "--max-restarts", "100000", "--blacklist-cooldown-range", "1", "1",
                   "--elastic-timeout", "60", "--http", "127.0.0.1:0", "--", program("digits"), "--elastic", "--epochs", "100000",
                   "--report-every", "100000", "--quiet"]
        self.run_of = self.start(processes.Process(command, processes.clean_environment(TMPDIR=self.folder)))
        self.assertTrue(wait_for(lambda: len(self.tree("digits")) == WORKERS), self.run_of.text())
        coordd = self.tree("coordd")[0]
        chance, begun, kills, rows, settled, last = random.Random(1), time.monotonic(), 0, 0, None, None
        print("seconds,workers,kills," + ",".join(f"{who}_{what}" for who in ("coordd", "coordrun") for what in WHAT), flush=True)
        while (passed := time.monotonic() - begun) < self.seconds:
            self.assertTrue(self.run_of.running(), self.run_of.text())
            workers = sorted(self.tree("digits"))
            if passed >= rows * ROW_EVERY_S:
                rows += 1
                last = [*sizes(coordd), *sizes(self.run_of.pid)]
                settled = settled or (last if passed >= SETTLED_S else None)
                print(f"{passed:.0f},{len(workers)},{kills}," + ",".join(f"{one:.1f}" for one in last), flush=True)
            if workers:
                os.kill(chance.choice(workers), chance.choice([signal.SIGKILL] * 3 + [signal.SIGABRT]))
                kills += 1
            time.sleep(KILL_EVERY_S)
        self.assertIsNotNone(settled, "too short for a first minute")
        for at, (before, after) in enumerate(zip(settled, last)):
            what = f"{WHAT[at % 3]} of {('coordd', 'coordrun')[at // 3]}"
            print(f"# {what}: {before:.1f} after the first minute, {after:.1f} at the end: "
                  f"{'met' if after < 1.1 * before else 'MISSED'}", flush=True)
        none_left = wait_for(lambda: not self.zombies(), 10)
        print(f"# zombies after {kills} kills: {'none: met' if none_left else 'MISSED'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="default: 600")
    Bench.seconds = parser.parse_args().seconds
    sys.argv[1:] = []
    unittest.main(argv=[sys.argv[0], "Bench.test_churn"])


if __name__ == "__main__":
    main()
