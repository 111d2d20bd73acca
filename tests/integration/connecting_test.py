"""What whoever cannot come to a coordd hears: which file, which side or what else is wrong, and at once where waiting is no use."""

import os
import re
import shutil
import socket
import threading
import unittest

from tests.support import processes
from tests.support.processes import program

# Of an error that no waiting mends: far less than the join timeout that is given.
JOIN_TIMEOUT_S = 600
GRPC_WORDS = re.compile(r"ssl_transport_security|Socket closed|failed to connect to all|ipv4:127|C-ares|http1\.x|"
                        r"Failed parsing HTTP|Deadline Exceeded|^E\d{4} ", re.MULTILINE)


class Listener:
    """Something at a port that is no coordd: `meet` is called for each connection, on one thread."""

    def __init__(self, meet):
        self._door = socket.create_server(("127.0.0.1", 0))
        self._meet, self._kept = meet, []
        self.address = "127.0.0.1:%d" % self._door.getsockname()[1]
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            try:
                if self._meet(client) is False:
                    self._kept.append(client)
                else:
                    client.close()
            except OSError:
                client.close()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._door.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._door.close()
        for client in self._kept:
            client.close()


def close_at_once(_client):
    return True


def keep_silent(_client):
    return False


def be_http(client):
    client.recv(4096)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    client.shutdown(socket.SHUT_WR)
    while client.recv(4096):
        pass


def be_something(client):
    client.sendall(b"220 mail.example ESMTP\r\n")
    client.shutdown(socket.SHUT_WR)
    while client.recv(4096):
        pass


class ConnectingTest(processes.TestCase):
    def certificates(self, name="tls"):
        folder = os.path.join(self.folder, name)
        status, text = self.run_command(program("coordctl"), "certs", folder, "--name", "127.0.0.1")
        self.assertEqual(status, 0, text)
        return folder

    def files(self, ca, identity=None, side="worker"):
        identity = identity or ca
        return {"COORDD_TLS_CA": f"{ca}/ca.crt", "COORDD_TLS_CERT": f"{identity}/{side}.crt", "COORDD_TLS_KEY": f"{identity}/{side}.key"}

    def tls_coordd(self, folder):
        return self.coordd("--tls-cert", f"{folder}/server.crt", "--tls-key", f"{folder}/server.key", "--tls-ca", f"{folder}/ca.crt")

    def worker(self, address, join_timeout=JOIN_TIMEOUT_S, **variables):
        return self.run_command(program("coordd-worker"), "--coordinator", address, "--job", "a", "--size", "1", "--join-timeout",
                                str(join_timeout), "allreduce", "--iterations", "1", environment=processes.clean_environment(**variables))

    def coordctl(self, address, **variables):
        return self.run_command(program("coordctl"), "jobs", "--coordinator", address,
                                environment=processes.clean_environment(**variables))

    def coordrun(self, address, **variables):
        return self.run_command(program("coordrun"), "-np", "1", "--coordinator", address, "--", "true",
                                environment=processes.clean_environment(**variables))

    def assert_hears(self, answer, status, *sentences):
        self.assertEqual(answer[0], status, answer[1])
        for sentence in sentences:
            self.assertIn(sentence, answer[1])
        self.assertNotRegex(answer[1], GRPC_WORDS)

    # Certificates.

    def test_a_certificate_of_another_authority_than_coordds_is_final(self):
        tls, others = self.certificates(), self.certificates("others")
        coordd = self.tls_coordd(tls)
        said = f"coordd at {coordd.listen} does not take the certificate in {others}/worker.crt"
        for ask, status in ((self.worker, 3), (self.coordctl, 6), (self.coordrun, 2)):
            with self.subTest(ask=ask.__name__):
                self.assert_hears(ask(coordd.listen, **self.files(tls, others)), status, said)

    def test_servers_and_clients_may_have_authorities_of_their_own(self):
        servers, clients = self.certificates("servers"), self.certificates("clients")
        coordd = self.coordd("--tls-cert", f"{servers}/server.crt", "--tls-key", f"{servers}/server.key", "--tls-ca", f"{clients}/ca.crt")
        status, text = self.coordctl(coordd.listen, **self.files(servers, clients))
        self.assertEqual(status, 0, text)

    def test_a_certificate_for_servers_is_none_for_a_worker(self):
        tls = self.certificates()
        said = f"TLS certificate {tls}/server.crt is not for clients"
        self.assert_hears(self.worker("127.0.0.1:1", **self.files(tls, side="server")), 2, said)

    def test_who_trusts_another_authority_than_coordds_hears_so(self):
        coordd, others = self.tls_coordd(self.certificates()), self.certificates("others")
        said = f"the certificate of coordd at {coordd.listen} is not of the authority in {others}/ca.crt"
        for ask, status in ((self.worker, 3), (self.coordctl, 6), (self.coordrun, 2)):
            with self.subTest(ask=ask.__name__):
                self.assert_hears(ask(coordd.listen, **self.files(others)), status, said)

    def test_who_trusts_coordd_and_is_not_trusted_hears_which_certificate_it_is(self):
        tls, others = self.certificates(), self.certificates("others")
        coordd = self.tls_coordd(tls)
        with open(f"{others}/ca.crt", "ab") as both, open(f"{tls}/ca.crt", "rb") as more:
            shutil.copyfileobj(more, both)
        said = f"coordd at {coordd.listen} does not take the certificate in {others}/worker.crt"
        for ask, status in ((self.worker, 3), (self.coordctl, 6)):
            with self.subTest(ask=ask.__name__):
                self.assert_hears(ask(coordd.listen, **self.files(others)), status, said)

    def test_who_reaches_coordd_by_a_name_that_its_certificate_has_not_hears_so(self):
        tls = self.certificates()
        coordd = self.tls_coordd(tls)
        port = coordd.listen.rsplit(":", 1)[1]
        said = f"the certificate of coordd at 127.0.0.9:{port} is for other names"
        with socket.create_server(("127.0.0.9", int(port))) as door:
            threading.Thread(target=self.relay_bytes, args=(door, int(port)), daemon=True).start()
            self.assert_hears(self.worker(f"127.0.0.9:{port}", **self.files(tls)), 3, said)
            door.shutdown(socket.SHUT_RDWR)

    def relay_bytes(self, door, port):
        def pump(source, to):
            try:
                while data := source.recv(65536):
                    to.sendall(data)
                to.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        def serve(client):
            with client, socket.create_connection(("127.0.0.1", port)) as server:
                back = threading.Thread(target=pump, args=(server, client))
                back.start()
                pump(client, server)
                back.join()
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    def test_coordd_starts_with_no_certificate_that_its_clients_refuse(self):
        tls = self.certificates()
        for cert, said in ((f"{tls}/worker", "is not for servers"),):
            status, text = self.run_command(program("coordd"), "--listen", "127.0.0.1:0", "--store", "memory", "--tls-ca", f"{tls}/ca.crt",
                                            "--tls-cert", f"{cert}.crt", "--tls-key", f"{cert}.key")
            self.assertEqual(status, 2, text)
            self.assertIn(f"TLS certificate {cert}.crt {said}", text)

    # TLS on one side only.

    def test_tls_at_a_coordd_without_it_is_final(self):
        coordd, tls = self.coordd(), self.certificates()
        for ask, status in ((self.worker, 3), (self.coordctl, 1), (self.coordrun, 2)):
            with self.subTest(ask=ask.__name__):
                answer = ask(coordd.listen, **self.files(tls))
                self.assert_hears(answer, status, f"coordd at {coordd.listen} speaks no TLS")
                self.assertLessEqual(len(answer[1].splitlines()), 3, answer[1])

    # What is no coordd.

    def assert_no_coordd(self, address, said):
        for ask, status in ((self.worker, 3), (self.coordctl, 1), (self.coordrun, 2)):
            with self.subTest(ask=ask.__name__):
                self.assert_hears(ask(address), status, f"what listens at {address} is no coordd: {said}")

    def test_an_http_server_is_no_coordd(self):
        with Listener(be_http) as server:
            self.assert_no_coordd(server.address, "it answers as an HTTP server (coordd's status page has a port of its own)")

    def test_nor_is_coordds_own_status_page(self):
        self.assert_no_coordd(self.coordd().http, "it answers as an HTTP server (coordd's status page has a port of its own)")

    def test_nor_is_a_mail_server(self):
        with Listener(be_something) as server:
            self.assert_no_coordd(server.address, "it answers in another protocol")

    def test_what_is_no_coordd_has_refused_nothing(self):
        with Listener(be_something) as server:
            for change in (("evict", "--job", "x", "0"), ("drain", "--job", "x", "0")):
                answer = self.run_command(program("coordctl"), *change, "--coordinator", server.address)
                self.assert_hears(answer, 1, f"what listens at {server.address} is no coordd")

    def test_a_trace_is_not_waited_for_where_nobody_answers(self):
        with Listener(keep_silent) as server:
            answer = self.run_command(program("coordctl"), "trace", "x", "--coordinator", server.address)
            self.assert_hears(answer, 1, f"coordd at {server.address}: it takes connections and says nothing")

    def test_nor_is_an_http_server_to_whoever_speaks_tls(self):
        with Listener(be_http) as server:
            answer = self.worker(server.address, **self.files(self.certificates()))
            self.assert_hears(answer, 3, f"what listens at {server.address} is no coordd: it answers as an HTTP server")

    def test_a_port_that_closes_may_be_a_crowded_coordd(self):
        with Listener(close_at_once) as server:
            answer = self.worker(server.address, join_timeout=2)
            self.assert_hears(answer, 3, f"job a could not be joined in time, coordd at {server.address}: it closes the connection without "
                                         "a word: it is no coordd, or one to which more come than it lets in")

    def test_a_port_that_is_mute_is_called_so(self):
        with Listener(keep_silent) as server:
            for ask, status in ((lambda address: self.worker(address, join_timeout=4), 3), (self.coordctl, 1)):
                self.assert_hears(ask(server.address), status, f"coordd at {server.address}: it takes connections and says nothing")

    def test_a_name_that_nobody_knows_may_come(self):
        address = "no-such-host.invalid:29650"
        for ask, status in ((lambda name: self.worker(name, join_timeout=1), 3), (self.coordctl, 1)):
            self.assert_hears(ask(address), status, f"coordd at {address}: the host name no-such-host.invalid is not known here")

    def test_nobody_at_the_port_may_come(self):
        with socket.create_server(("127.0.0.1", 0)) as door:
            address = "127.0.0.1:%d" % door.getsockname()[1]
        for ask, status in ((lambda name: self.worker(name, join_timeout=1), 3), (self.coordctl, 1)):
            self.assert_hears(ask(address), status, f"coordd at {address}: ", "Connection refused")

    # What is no address.

    def test_an_address_has_a_host_and_a_port(self):
        for address, said in (("http://127.0.0.1:29650", "is a URL; expected HOST:PORT"), ("127.0.0.1", "has no port"),
                              ("127.0.0.1:", "has a port that is not a number"), ("", "")):
            for name, ask in (("worker", self.worker), ("coordctl", self.coordctl), ("coordrun", self.coordrun)):
                with self.subTest(address=address, program=name):
                    self.assert_hears(ask(address), 2, said, "HOST:PORT")

    def test_an_empty_coordinator_empties_no_node_of_another_coordd(self):
        self.coordd()
        for command in (["drain", "node0"], ["evict", "node0"], ["status"]):
            answer = self.run_command(program("coordctl"), *command, "--coordinator", "")
            self.assert_hears(answer, 2, "--coordinator is empty, expected HOST:PORT")

    # What coordd said.

    def test_what_coordd_refused_with_is_in_the_last_words(self):
        coordd = self.coordd(wrapper=("prlimit", "--nofile=64:64"))
        most = int(coordd.metric("coordd_connections_max"))
        host, port = coordd.listen.rsplit(":", 1)
        held = [self.start(processes.ScriptedWorker(coordd.listen, COORDD_JOB_ID="held", COORDD_MIN_WORKERS=most + 1,
                                                    COORDD_JOIN_TIMEOUT=JOIN_TIMEOUT_S)) for _ in range(most)]
        self.assertTrue(processes.wait_for(lambda: coordd.metric("coordd_connections") == most))
        self.assertTrue(all(worker.running() for worker in held), (host, port))
        self.assert_hears(self.worker(coordd.listen, join_timeout=3), 3, f"coordd takes no more connections: all {most}")


if __name__ == "__main__":
    unittest.TestCase.maxDiff = None
    processes.main()
