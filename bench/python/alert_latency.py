"""How long it takes from a worker's death to an alert that fires, with the scrape configuration and the rules that we ship.

    python3 bench/python/alert_latency.py [KILLS]

Prints one line for each kill, and the largest as a share of two scrape intervals, which is the bound: CoorddWorkersLost has no `for`.
The kills come at moments that are spread over a scrape interval. Needs a build and Prometheus.
"""

import os
import re
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support import prometheus as files  # noqa: E402
from tests.support.processes import Coordd, ScriptedWorker, wait_for  # noqa: E402


def interval_s():
    """Of coordd's scrapes, as we ship it."""
    with open(files.CONFIG, encoding="utf-8") as file:
        return int(re.search(r"scrape_interval: (\d+)s", file.read()).group(1))


def main(kills):
    started, interval = [], interval_s()
    folder = tempfile.mkdtemp(prefix="coordd-bench-")
    try:
        coordd = Coordd()
        started.append(coordd)
        jobs = []
        for number in range(kills):
            jobs.append([ScriptedWorker(coordd.listen, COORDD_JOB_ID=f"job{number}", COORDD_MIN_WORKERS=2, COORDD_MAX_WORKERS=2)
                         for _ in range(2)])
            started.extend(jobs[-1])
        for workers in jobs:
            for worker in workers:
                worker.joined()
        prometheus = files.Prometheus(coordd, folder, as_shipped=True)
        started.append(prometheus)
        known = 'count(coordd_departures_total{cause="connection_lost"} == 0)'
        assert wait_for(lambda: prometheus.value(known) == kills), prometheus.text()
        took = []
        for number, workers in enumerate(jobs):
            time.sleep(interval * ((number * 0.618) % 1))  # measures, and is no test: not in step with the scrapes
            begin = time.monotonic()
            workers[1].signal(signal.SIGKILL)
            fires = lambda: any(alert["labels"]["job_name"] == f"job{number}" for alert in prometheus.firing("CoorddWorkersLost"))
            assert wait_for(fires), coordd.text()
            took.append(time.monotonic() - begin)
            print(f"kill {number}: {took[-1]:.2f} s", flush=True)
        print(f"largest: {max(took):.2f} s, {max(took) / (2 * interval):.2f} of two scrape intervals of {interval} s; "
              f"median {sorted(took)[len(took) // 2]:.2f} s")
    finally:
        for process in reversed(started):
            process.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
