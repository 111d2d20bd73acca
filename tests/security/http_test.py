"""Who may ask coordd's HTTP port beyond loopback: who has its token, or a certificate that lets see all jobs; over TLS alone."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import unittest

from tests.support import processes
from tests.support.certificates import HAS_OPENSSL, Certificates
from tests.support.processes import PATIENCE_S, program, wait_for

PATHS = ("/", "/metrics", "/v1/jobs", "/v1/events", "/v1/targets", "/nothing")


class HttpTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.certificates = Certificates(os.path.join(self.folder, "tls"))

    def secure_coordd(self, *arguments):
        return self.coordd(*self.certificates.server_flags(), *arguments, http="0.0.0.0:0")

    def context(self, stem=None):
        context = ssl.create_default_context(cafile=f"{self.certificates.folder}/ca.crt")
        context.set_alpn_protocols(["h2", "http/1.1"])  # as Prometheus does
        if stem:
            context.load_cert_chain(f"{self.certificates.folder}/{stem}.crt", f"{self.certificates.folder}/{stem}.key")
        return context

    def ask(self, coordd, path, stem=None, token=None):
        """Status and text."""
        port = int(coordd.http.rsplit(":", 1)[1])
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=self.context(stem))
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token is not None else {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def token_file(self, token, mode=0o600, name="http-token"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="ascii") as out:
            out.write(token + "\n")
        os.chmod(path, mode)
        return path

    def test_viewers_and_operators_see_everything_and_others_nothing(self):
        viewer, worker = self.certificates.add("viewer", "grafana"), self.certificates.add("worker", "train7")
        launcher = self.certificates.add("launcher", "alice")
        coordd = self.secure_coordd()
        for path in PATHS:
            found = 404 if path == "/nothing" else 200
            for stem in (viewer, "operator"):
                self.assertEqual(self.ask(coordd, path, stem)[0], found, path)
            for stem, said in ((worker, "worker/train7 may not see all jobs"), (launcher, "launcher/alice may not"), (None, "bring a certificate")):
                status, text = self.ask(coordd, path, stem)
                self.assertEqual(status, 401, path)
                self.assertIn(said, text)
        self.assertEqual(json.loads(self.ask(coordd, "/v1/jobs", viewer)[1])["http"], f"https://{coordd.http}")

    def test_a_probe_needs_nothing(self):
        coordd = self.secure_coordd()
        for path, text in (("/healthz", "ok\n"), ("/readyz", "ready\n")):
            self.assertEqual(self.ask(coordd, path), (200, text))

    def test_the_token_lets_in_and_nothing_like_it(self):
        coordd = self.secure_coordd("--http-token-file", self.token_file("open-sesame"))
        self.assertEqual(self.ask(coordd, "/metrics", token="open-sesame")[0], 200)
        for wrong in ("open-sesam", "open-sesame2", "", "open sesame"):
            self.assertEqual(self.ask(coordd, "/metrics", token=wrong)[0], 401, wrong)
        self.assertEqual(self.ask(coordd, "/metrics", "operator")[0], 200)  # besides it
        # An operator who brings a wrong one hears that.
        status, text = self.ask(coordd, "/metrics", "operator", token="x")
        self.assertEqual(status, 401)
        self.assertIn("not the token", text)

    def test_a_new_token_counts_at_a_signal_and_what_cannot_be_one_does_not(self):
        path = self.token_file("old")
        coordd = self.secure_coordd("--http-token-file", path)
        os.replace(self.token_file("new", name="next"), path)
        coordd.signal(signal.SIGHUP)
        self.assertTrue(wait_for(lambda: self.ask(coordd, "/metrics", token="new")[0] == 200), coordd.text())
        self.assertEqual(self.ask(coordd, "/metrics", token="old")[0], 401)
        os.chmod(path, 0o644)
        coordd.signal(signal.SIGHUP)
        said = "goes on with the token that it has: --http-token-file names .* has mode 0644"
        self.assertTrue(wait_for(lambda: re.search(said, coordd.text())), coordd.text())
        self.assertEqual(self.ask(coordd, "/metrics", token="new")[0], 200)

    def test_without_a_token_file_no_token_lets_in(self):
        coordd = self.secure_coordd()
        for token in ("", " ", "x"):
            self.assertEqual(self.ask(coordd, "/metrics", token=token)[0], 401)

    @unittest.skipUnless(HAS_OPENSSL, "no openssl here")
    def test_a_certificate_of_another_authority_is_none(self):
        others = Certificates(os.path.join(self.folder, "others"))
        coordd = self.secure_coordd()
        context = self.context()
        context.load_cert_chain(f"{others.folder}/operator.crt", f"{others.folder}/operator.key")
        port = int(coordd.http.rsplit(":", 1)[1])
        with self.assertRaises((OSError, http.client.HTTPException)):
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
            connection.request("GET", "/metrics")
            connection.getresponse()

    def test_nothing_is_served_without_tls(self):
        coordd = self.secure_coordd()
        port = int(coordd.http.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            try:
                while more := client.recv(4096):
                    answer += more
            except OSError:
                pass
        self.assertNotIn(b"HTTP", answer)

    def test_on_loopback_it_is_as_it_was(self):
        coordd = self.coordd(*self.certificates.server_flags())
        self.assertEqual(coordd.get("/readyz").strip(), "ready")

    def test_where_it_would_be_read_a_token_is_refused(self):
        for flags in (["--http", "127.0.0.1:0"], ["--http", "0.0.0.0:0", "--insecure-http"]):
            status, text = self.run_command(program("coordd"), "--listen", "127.0.0.1:0", "--store", "memory", *flags,
                                            *self.certificates.server_flags(), "--http-token-file", self.token_file("x"))
            self.assertEqual(status, 2, text)
            self.assertIn("a token would be read on its way", text)

    def test_a_token_file_that_others_can_read_is_refused(self):
        status, text = self.run_command(program("coordd"), "--listen", "127.0.0.1:0", "--store", "memory", "--http", "0.0.0.0:0",
                                        *self.certificates.server_flags(), "--http-token-file", self.token_file("x", 0o644))
        self.assertNotEqual(status, 0, text)
        self.assertIn("--http-token-file", text)


if __name__ == "__main__":
    processes.main()
