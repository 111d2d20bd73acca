"""coordd as a daemon: what it serves, what it refuses, how it ends, how operators find it."""

import os
import signal
import socket
import stat
import time

from tests.support import processes
from tests.support.processes import program, wait_for


class DaemonTest(processes.TestCase):
    def test_sigterm_tells_the_workers_closes_the_port_and_ends(self):
        coordd = self.coordd()
        workers = self.workers(coordd, 2)
        start = time.monotonic()
        coordd.signal(signal.SIGTERM)
        self.assertEqual(coordd.wait(20), 0, coordd.text())
        self.assertLess(time.monotonic() - start, 20 if processes.SANITIZED else 4)
        for worker in workers:
            self.assertTrue(wait_for(lambda worker=worker: worker.ask("status") != "ok"))
            text = worker.ask("submit grad float32 1 1")
            self.assertFalse(text.startswith("ok"), text)
            self.assertIn("coordd", text)
        host, port = coordd.listen.rsplit(":", 1)
        with self.assertRaises(OSError):
            socket.create_connection((host, int(port)), 5).close()
        self.assertEqual(os.listdir(coordd.runtime + "/coordd"), [], "its connection file is gone")

    def test_refuses_to_listen_beyond_loopback_without_tls(self):
        status, text = self.run_command(program("coordd"), "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0")
        self.assertNotEqual(status, 0)
        self.assertIn("--tls-cert", text)
        self.assertIn("--insecure", text)

    def test_listens_beyond_loopback_when_told_insecure(self):
        coordd = self.coordd("--insecure", listen="0.0.0.0:0")
        self.assertNotIn(":0", coordd.listen)

    def test_a_port_that_is_taken_is_one_clear_sentence(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            status, text = self.run_command(program("coordd"), "--listen", f"127.0.0.1:{taken.getsockname()[1]}",
                                            "--http", "127.0.0.1:0", "--store", "memory")
            self.assertNotEqual(status, 0)
            self.assertIn(str(taken.getsockname()[1]), text)

    def test_serves_health_jobs_targets_and_metrics(self):
        coordd = self.coordd()
        self.assertEqual(coordd.get("/healthz").strip(), "ok")
        self.assertEqual(coordd.get("/readyz").strip(), "ready")
        self.assertEqual(coordd.json("/v1/targets"), [])
        workers = self.workers(coordd, 3, job="run7", COORDD_METRICS="127.0.0.1:0")
        jobs = coordd.json("/v1/jobs")["jobs"]
        self.assertEqual([job["name"] for job in jobs], ["run7"])
        targets = [target for group in coordd.json("/v1/targets") for target in group["targets"]]
        self.assertEqual(sorted(targets), sorted(worker.place["metrics"] for worker in workers))
        self.assertIn("# TYPE coordd_", coordd.get("/metrics"))
        self.assertIn("<html", coordd.get("/").lower())

    def test_coordctl_finds_it_without_arguments(self):
        coordd = self.coordd()
        self.workers(coordd, 2, job="run7")
        files = [os.path.join(coordd.runtime, "coordd", name) for name in os.listdir(coordd.runtime + "/coordd")]
        self.assertEqual([stat.S_IMODE(os.stat(path).st_mode) for path in files], [0o600])
        environment = processes.clean_environment(XDG_RUNTIME_DIR=coordd.runtime)
        for command in ("status", "jobs"):
            status, text = self.run_command(program("coordctl"), command, environment=environment)
            self.assertEqual(status, 0, text)
            self.assertIn("run7", text)

    def test_coordctl_asks_the_one_that_serves(self):
        coordd = self.coordd()
        self.workers(coordd, 2, job="run7")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = f"127.0.0.1:{taken.getsockname()[1]}"
        for addresses in (f"{free},{coordd.listen}", f"{coordd.listen},{free}"):
            for arguments, variables in ((("--coordinator", addresses), {}), ((), {"COORDD_ADDR": addresses})):
                status, text = self.run_command(program("coordctl"), "status", *arguments,
                                                environment=processes.clean_environment(**variables))
                self.assertEqual(status, 0, text)
                self.assertIn("run7", text)
        status, text = self.run_command(program("coordctl"), "status", "--coordinator", f"{free},{free}")
        self.assertEqual(status, 1, text)
        self.assertIn(f"none of the 2 coordds that are named serves: {free}: ", text)

    def test_mutual_tls_from_coordctl_certs(self):
        certs = os.path.join(self.folder, "certs")
        status, text = self.run_command(program("coordctl"), "certs", certs)
        self.assertEqual(status, 0, text)
        coordd = self.coordd("--tls-cert", f"{certs}/server.crt", "--tls-key", f"{certs}/server.key",
                             "--tls-ca", f"{certs}/ca.crt")
        tls = {"COORDD_TLS_CA": f"{certs}/ca.crt", "COORDD_TLS_CERT": f"{certs}/worker.crt",
               "COORDD_TLS_KEY": f"{certs}/worker.key"}
        workers = self.workers(coordd, 2, **tls)
        for worker in workers:
            worker.ask("submit a float32 3 2")
        for worker in workers:
            self.assertEqual(worker.ask("wait a"), "ok 4 4")
        status, text = self.run_command(program("coordctl"), "whoami", environment=processes.clean_environment(**tls))
        self.assertEqual(status, 0, text)
        self.assertRegex(text, rf"connection +TLS, as coordd://worker/\* \({certs}/worker.crt\), signed by CN=.*, valid until 20")
        # It says what it looks at, and what to ask instead.
        status, text = self.run_command(program("coordctl"), "whoami", "--coordinator", coordd.listen)
        self.assertEqual(status, 2, text)
        self.assertIn("whoami asks no coordd", text)
        self.assertIn(f"'coordctl status --coordinator {coordd.listen}' tells whether that one lets you in", text)
        # Without a certificate nobody gets in.
        stranger = self.start(processes.ScriptedWorker(coordd.listen, COORDD_JOIN_TIMEOUT=3))
        self.assertFalse(stranger.answer().startswith("ok"))

    def test_help_teaches(self):
        for name in ("coordd", "coordd-worker", "coordrun", "coordctl"):
            status, text = self.run_command(program(name), "--help")
            self.assertEqual(status, 0, text)
            self.assertNotIn("{false}", text)
            self.assertGreater(len(text), 300, name)


if __name__ == "__main__":
    processes.main()
