"""Another user of the machine connects to the ranks' Unix sockets, as often as it can: jobs start all the same."""

import os
import subprocess
import sys
import unittest

from tests.support import network, processes
from tests.support.processes import program

RUNS = 4
NOBODY = 65534

# Looks for listening sockets of ours in /proc/net/unix, which everybody may read, and connects. Its loop ends after FLOOD_S; it prints
# how often it has connected.
FLOOD_S = 60
FLOOD = f"""
import socket, sys, time
print("ready", flush=True)
end, count, kept = time.monotonic() + {FLOOD_S}, 0, []
while time.monotonic() < end:
    for line in open("/proc/net/unix"):
        words = line.split()
        if len(words) < 8 or not words[7].startswith("@coordd-") or words[3] != "00010000":
            continue
        for _ in range(300):
            try:
                one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                one.connect("\\0" + words[7][1:])
            except OSError:
                break
            count += 1
            kept.append(one)
            if len(kept) > 800:
                kept = kept[400:]
            if count % 1000 == 1:
                print(count, flush=True)
"""


class HandoverFloodTest(processes.TestCase):
    def test_a_flood_by_another_user_keeps_no_job_from_starting(self):
        # Abstract sockets belong to a network namespace: the flood meets nobody's jobs but ours.
        hosts = network.Network(1)
        self.addCleanup(hosts.close)
        inside = hosts.on(0)
        flood = subprocess.Popen(
            [*inside, "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "/usr/bin/python3", "-c", FLOOD],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(flood.stdout.close)
        self.addCleanup(flood.wait)
        self.addCleanup(flood.kill)
        self.assertEqual(flood.stdout.readline(), "ready\n")
        for run in range(RUNS):
            with self.subTest(run=run):
                ended = subprocess.run(
                    [*inside, program("coordrun"), "-np", "4", "--", program("coordd-worker"), "allreduce", "--elements", "1000"],
                    env=processes.clean_environment(), capture_output=True, text=True, timeout=processes.PATIENCE_S)
                self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIsNone(flood.poll(), "the flood went on all the while")
        flood.kill()
        self.assertGreater(len(flood.stdout.read()), 0, "the flood has found no socket of ours")


if __name__ == "__main__":
    if why := network.why_not():
        print(why)
        sys.exit(processes.SKIPPED)
    processes.main()
