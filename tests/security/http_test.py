"""Who may ask coordd's HTTP port beyond loopback: who has its token, or a certificate that lets see all jobs; over TLS alone."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import threading
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

    def test_who_guesses_at_the_token_waits(self):
        coordd = self.secure_coordd("--http-token-file", self.token_file("open-sesame"))
        for _ in range(128):
            self.assertEqual(self.ask(coordd, "/metrics", token="guess")[0], 401)
        status, text = self.ask(coordd, "/metrics", token="open-sesame")
        self.assertEqual(status, 401)
        self.assertIn("wrong tokens for all jobs came from this host: the next one is looked at in", text)
        self.assertTrue(wait_for(lambda: self.ask(coordd, "/metrics", token="open-sesame")[0] == 200), coordd.text())

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
        os.chmod(path, 0o600)
        coordd.signal(signal.SIGHUP)
        self.assertTrue(wait_for(lambda: "the file of --http-token-file can be used again" in coordd.text()), coordd.text())
        os.remove(path)
        os.mkfifo(path, 0o600)
        coordd.signal(signal.SIGHUP)
        said = "goes on with the token that it has: --http-token-file names .* which is a pipe now; expected a file"
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
        self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
        self.assertIn(b"expected https", answer)
        self.assertNotIn(b"ok", answer)

    def refused(self, coordd, reason):
        """What the metric says; asked for with a certificate, which is refused nothing."""
        text = self.ask(coordd, "/metrics", "operator")[1]
        return float(re.search(rf'coordd_http_refused_total{{reason="{reason}"}} (\S+)', text)[1])

    def test_whoever_is_refused_is_named_and_counted(self):
        worker = self.certificates.add("worker", "train7")
        coordd = self.secure_coordd("--http-token-file", self.token_file("open-sesame"))
        reasons = ("address_full", "answers", "full", "plaintext", "handshake", "token", "unauthorized")
        for reason in reasons:
            self.assertEqual(self.refused(coordd, reason), 0, reason)
        self.ask(coordd, "/metrics")
        self.ask(coordd, "/v1/jobs", worker)
        self.ask(coordd, "/metrics", token="open-sesam")
        port = int(coordd.http.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            client.recv(4096)
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            client.sendall(b"\x16\x03\x01\x00\x08\x02\x00\x00\x04what")  # as a server says hello
            client.recv(4096)
        for reason, count in zip(reasons, (0, 0, 0, 1, 1, 1, 2)):
            self.assertEqual(self.refused(coordd, reason), count, reason)
        for said in (r"a request of 127\.0\.0\.1:\d+ was refused: /metrics: bring a certificate",
                     r"a request of 127\.0\.0\.1:\d+ was refused: /v1/jobs: worker/train7 may not see all jobs",
                     r"a request of 127\.0\.0\.1:\d+ was refused: /metrics: this is not the token",
                     r"a connection of 127\.0\.0\.1:\d+ was refused: it speaks no TLS",
                     r"a TLS handshake of 127\.0\.0\.1:\d+ was refused: "):
            self.assertRegex(coordd.text(), said)
        self.assertNotIn("open-sesam", coordd.text())

    def test_handshakes_that_a_stranger_begins_and_leaves_keep_no_probe_out(self):
        coordd = self.secure_coordd()
        port = int(coordd.http.rsplit(":", 1)[1])
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self.context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        except ssl.SSLWantReadError:
            pass
        hello, begun, end = outgoing.read(), [], threading.Event()

        def stranger():
            while not end.is_set():
                try:
                    one = socket.create_connection(("127.0.0.1", port), PATIENCE_S, ("127.0.0.2", 0))
                    begun.append(one)
                    one.sendall(hello)
                except OSError:
                    pass
                if len(begun) > 500:
                    begun.pop(0).close()

        thread = threading.Thread(target=stranger)
        thread.start()
        try:
            limited = r"a connection of 127\.0\.0\.2:\d+ was closed: its address has begun more than 50"
            self.assertTrue(wait_for(lambda: re.search(limited, coordd.text())), coordd.text())
            for path in ("/healthz", "/readyz") * 5:
                self.assertEqual(self.ask(coordd, path)[0], 200)
        finally:
            end.set()
            thread.join()
            for one in begun:
                one.close()
        self.assertGreater(self.refused(coordd, "address_full"), 0)
        self.assertNotIn("of 127.0.0.1:", coordd.text())

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
        self.assertEqual(status, 2, text)  # which systemd does not start again
        self.assertIn("--http-token-file", text)
        self.assertIn("others than its owner can reach the token; expected 0600", text)
        self.assertNotIn("job's", text)


if __name__ == "__main__":
    processes.main()
