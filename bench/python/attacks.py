"""What a live job notices of attacks on its coordd: a step of four workers, which coordd takes part in, alone and beside each attack of
tests/security, one after the other, on one coordd.

    PYTHONPATH=. COORDD_BUILD_DIR=build python3 bench/python/attacks.py [--tls]

A row for each attack: seconds, steps, p50 and p99 of a step in milliseconds, coordd's memory. Behind "# " the bars of issue "nobody in
who does not belong": no wrong result, coordd below 512 MiB, the step's p99 below twice what it is alone.
"""

import argparse
import contextlib
import os
import socket
import sys
import threading
import time
import unittest

from tests.security.http2_test import FLOODS, memory_mib
from tests.support import processes
from tests.support.certificates import Certificates
from tests.support.raw_http2 import Connection

ALONE_S, ATTACK_S = 20.0, 6.0
STRANGERS = 3000


class Job:
    """Four workers that meet again and again; their steps as (when it was over, how long it took)."""

    def __init__(self, workers):
        self.workers, self.steps, self.wrong = workers, [], 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._end.is_set():
            begun = time.monotonic()
            for worker in self.workers:
                worker.tell("barrier")
            self.wrong += {worker.answer() for worker in self.workers} != {"ok"}
            now = time.monotonic()
            self.steps.append((now, now - begun))
            time.sleep(0.005)

    def since(self, begun):
        return sorted(took for over, took in self.steps if over >= begun)

    def close(self):
        self._end.set()
        self._thread.join()


def flood(coordd, pieces, context, until):
    """Comes again whenever it is closed."""
    while time.monotonic() < until:
        with contextlib.suppress(OSError), contextlib.closing(Connection(coordd.listen, seconds=5, context=context)) as client:
            client.greeted()
            for piece in pieces():
                client.socket.sendall(piece)
                if time.monotonic() > until:
                    break


def strangers(coordd, until):
    """Connections that say nothing."""
    host, _, port = coordd.listen.rpartition(":")
    silent = []
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            silent.append(socket.create_connection((host, int(port)), 1))
        if len(silent) > STRANGERS:
            silent.pop(0).close()
    for one in silent:
        one.close()


def drips(coordd, until):
    """HTTP requests, a byte a second each."""
    host, _, port = coordd.http.rpartition(":")
    dripping = []
    while time.monotonic() < until:
        for _ in range(100):
            with contextlib.suppress(OSError):
                dripping.append(socket.create_connection((host, int(port)), 1))
        for one in list(dripping):
            try:
                one.send(b"G")
            except OSError:
                dripping.remove(one)
                one.close()
        time.sleep(0.2)
    for one in dripping:
        one.close()


class Bench(processes.TestCase):
    tls = False

    def test_attacks(self):
        context, flags, variables = None, [], {}
        if self.tls:
            certificates = Certificates(os.path.join(self.folder, "tls"))
            context = certificates.context(certificates.add("worker", "floods"))
            flags, variables = certificates.server_flags(), certificates.variables("worker")
        coordd = self.coordd(*flags)
        job = Job(self.workers(coordd, 4, **variables))
        print("attack,seconds,steps,p50_ms,p99_ms,coordd_mib", flush=True)
        alone = self.measure("none", coordd, job, lambda until: time.sleep(ALONE_S), ALONE_S)
        worst = 0.0
        attacks = {name: (lambda until, pieces=pieces: flood(coordd, pieces, context, until)) for name, (pieces, _) in FLOODS.items()}
        attacks["silent strangers"] = lambda until: strangers(coordd, until)
        attacks["dripping HTTP"] = lambda until: drips(coordd, until)
        for name, attack in attacks.items():
            worst = max(worst, self.measure(name, coordd, job, attack, ATTACK_S))
        again = self.measure("none", coordd, job, lambda until: time.sleep(ALONE_S), ALONE_S)
        job.close()
        peak = memory_mib(coordd.pid, "VmHWM")
        normal = max(alone, again)
        for what, value, met in ((f"most memory of coordd {peak} MiB (bar: below 512)", peak, peak < 512),
                                 (f"wrong results {job.wrong} (bar: none)", job.wrong, job.wrong == 0),
                                 (f"the step's p99 beside the worst attack {worst / normal:.2f} times what it is alone (bar: below 2)",
                                  worst, worst < 2 * normal)):
            print(f"# {what} {'met' if met else 'MISSED'}", flush=True)

    def measure(self, name, coordd, job, attack, seconds):
        begun = time.monotonic()
        attack(begun + seconds)
        took = job.since(begun)
        p50, p99 = (1e3 * took[int(part * len(took))] for part in (0.5, 0.99))
        print(f"{name},{time.monotonic() - begun:.1f},{len(took)},{p50:.2f},{p99:.2f},{memory_mib(coordd.pid)}", flush=True)
        return p99


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tls", action="store_true", help="the attackers and the workers have certificates")
    Bench.tls = parser.parse_args().tls
    sys.argv[1:] = []
    unittest.main(argv=[sys.argv[0], "Bench.test_attacks"])


if __name__ == "__main__":
    main()
