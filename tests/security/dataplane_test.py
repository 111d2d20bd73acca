"""What strangers say to the ports at which ranks listen for each other ends their connection, and nothing else; also where it is what
ranks have said there."""

import os
import random
import socket
import time

from tests.support import processes
from tests.support.heard_on_loopback import HeardOnLoopback
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

    def start_run(self, encryption, connections):
        command = (f'export COORDD_NODE_ID=node$COORDD_LOCAL_RANK; '
                   f'exec {program("coordd-worker")} allreduce --elements 2000 --iterations 0 --interval-ms 5')
        run = self.start(processes.Process(
            [program("coordrun"), "-np", str(RANKS), "--", "/bin/sh", "-c", command],
            processes.clean_environment(COORDD_TRANSPORT="tcp", COORDD_DATA_ENCRYPTION=encryption, COORDD_TCP_CONNECTIONS=connections)))
        self.assertTrue(wait_for(lambda: self.workers(run)), run.text())
        return run

    def assert_goes_on(self, run, workers):
        """With the processes and connections that it had, and right results."""
        self.assertEqual(self.workers(run), workers, run.text())
        self.assertNotIn("has lost rank", run.text())
        # Each of them still reduces: who has not, for the want of another, would not end well.
        run.signal(15)
        self.assertIn(run.wait(), (0, 143, -15), run.text())
        self.assertEqual(run.text().count('"wrong":0'), RANKS, run.text())

    def say_again(self, said, port, address, pieces):
        """As somebody who has heard it says it: he hears something, if that, and then the end."""
        with socket.create_connection(("127.0.0.1", port), 5, (address, 0)) as stranger:
            try:
                for begin in range(0, len(said), -(-len(said) // pieces)):
                    stranger.sendall(said[begin:begin + -(-len(said) // pieces)])
                    time.sleep(0.01)
                stranger.shutdown(socket.SHUT_WR)
                heard = b""
                while more := stranger.recv(1 << 16):
                    heard += more
            except OSError as ended:
                self.assertNotIsInstance(ended, TimeoutError, "it is listened to still")
                return
            self.assertLess(len(heard), 4096, "it was told what a rank is told")

    def meetings(self, heard, run):
        """Length, port and what was said, of connections on which ranks have met."""
        ports = [port for ports in (self.workers(run) or {}).values() for port in ports]
        return [(len(said), port, said) for port in ports for said in heard.said_to(port) if len(said) > 300]

    def test_what_a_rank_has_said_is_believed_once(self):
        for encryption, connections in (("off", "1"), ("on", "1"), ("off", "3")):
            try:
                heard = HeardOnLoopback()
            except PermissionError:
                self.skipTest("only who has CAP_NET_RAW hears what others say")
            try:
                run = self.start_run(encryption, connections)
                # A proof behind the first message; who crosses another's connection ends before that. Not all have to meet.
                self.assertTrue(wait_for(lambda heard=heard, run=run, connections=connections: (
                    whole := self.meetings(heard, run)) and len(whole) >= (RANKS - 1) * int(connections) and max(whole)[0] > 10000),
                    ([length for length, _, _ in self.meetings(heard, run)], self.workers(run), heard.lost(), run.text()))
            finally:
                heard.end()
            workers = self.workers(run)
            for number, (_, port, said) in enumerate(self.meetings(heard, run)):
                for again in range(3):
                    address = f"127.0.{10 + number}.{10 + again}"
                    self.say_again(said, port, address, pieces=1 + 20 * again)
                    self.assertTrue(wait_for(lambda run=run, address=address: f"a connection from {address}:" in run.text()), run.text())
            self.assertIn("for other ranks was ended, and nothing believed", run.text())
            self.assert_goes_on(run, workers)

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
