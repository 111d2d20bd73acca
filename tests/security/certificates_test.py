"""Certificates that are replaced under a coordd that serves, and that end."""

import datetime
import os
import shutil
import signal
import subprocess

from tests.support import processes
from tests.support.certificates import Certificates
from tests.support.processes import program, wait_for


class CertificatesTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.first = Certificates(os.path.join(self.folder, "first"))
        self.second = Certificates(os.path.join(self.folder, "second"))
        self.used = os.path.join(self.folder, "used")
        os.mkdir(self.used, 0o700)

    def use(self, certificates):
        for name in ("server.crt", "server.key", "ca.crt"):
            shutil.copy2(os.path.join(certificates.folder, name), os.path.join(self.used, name + ".new"))
            os.rename(os.path.join(self.used, name + ".new"), os.path.join(self.used, name))

    def daemon(self):
        return self.coordd("--tls-cert", f"{self.used}/server.crt", "--tls-key", f"{self.used}/server.key", "--tls-ca", f"{self.used}/ca.crt")

    def status(self, coordd, certificates):
        return self.run_command(program("coordctl"), "status", "--coordinator", coordd.listen, *certificates.flags("operator"))[0]

    def test_new_ones_count_at_a_signal_and_a_job_goes_on(self):
        self.use(self.first)
        coordd = self.daemon()
        workers = self.workers(coordd, 2, **self.first.variables("worker"))
        self.assertEqual((self.status(coordd, self.first), self.status(coordd, self.second)), (0, 1))
        self.use(self.second)
        coordd.signal(signal.SIGHUP)
        self.assertTrue(wait_for(lambda: self.status(coordd, self.second) == 0), coordd.text())
        self.assertEqual(self.status(coordd, self.first), 1)
        for worker in workers:
            worker.tell("barrier")
        self.assertEqual({worker.answer() for worker in workers}, {"ok"})
        self.assertIn("new certificates", coordd.text())
        self.assertTrue(coordd.running())

    def test_new_ones_are_found_without_a_signal(self):
        self.use(self.first)
        coordd = self.daemon()
        self.use(self.second)
        self.assertTrue(wait_for(lambda: self.status(coordd, self.second) == 0), coordd.text())

    def test_what_does_not_fit_together_is_not_used(self):
        self.use(self.first)
        coordd = self.daemon()
        shutil.copy2(os.path.join(self.second.folder, "server.crt"), os.path.join(self.used, "server.crt"))
        coordd.signal(signal.SIGHUP)
        self.assertTrue(wait_for(lambda: "goes on with the certificates that it has" in coordd.text()))
        self.assertEqual(self.status(coordd, self.first), 0)
        shutil.copy2(os.path.join(self.first.folder, "server.crt"), os.path.join(self.used, "server.crt"))
        coordd.signal(signal.SIGHUP)
        mended = "the files of --tls-cert, --tls-key and --tls-ca can be used again"
        self.assertTrue(wait_for(lambda: mended in coordd.text()), coordd.text())

    def test_their_end_is_told_a_month_before(self):
        short = os.path.join(self.folder, "short")
        subprocess.run([program("coordctl"), "certs", short, "--days", "20"], check=True, capture_output=True)
        coordd = self.coordd("--tls-cert", f"{short}/server.crt", "--tls-key", f"{short}/server.key", "--tls-ca", f"{short}/ca.crt")
        end = datetime.datetime.fromtimestamp(coordd.metric("coordd_certificate_end_seconds"), datetime.timezone.utc)
        self.assertAlmostEqual((end - datetime.datetime.now(datetime.timezone.utc)).days, 20, delta=1)
        self.assertIn(f"ends at {end:%Y-%m-%d %H:%M} UTC", coordd.text())
        self.use(self.first)
        calm = self.daemon()
        self.assertNotIn("UTC", calm.text())
        self.assertIsNone(self.coordd().metric("coordd_certificate_end_seconds"))


if __name__ == "__main__":
    processes.main()
