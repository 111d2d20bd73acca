"""What a live job notices of attacks on its coordd, told apart from what the attackers take of the machine.

    PYTHONPATH=. COORDD_BUILD_DIR=build python3 bench/python/attacks.py [--tls] [--rounds N]

Four workers, which time their own steps (barriers, each of which coordd takes part in), and an attacker in a process of its own: each
attack of tests/security in turns against nobody, against a stand-in that makes the same handshakes, reads and throws away, and against
the job's coordd. So all that differs in the last two is coordd. A row for each attack: medians over the rounds of a step's p99 in
milliseconds in these three, coordd's over the stand-in's, processor seconds a second of attacker and attacked in both, the longest step
beside coordd, and coordd's memory. Behind "# " the bars of issue "nobody in who does not belong": no wrong result, coordd below 512 MiB, the step's p99 beside
coordd below twice what it is beside the stand-in.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import ssl
import statistics
import sys
import time
import unittest

from tests.security.http2_test import FLOODS, memory_mib
from tests.support import processes
from tests.support.certificates import Certificates
from tests.support.processes import cpu_seconds
from tests.support.raw_http2 import ACK, SETTINGS, Connection, frame

STEPS, PAUSE_MS = 400, 5
SETTLE_S = 0.5  # of an attack before its steps are counted
STRANGERS, OPEN_CONNECTIONS = 3000, 80
# About what coordd reads of a flood before it closes; the stand-in does as much, so that the attacker comes again as often.
STAND_IN_READS = 128 << 10
TARGETS = ("nobody", "the stand-in", "coordd")


def endpoint(address):
    host, _, port = address.rpartition(":")
    return host, int(port)


def flood(grpc, pieces, context):
    """Comes again whenever it is closed."""
    while True:
        with contextlib.suppress(OSError), contextlib.closing(Connection(grpc, seconds=5, context=context)) as client:
            client.greeted()
            for piece in pieces():
                client.socket.sendall(piece)


def open_calls(grpc, context):
    """Connections with a thousand calls each that never say anything; of each the place is taken again when it is closed."""
    while True:
        kept = []
        for _ in range(OPEN_CONNECTIONS):
            with contextlib.suppress(OSError):
                client = Connection(grpc, seconds=5, context=context).greeted()
                kept.append(client)
                client.send(SETTINGS, ACK, 0)
                client.begin_calls("/coordd.v1.Coordinator/Session", 1000)
        time.sleep(2)
        for client in kept:
            client.close()


def strangers(grpc):
    """Connections that say nothing."""
    silent = []
    while True:
        with contextlib.suppress(OSError):
            silent.append(socket.create_connection(endpoint(grpc), 1))
        if len(silent) > STRANGERS:
            silent.pop(0).close()


def drips(http):
    """HTTP requests, a few bytes a second each."""
    dripping = []
    while True:
        for _ in range(100):
            with contextlib.suppress(OSError):
                dripping.append(socket.create_connection(endpoint(http), 1))
        for one in list(dripping):
            try:
                one.send(b"G")
            except OSError:
                dripping.remove(one)
                one.close()
        time.sleep(0.2)


ATTACKS = [*FLOODS, "calls that never end", "silent strangers", "dripping HTTP"]


def attack(name, grpc, http, tls):
    """Goes on until this process is ended."""
    if name == "silent strangers":
        strangers(grpc)
    elif name == "dripping HTTP":
        drips(http)
    else:
        context = None
        if tls:
            context = ssl.create_default_context(cafile=f"{tls}/ca.crt")
            context.load_cert_chain(f"{tls}/worker-floods.crt", f"{tls}/worker-floods.key")
            context.set_alpn_protocols(["h2"])
        if name in FLOODS:
            flood(grpc, FLOODS[name][0], context)
        open_calls(grpc, context)


async def stand_in(tls):
    """Says on which ports it listens, for the floods and for HTTP, and serves until this process is ended."""
    async def serve(reader, writer):
        left = STAND_IN_READS
        with contextlib.suppress(OSError):
            writer.write(frame(SETTINGS, 0, 0))
            while left > 0:
                taken = await reader.read(65536)
                if not taken:
                    break
                left -= len(taken)
        writer.transport.abort()

    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=f"{tls}/ca.crt")
        context.load_cert_chain(f"{tls}/server.crt", f"{tls}/server.key")
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
    servers = [await asyncio.start_server(serve, "127.0.0.1", 0, ssl=one, backlog=4096) for one in (context, None)]
    print(json.dumps(["127.0.0.1:%d" % server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


class Bench(processes.TestCase):
    tls, rounds, only = False, 3, None

    def own(self, *arguments):
        """This program again, as a process of its own."""
        return self.start(processes.Process([sys.executable, os.path.abspath(__file__), *arguments], environment=dict(os.environ)))

    def test_attacks(self):
        flags, variables, self.folder_flags = [], {}, []
        if self.tls:
            certificates = Certificates(os.path.join(self.folder, "tls"))
            certificates.add("worker", "floods")
            flags, variables = certificates.server_flags(), certificates.variables("worker")
            self.folder_flags = ["--tls-folder", certificates.folder]
        self.target = self.coordd(*flags)
        self.other = self.own("--stand-in", *self.folder_flags)
        self.assertTrue(processes.wait_for(lambda: self.other.text().endswith("\n") or not self.other.running()), self.other.text())
        self.ports = {"coordd": [self.target.listen, self.target.http], "the stand-in": json.loads(self.other.text())}
        self.job, self.wrong = self.workers(self.target, 4, **variables), 0
        print("attack,nobody_p99_ms,stand_in_p99_ms,coordd_p99_ms,ratio,stand_in_attacker_cpu,stand_in_cpu,coordd_attacker_cpu,coordd_cpu,"
              "coordd_longest_ms,coordd_mib", flush=True)
        worst = max((self.row(name), name) for name in ATTACKS if not self.only or name in self.only)
        peak = memory_mib(self.target.pid, "VmHWM")
        for what, met in ((f"most memory of coordd {peak} MiB (bar: below 512)", peak < 512),
                          (f"wrong results {self.wrong} (bar: none)", self.wrong == 0),
                          (f"the step's p99 beside coordd at the worst {worst[0]:.2f} times that beside the stand-in, {worst[1]} (bar: below 2)",
                           worst[0] < 2)):
            print(f"# {what}: {'met' if met else 'MISSED'}", flush=True)

    def row(self, name):
        rounds = {target: [] for target in TARGETS}
        for _ in range(self.rounds):
            for target in TARGETS:
                rounds[target].append(self.measure(name, target))
        nobody, stand_in_row, coordd_row = ([statistics.median(column) for column in zip(*rounds[target])] for target in TARGETS)
        ratio = coordd_row[0] / stand_in_row[0]
        print(f"{name},{nobody[0]:.2f},{stand_in_row[0]:.2f},{coordd_row[0]:.2f},{ratio:.2f},"
              f"{stand_in_row[1]:.2f},{stand_in_row[2]:.2f},{coordd_row[1]:.2f},{coordd_row[2]:.2f},{coordd_row[3]:.1f},{memory_mib(self.target.pid)}", flush=True)
        return ratio

    def measure(self, name, target):
        """A step's p99 in milliseconds, the processor seconds a second of the attacker and of what it attacks, and the longest step."""
        attacker, attacked = None, self.other if target == "the stand-in" else self.target
        if target != "nobody":
            attacker = self.own("--attack", name, "--at", *self.ports[target], *self.folder_flags)
            time.sleep(SETTLE_S)
        begun, before = time.monotonic(), [cpu_seconds(one.pid) for one in (attacker, attacked) if one]
        for worker in self.job:
            worker.tell(f"meet {STEPS} {PAUSE_MS}")
        answers = [worker.answer() for worker in self.job]
        took = time.monotonic() - begun
        spent = [(cpu_seconds(one.pid) - was) / took for one, was in zip([one for one in (attacker, attacked) if one], before)]
        if attacker:
            self.assertTrue(attacker.running(), attacker.text())
            attacker.end()
            time.sleep(SETTLE_S)  # what it has left behind
        self.wrong += sum(not answer.startswith("ok ") for answer in answers)
        p99, longest = (float(answers[0].split()[at]) / 1e3 for at in (2, 3))
        return [p99, *([0.0] * (2 - len(spent))), *spent, longest]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tls", action="store_true", help="the attackers and the workers have certificates")
    parser.add_argument("--rounds", type=int, default=3, help="of each attack (default: 3)")
    parser.add_argument("--only", action="append", metavar="NAME", help="this attack, and others that are named so")
    # Its own processes.
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--at", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--stand-in", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tls-folder", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.stand_in:
        asyncio.run(stand_in(flags.tls_folder))
    elif flags.attack:
        attack(flags.attack, *flags.at, flags.tls_folder)
    else:
        Bench.tls, Bench.rounds, Bench.only = flags.tls, flags.rounds, flags.only
        sys.argv[1:] = []
        unittest.main(argv=[sys.argv[0], "Bench.test_attacks"])


if __name__ == "__main__":
    main()
