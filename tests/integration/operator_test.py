"""What the documents tell an operator, from an empty folder on: coordd installed, as a service, with certificates; Prometheus with our
files; a job over TLS; a worker killed, which is an alert; and certificates that are about to end, renewed under the running job."""

import os
import shutil
import signal
import subprocess
import unittest

from tests.support import processes, prometheus
from tests.support.prometheus import Prometheus, may_be_empty, queries_of_dashboard
from tests.support.processes import wait_for
from tests.support.service import Service

WORKERS = 4
DAY_S = 86_400


@unittest.skipUnless(prometheus.IS_HERE, "no prometheus here: tools/install-deps --test")
class OperatorTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.installed = os.path.join(self.folder, "usr")
        subprocess.run(["cmake", "--install", processes.BUILD, "--prefix", self.installed], check=True, stdout=subprocess.DEVNULL,
                       env=processes.clean_environment(DESTDIR=""))
        self.deploy = os.path.join(self.installed, "share", "coordd", "deploy")
        self.monitoring = os.path.join(self.deploy, "prometheus")
        self.tls = os.path.join(self.folder, "tls")

    def installed_program(self, name, *arguments):
        status, text = self.run_command(os.path.join(self.installed, "bin", name), *arguments)
        self.assertEqual(status, 0, text)
        return text

    def new_certificates(self, days):
        """Of a new authority, each in the place of the old one. A reader finds the old or the new file, and not half of one."""
        made = os.path.join(self.folder, f"for-{days}-days")
        self.installed_program("coordctl", "certs", made, "--name", "127.0.0.1", "--days", str(days))
        os.makedirs(self.tls, 0o700, exist_ok=True)
        for name in os.listdir(made):
            shutil.copy2(os.path.join(made, name), os.path.join(self.tls, name + ".new"))
            os.rename(os.path.join(self.tls, name + ".new"), os.path.join(self.tls, name))

    def service(self, ports=None):
        unit = os.path.join(self.deploy, "systemd", "coordd.service")
        return self.start(Service(self.tls, self.folder, os.path.join(self.installed, "bin", "coordd"), unit, ports)).await_ready()

    def step(self, workers, name):
        """An exchange of all of them."""
        for worker in workers:
            self.assertEqual(worker.ask(f"submit {name} float32 1000 1"), "ok")
        for worker in workers:
            self.assertEqual(worker.ask(f"wait {name}"), f"ok {len(workers)} {len(workers)}")

    def goes_on_without(self, victim, workers):
        others = [worker for worker in workers if worker is not victim]
        for worker in others:
            self.assertTrue(wait_for(lambda worker=worker: worker.ask("status") != "ok"))
        for rank, worker in enumerate(others):
            worker.tell("next")
        self.assertEqual([worker.answer() for worker in others], [f"ok 2 {rank} {WORKERS - 1}" for rank in range(WORKERS - 1)])
        return others

    def test_from_the_installation_to_renewed_certificates(self):
        self.new_certificates(days=10)
        coordd = self.service()
        server = self.start(Prometheus(coordd, self.folder, hold="1s", shipped=self.monitoring))
        variables = {"COORDD_TLS_CA": "ca.crt", "COORDD_TLS_CERT": "worker.crt", "COORDD_TLS_KEY": "worker.key"}
        workers = self.workers(coordd, WORKERS, job="train7", min_workers=2, COORDD_METRICS="127.0.0.1:0", COORDD_ON_FAILURE="raise",
                               **{name: os.path.join(self.tls, file) for name, file in variables.items()})
        self.step(workers, "first")
        self.assertIn("train7", self.installed_program(
            "coordctl", "status", "--coordinator", coordd.listen, "--tls-ca", f"{self.tls}/ca.crt", "--tls-cert",
            f"{self.tls}/operator.crt", "--tls-key", f"{self.tls}/operator.key"))
        self.assertTrue(wait_for(lambda: server.value('count(up{job="coordd-workers"} == 1)') == WORKERS), server.text())
        lost = 'coordd_departures_total{job_name="train7",cause="connection_lost"}'
        self.assertTrue(wait_for(lambda: server.value(lost) == 0), server.text())
        self.assertEqual(server.firing("CoorddWorkersLost"), [])

        # A worker is killed: an alert, and the others go on.
        workers[1].signal(signal.SIGKILL)
        workers[1].wait()
        self.assertTrue(wait_for(lambda: server.firing("CoorddWorkersLost")), server.text())
        [alert] = server.firing("CoorddWorkersLost")
        self.assertEqual(alert["labels"]["job_name"], "train7")
        workers = self.goes_on_without(workers[1], workers)
        self.step(workers, "second")

        # The dashboard shows it all.
        for query in queries_of_dashboard(self.monitoring):
            with self.subTest(query=query):
                if may_be_empty(query):
                    server.series(query)  # ValueError: Prometheus does not understand it
                else:
                    self.assertTrue(server.answered(query), "nothing")

        # Certificates that are about to end wake somebody, are replaced, and the job goes on with the new ones.
        left = "coordd_certificate_end_seconds - time()"
        self.assertTrue(wait_for(lambda: server.firing("CoorddCertificateEnds")), server.text())
        self.assertLess(server.value(left), 10 * DAY_S)
        self.new_certificates(days=300)
        coordd.signal(signal.SIGUSR1)
        self.assertTrue(coordd.is_started_again(), coordd.text())
        coordd = self.service(coordd.ports)
        self.assertTrue(wait_for(lambda: "generation 2 goes on: all" in coordd.text()), coordd.text() + workers[0].text())
        self.step(workers, "third")
        self.assertTrue(wait_for(lambda: (server.value(left) or 0) > 299 * DAY_S), server.text())
        self.assertTrue(wait_for(lambda: not server.firing("CoorddCertificateEnds")), server.text())
        for worker in workers:
            self.assertEqual(worker.ask("leave"), "ok")


if __name__ == "__main__":
    processes.main()
