"""Hosts that share no memory: coordd on one, workers on two others, each a network namespace with its own address."""

import os
import signal
import unittest

from tests.support import network, processes
from tests.support.processes import Process, ScriptedWorker, program, wait_for

COORDD, FIRST, SECOND = 0, 1, 2
EPOCHS = 5


@unittest.skipIf(network.why_not(), network.why_not())
class NetworkTest(processes.TestCase):
    transport = "ucx"

    def setUp(self):
        super().setUp()
        if self.transport == "ucx" and not processes.has_ucx():
            self.skipTest("this build has no UCX")
        self.network = network.Network(3)
        self.addCleanup(self.network.close)
        self.certs = os.path.join(self.folder, "certs")
        address = self.network.addresses[COORDD]
        status, text = self.run_command(program("coordctl"), "certs", self.certs, "--name", address)
        self.assertEqual(status, 0, text)
        # Beyond loopback: TLS in both directions, or coordd does not listen.
        self.daemon = self.coordd("--tls-cert", f"{self.certs}/server.crt", "--tls-key", f"{self.certs}/server.key",
                                  "--tls-ca", f"{self.certs}/ca.crt", listen=f"{address}:0",
                                  wrapper=self.network.on(COORDD))
        self.tls = {"COORDD_TLS_CA": f"{self.certs}/ca.crt", "COORDD_TLS_CERT": f"{self.certs}/worker.crt",
                    "COORDD_TLS_KEY": f"{self.certs}/worker.key", "COORDD_TRANSPORT": self.transport}

    def token_file(self):
        path = os.path.join(self.folder, "token")
        with open(path, "w", encoding="ascii") as out:
            out.write("f00d")
        os.chmod(path, 0o600)
        return path

    def workers_on_two_hosts(self, each, **variables):
        started = []
        for host in (FIRST, SECOND) * each:
            started.append(self.start(ScriptedWorker(
                self.daemon.listen, wrapper=self.network.on(host), COORDD_JOB_ID="test", COORDD_MIN_WORKERS=2 * each,
                COORDD_MAX_WORKERS=2 * each, **self.tls, **variables)))
            started[-1].host = host
        return sorted((worker.joined() for worker in started), key=lambda worker: worker.rank)

    def test_digits_has_the_weights_of_a_single_process(self):
        one, many = os.path.join(self.folder, "one"), os.path.join(self.folder, "many")
        arguments = ["--epochs", str(EPOCHS)]
        status, text = self.run_command(program("digits"), *arguments, "--dump-weights", one)
        self.assertEqual(status, 0, text)
        environment = processes.clean_environment(COORDD_TOKEN_FILE=self.token_file(), **self.tls)
        halves = [self.start(Process([*self.network.on(host), program("coordrun"), "-np", "2", "--size", "4",
                                      "--first-rank", first_rank, "--job", "digits",
                                      "--coordinator", self.daemon.listen, "--", program("digits"), *arguments,
                                      "--dump-weights", many], environment))
                  for host, first_rank in ((FIRST, "0"), (SECOND, "2"))]
        for half in halves:
            self.assertEqual(half.wait(150), 0, half.text())
        self.assertIn("4 workers", halves[0].text())
        self.assertLessEqual(self.difference(one, many), 1e-4)
        # The comparison would notice: an epoch less is far away.
        less = os.path.join(self.folder, "less")
        self.run_command(program("digits"), "--epochs", str(EPOCHS - 1), "--dump-weights", less)
        self.assertGreater(self.difference(less, many), 1e-3)

    def test_every_operation_dtype_and_op(self):
        environment = processes.clean_environment(COORDD_TOKEN_FILE=self.token_file(), **self.tls)
        halves = [self.start(Process([*self.network.on(host), program("coordrun"), "-np", "2", "--size", "4",
                                      "--first-rank", first_rank, "--coordinator", self.daemon.listen, "--",
                                      program("coordd-worker"), "selftest"], environment))
                  for host, first_rank in ((FIRST, "0"), (SECOND, "2"))]
        for half in halves:
            self.assertEqual(half.wait(150), 0, half.text())
            self.assertNotIn("UCX WARN", half.text())

    def test_workers_keep_to_the_ports_that_a_firewall_lets_through(self):
        workers = self.workers_on_two_hosts(2, COORDD_PORT_RANGE="23100-23180")
        for worker in workers:
            self.assertEqual(worker.ask("submit t float32 1000 1"), "ok")
        for worker in workers:
            self.assertEqual(worker.ask("wait t"), "ok 4 4")
        for host in (FIRST, SECOND):
            ports = self.listening_ports(host)
            self.assertGreaterEqual(len(ports), 2)
            self.assertTrue(all(23100 <= port <= 23180 for port in ports), ports)

    def listening_ports(self, host):
        """Of TCP, of all processes on the host."""
        status, text = self.run_command(*self.network.on(host), "cat", "/proc/net/tcp")
        self.assertEqual(status, 0, text)
        rows = [line.split() for line in text.splitlines()[1:]]
        return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"]

    def difference(self, one, other):
        status, text = self.run_command(program("digits"), "compare", one, other)
        self.assertEqual(status, 0, text)
        return float(text)

    def test_hosts_are_nodes_and_their_ranks_are_consecutive(self):
        workers = self.workers_on_two_hosts(2)
        places = [(worker.place["local_rank"], worker.place["local_size"], worker.place["cross_rank"],
                   worker.place["cross_size"]) for worker in workers]
        self.assertEqual(places, [("0", "2", "0", "2"), ("1", "2", "0", "2"), ("0", "2", "1", "2"), ("1", "2", "1", "2")])
        for size in (1, 1000, 5000000):
            for worker in workers:
                self.assertEqual(worker.ask(f"submit t{size} float32 {size} 1.5"), "ok")
            for worker in workers:
                self.assertEqual(worker.ask(f"wait t{size}"), "ok 6 6")

    def test_the_metrics_address_of_a_worker_is_one_that_others_reach(self):
        workers = self.workers_on_two_hosts(1, COORDD_METRICS="0.0.0.0:0")
        hosts = {worker.place["metrics"].rsplit(":", 1)[0] for worker in workers}
        self.assertEqual(hosts, {self.network.addresses[FIRST], self.network.addresses[SECOND]})

    def test_the_address_of_a_host_is_the_one_that_others_reach(self):
        workers = self.workers_on_two_hosts(1)
        self.assertEqual({worker.host: worker.place["host_address"] for worker in workers},
                         {host: self.network.addresses[host] for host in (FIRST, SECOND)})

    def test_a_worker_that_is_killed_on_another_host(self):
        workers = self.workers_on_two_hosts(1)
        self.assertEqual(workers[0].ask("submit grad float32 1000000 1"), "ok")
        workers[0].tell("wait grad")
        workers[1].signal(signal.SIGKILL)
        text = workers[0].answer(30)
        self.assertTrue(text.startswith("ABORTED ") and "rank 1" in text, text)

    def test_a_worker_that_is_killed_where_hosts_have_two(self):
        workers = self.workers_on_two_hosts(2)
        for worker in workers:
            self.assertEqual(worker.ask("submit grad float32 20000000 1"), "ok")
            worker.tell("wait grad")
        workers[2].signal(signal.SIGKILL)
        for worker in (workers[0], workers[1], workers[3]):
            text = worker.answer(60)
            self.assertTrue(text == "ok 4 4" or (text.startswith("ABORTED ") and "rank 2" in text), text)

    def test_a_host_that_is_cut_off_loses_its_lease(self):
        workers = self.workers_on_two_hosts(1)
        self.network.disconnect(SECOND)
        # Whoever joined first is rank 0.
        cut_off = next(worker for worker in workers if worker.host == SECOND)
        other = next(worker for worker in workers if worker.host == FIRST)
        self.assertTrue(wait_for(lambda: other.ask("status") != "ok", 60))
        text = other.ask("status")
        self.assertIn(f"rank {cut_off.rank}", text)
        # The one that was cut off does not believe for longer than its lease that it is a member.
        self.assertTrue(wait_for(lambda: cut_off.ask("status") != "ok", 60))


@unittest.skipIf(network.why_not(), network.why_not())
class TcpNetworkTest(NetworkTest):
    transport = "auto"


if __name__ == "__main__":
    processes.main()
