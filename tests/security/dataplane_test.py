"""What strangers say to the ports at which ranks listen for each other ends their connection, and nothing else."""

import os
import random
import socket

from tests.support import processes
from tests.support.processes import program, wait_for

RANKS = 3
SAID = [b"", b"\0" * 4096, b"\xff" * 4096, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + b"x" * 508, b"\x16\x03\x03\x00\x05", b"\x17\x03\x03\x40\x00" + b"y" * 16384]


def descendants(pid):
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
            for child in children.read().split():
                found += descendants(int(child))
    return found


def sockets_of(pid):
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:["):-1])
    return found


def ports_of(pid):
    """TCP ports that a process listens on."""
    own = sockets_of(pid)
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in own]


class DataPlaneTest(processes.TestCase):
    def workers(self, run):
        """Those of the run that listen for each other."""
        listening = {}
        for pid in descendants(run.pid):
            try:
                with open(f"/proc/{pid}/comm", encoding="ascii") as name:
                    if name.read().strip() == "coordd-worker":
                        listening[pid] = ports_of(pid)
            except OSError:
                pass
        return listening if len(listening) == RANKS and all(listening.values()) else None

    def test_strangers_end_their_connection_and_the_run_goes_on(self):
        chance = random.Random(1)
        for encryption in ("off", "on"):
            command = (f'export COORDD_NODE_ID=node$COORDD_LOCAL_RANK; '
                       f'exec {program("coordd-worker")} allreduce --elements 100000 --iterations 0 --interval-ms 5')
            run = self.start(processes.Process(
                [program("coordrun"), "-np", str(RANKS), "--", "/bin/sh", "-c", command],
                processes.clean_environment(COORDD_TRANSPORT="tcp", COORDD_DATA_ENCRYPTION=encryption)))
            self.assertTrue(wait_for(lambda run=run: self.workers(run)), run.text())
            ports = [port for ports in self.workers(run).values() for port in ports]
            silent = []
            for number in range(400):
                try:
                    stranger = socket.create_connection(("127.0.0.1", ports[number % len(ports)]), 5)
                    if number % 2 == 0:
                        silent.append(stranger)
                        continue
                    stranger.sendall(chance.choice([*SAID, chance.randbytes(chance.choice([1, 7, 100, 4000]))]))
                    stranger.close()
                except OSError:
                    pass  # it was turned away
            self.assertTrue(wait_for(lambda run=run: "for other ranks was ended, and nothing believed" in run.text()), run.text())
            self.assertEqual(len(self.workers(run) or {}), RANKS, run.text())
            # Each of them still reduces: who has not, for the want of another, would not end well.
            run.signal(15)
            self.assertIn(run.wait(), (0, 143, -15), run.text())
            self.assertNotIn("signal 6", run.text())
            self.assertNotIn("signal 11", run.text())
            for stranger in silent:
                stranger.close()


if __name__ == "__main__":
    processes.main()
