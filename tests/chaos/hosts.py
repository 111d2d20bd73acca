"""Jobs of elastic.py whose workers are on hosts that share no memory: UCX over TCP between network namespaces,
or TCP of coordd's own."""

import os

from tests.chaos import elastic
from tests.support import network, processes
from tests.support.processes import program

COORDD = 0  # the host that it is on; workers are on the others


class TestCase(elastic.TestCase):
    transport = "ucx"

    def setUp(self):
        super().setUp()
        if self.transport == "ucx" and not processes.has_ucx():
            self.skipTest("this build has no UCX")
        if network.why_no_cuts():
            self.skipTest(network.why_no_cuts())

    def make_network(self, hosts, names=(COORDD,), delayed=None):
        """Host 0 and `hosts` others; `names`: those of them on which a coordd will be."""
        self.network = network.Network(hosts + 1, delayed)
        self.addCleanup(self.network.close)
        certs = os.path.join(self.folder, "certs")
        status, text = self.run_command(program("coordctl"), "certs", certs,
                                        *(word for host in names for word in ("--name", self.network.addresses[host])))
        self.assertEqual(status, 0, text)
        self.server_tls = ("--tls-cert", f"{certs}/server.crt", "--tls-key", f"{certs}/server.key", "--tls-ca", f"{certs}/ca.crt")
        # UCX tells on standard output, where the answers of workers are, of messages that nobody has taken at its end (here
        # those of a generation that is over), and of connections that were lost.
        self.variables = {"UCX_LOG_LEVEL": "error", "UCX_LOG_FILE": "stderr", "COORDD_TLS_CA": f"{certs}/ca.crt",
                          "COORDD_TLS_CERT": f"{certs}/worker.crt", "COORDD_TLS_KEY": f"{certs}/worker.key",
                          "COORDD_TRANSPORT": self.transport}

    def coordd_on(self, host, *arguments):
        return self.coordd(*self.server_tls, *arguments, listen=f"{self.network.addresses[host]}:0",
                           wrapper=self.network.on(host))

    def hosts(self, count, *arguments, delayed=None):
        """A coordd on a host, and `count` other ones for workers."""
        self.make_network(count, delayed=delayed)
        return self.coordd_on(COORDD, "--settling-window", "10m", *arguments)

    def on_host(self, coordd, host, most, least=2, **variables):
        worker = self.worker(coordd, most, least, wrapper=self.network.on(host), **self.variables, **variables)
        worker.host = host
        return worker

    def training_on_hosts(self, coordd, hosts, least=2, each=1, **variables):
        """As `training`, with `each` workers on each of the hosts 1 to `hosts`."""
        return self.begin([self.on_host(coordd, host, hosts * each, least, **variables)
                           for host in range(1, hosts + 1) for _ in range(each)])
