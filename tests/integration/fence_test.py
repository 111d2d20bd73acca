"""deploy/nftables: where its rules are loaded, the ports of workers are reached by their user, from their hosts, and by nobody else."""

import os
import subprocess
import unittest

from tests.support import network, processes
from tests.support.processes import ROOT, ScriptedWorker, program

RULES = os.path.join(ROOT, "deploy", "nftables", "coordd-workers.nft")
COORDD, FIRST, SECOND, STRANGER = 0, 1, 2, 3
OTHER_USER = 65534
PORTS = range(20000, 20100)  # as the file has it


@unittest.skipIf(network.why_no_cuts(), network.why_no_cuts())
class FenceTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.network = network.Network(4)
        self.addCleanup(self.network.close)

    def rules(self):
        """As the file is, for the user of this test and two of its hosts."""
        with open(RULES, encoding="ascii") as text:
            rules = text.read()
        for line, other in (("define user = 1000", f"define user = {os.geteuid()}"),
                            ("10.77.0.0/24", f"{self.network.addresses[FIRST]}, {self.network.addresses[SECOND]}")):
            self.assertIn(line, rules)
            rules = rules.replace(line, other)
        self.assertIn(f"define ports = {PORTS[0]}-{PORTS[-1]}", rules)
        return rules

    def load(self, host):
        for arguments in (("-c", "-f", RULES), ("-f", "-"), ("-f", "-")):  # once more replaces it
            done = subprocess.run([*self.network.on(host), "nft", *arguments], input=self.rules(), text=True, capture_output=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def workers(self):
        certs = os.path.join(self.folder, "certs")
        address = self.network.addresses[COORDD]
        status, text = self.run_command(program("coordctl"), "certs", certs, "--name", address)
        self.assertEqual(status, 0, text)
        daemon = self.coordd("--tls-cert", f"{certs}/server.crt", "--tls-key", f"{certs}/server.key", "--tls-ca", f"{certs}/ca.crt",
                             listen=f"{address}:0", wrapper=self.network.on(COORDD))
        variables = {"COORDD_TLS_CA": f"{certs}/ca.crt", "COORDD_TLS_CERT": f"{certs}/worker.crt",
                     "COORDD_TLS_KEY": f"{certs}/worker.key", "COORDD_PORT_RANGE": f"{PORTS[0]}-{PORTS[-1]}"}
        started = [self.start(ScriptedWorker(daemon.listen, wrapper=self.network.on(host), COORDD_MIN_WORKERS=2,
                                             COORDD_MAX_WORKERS=2, **variables)) for host in (FIRST, SECOND)]
        return [worker.joined() for worker in started]

    def reduce(self, workers, name):
        for worker in workers:
            self.assertEqual(worker.ask(f"submit {name} float32 1000000 1.5"), "ok")
        for worker in workers:
            self.assertEqual(worker.ask(f"wait {name}"), "ok 3 3")

    def worker_ports(self, host):
        status, text = self.run_command(*self.network.on(host), "cat", "/proc/net/tcp")
        self.assertEqual(status, 0, text)
        rows = [line.split() for line in text.splitlines()[1:]]
        ports = [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"]
        return [port for port in ports if port in PORTS]

    def connects(self, host, port, user=None, to=FIRST):
        """Whether a connection from `host` to a port of the host `to` is made."""
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user is not None else []
        done = subprocess.run([*self.network.on(host), *as_user, "timeout", "2", "bash", "-c",
                               f"exec 3<>/dev/tcp/{self.network.addresses[to]}/{port}"], capture_output=True, check=False)
        return done.returncode == 0

    def test_nobody_else_reaches_the_ports_of_workers(self):
        workers = self.workers()
        self.reduce(workers, "before")
        port = self.worker_ports(FIRST)[0]
        for host in (FIRST, SECOND, STRANGER):  # there is something to fence
            self.assertTrue(self.connects(host, port, OTHER_USER), host)
        for host in (FIRST, SECOND):
            self.load(host)
        self.assertFalse(self.connects(FIRST, port, OTHER_USER))
        self.assertFalse(self.connects(SECOND, port, OTHER_USER))
        self.assertFalse(self.connects(STRANGER, port, OTHER_USER))
        self.assertFalse(self.connects(STRANGER, port))
        self.assertTrue(self.connects(FIRST, port))
        self.assertTrue(self.connects(SECOND, port))
        self.reduce(workers, "behind")

    def test_a_job_begins_behind_the_fence(self):
        for host in (FIRST, SECOND):
            self.load(host)
        self.reduce(self.workers(), "behind")


if __name__ == "__main__":
    processes.main()
