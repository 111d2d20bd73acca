"""How coordd meets strangers at its ports: what they cost others, and what they and the operator hear."""

import os
import re
import socket
import ssl
import subprocess
import threading
import time
import unittest

from tests.support import processes
from tests.support.processes import ScriptedWorker, program, wait_for
from tests.support.raw_http2 import Connection, compressed_message, field, framed
from tests.support.strangers import HTTP2_HELLO, HTTP2_PREFACE, TLS_HEAD, Strangers, tls_hello

MIB = 1 << 20
GROUP_MIB = 512  # a sanitizer's quarantine takes half of it


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) >> 10


def limited(soft, hard):
    return ("prlimit", f"--nofile={soft}:{hard}")


def in_control_group(bytes_max):
    """A wrapper that shows a process a control group (v2) of its own with this bound, which nobody enforces: what the process
    makes of it is under test, and a sanitizer can bear it."""
    show = ("group=$(sed -n 's/^0:://p' /proc/self/cgroup) && mount -t tmpfs groups /sys/fs/cgroup && "
            f"mkdir -p \"/sys/fs/cgroup$group\" && echo {bytes_max} > \"/sys/fs/cgroup$group/memory.max\" && exec \"$@\"")
    return ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c", show, "sh")


def can_show_control_groups():
    return subprocess.run([*in_control_group(1), "true"], capture_output=True, check=False).returncode == 0


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


class DoorTest(processes.TestCase):
    def address(self, coordd):
        host, port = coordd.listen.rsplit(":", 1)
        return host, int(port)

    def certificates(self, name="tls"):
        folder = os.path.join(self.folder, name)
        status, text = self.run_command(program("coordctl"), "certs", folder, "--name", "127.0.0.1")
        self.assertEqual(status, 0, text)
        return folder

    def tls_coordd(self, folder, *arguments, **options):
        return self.coordd("--tls-cert", f"{folder}/server.crt", "--tls-key", f"{folder}/server.key", "--tls-ca", f"{folder}/ca.crt",
                           *arguments, **options)

    def worker_variables(self, folder):
        return {"COORDD_TLS_CA": f"{folder}/ca.crt", "COORDD_TLS_CERT": f"{folder}/worker.crt",
                "COORDD_TLS_KEY": f"{folder}/worker.key"}

    def status_of(self, coordd, folder=None):
        command = [program("coordctl"), "status", "--coordinator", coordd.listen]
        if folder:
            command += ["--tls-ca", f"{folder}/ca.crt", "--tls-cert", f"{folder}/operator.crt", "--tls-key", f"{folder}/operator.key"]
        return self.run_command(*command)

    def joining(self, coordd, job, **variables):
        """The seconds that a new worker takes, and the worker."""
        begin = time.monotonic()
        worker = self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID=job, COORDD_MIN_WORKERS=1, COORDD_MAX_WORKERS=1,
                                           COORDD_JOIN_TIMEOUT=processes.PATIENCE_S, **variables))
        worker.joined()
        return time.monotonic() - begin, worker

    def joins(self, coordd, job, **variables):
        return self.joining(coordd, job, **variables)[0]

    def get_status(self, coordd, path):
        """Status and body of a page, whatever its status."""
        host, port = coordd.http.rsplit(":", 1)
        with socket.create_connection((host, int(port)), processes.PATIENCE_S) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answer = b""
            while more := client.recv(65536):
                answer += more
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split()[1]), body

    def test_raises_its_soft_limit_of_descriptors(self):
        coordd = self.coordd(wrapper=limited(64, 4096))
        with open(f"/proc/{coordd.pid}/limits", encoding="ascii") as limits:
            line = next(line for line in limits if line.startswith("Max open files"))
        self.assertEqual(line.split()[3:5], ["4096", "4096"])
        self.assertGreater(coordd.metric("coordd_connections_max"), 1000)  # each takes three

    def assert_survives_silence(self, coordd, **variables):
        silent = [socket.create_connection(self.address(coordd), 20) for _ in range(300)]
        self.joins(coordd, "among-them", **variables)
        for one in silent:
            one.close()
        # Against hangs; the process's own start is most of it.
        self.assertLess(self.joins(coordd, "after-them", **variables), 20 if processes.SANITIZED else 5)
        self.assertEqual(coordd.get("/readyz").strip(), "ready")
        self.assertGreater(coordd.metric("coordd_connections_refused_total", reason="silent"), 100)
        self.assertIn("it had said nothing, and others wait", coordd.text())
        self.assertIn("127.0.0.1:", coordd.text())
        self.assertLess(coordd.text().count("had said nothing"), 100)

    def test_strangers_who_say_nothing_keep_nobody_out(self):
        self.assert_survives_silence(self.coordd(wrapper=limited(128, 128)))

    def test_nor_do_they_where_tls_is_spoken(self):
        tls = self.certificates()
        self.assert_survives_silence(self.tls_coordd(tls, wrapper=limited(128, 128)), **self.worker_variables(tls))

    def test_strangers_who_begin_a_handshake_and_leave_are_forgotten(self):
        tls = self.certificates()
        coordd = self.tls_coordd(tls, wrapper=limited(128, 128))
        for _ in range(3):
            begun = []
            for _ in range(200):
                one = socket.create_connection(self.address(coordd), 20)
                one.sendall(b"\x16")
                begun.append(one)
            for one in begun:
                one.close()
        self.joins(coordd, "after-them", **self.worker_variables(tls))
        self.assertTrue(wait_for(lambda: coordd.get("/readyz").strip() == "ready"))

    def assert_strangers_keep_nobody_out(self, coordd, ask, tls=None):
        """While hundreds of strangers say `ask` and nothing more, over and over."""
        variables = self.worker_variables(tls) if tls else {}
        with Strangers(self.address(coordd), 500, ask, source="127.0.0.2") as strangers:
            for i in range(5):
                status, text = self.status_of(coordd, tls)
                self.assertEqual(status, 0, text)
                # Against hangs: alone it is a fifth of a second.
                self.assertLess(self.joins(coordd, f"beside-{i}", **variables), 20)
            self.assertEqual(coordd.get("/readyz").strip(), "ready")
            self.assertGreater(strangers.closed, 100)
        with Strangers(self.address(coordd), 500, ask):
            self.joins(coordd, "among-them", **variables)  # from the same address; it tries again, and so does coordctl
            answers = [self.status_of(coordd, tls) for _ in range(5)]
            # A sanitizer makes a handshake so slow that the strangers' places are seldom ended for it.
            self.assertGreaterEqual(sum(status == 0 for status, _ in answers), 1 if processes.SANITIZED else 5, answers)
        self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="full"), 0)
        self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="descriptors"), 0)

    def test_strangers_who_begin_http2_and_say_nothing_more_keep_nobody_out(self):
        for ask in (HTTP2_PREFACE, HTTP2_HELLO):
            self.assert_strangers_keep_nobody_out(self.coordd(wrapper=limited(256, 256)), ask)

    def test_strangers_who_begin_tls_and_say_nothing_more_keep_nobody_out(self):
        tls = self.certificates()
        for ask in (TLS_HEAD, tls_hello()):
            coordd = self.tls_coordd(tls, wrapper=limited(256, 256))
            self.assert_strangers_keep_nobody_out(coordd, ask, tls)
        self.assertIn("it has begun a TLS handshake and not gone on, and others wait", coordd.text())

    def test_coordctl_says_that_it_is_turned_away_each_time(self):
        with socket.create_server(("127.0.0.1", 0)) as door:
            def turn_away():
                while True:
                    try:
                        client, _ = door.accept()
                    except OSError:
                        return
                    client.recv(1)  # what follows is unread, so that its end is a reset
                    client.close()
            turning_away = threading.Thread(target=turn_away)
            turning_away.start()
            address = f"127.0.0.1:{door.getsockname()[1]}"
            status, text = self.run_command(program("coordctl"), "status", "--coordinator", address)
            door.shutdown(socket.SHUT_RDWR)
            turning_away.join()
        self.assertEqual(status, 1, text)
        self.assertRegex(text, rf"^coordctl: coordd at {address}: it closes the connection without a word: it is no coordd, or one to "
                               r"which more come than it lets in \(it closed each of \d+ connections within [\d.]+m?s\)\n$")
        self.assertGreater(int(re.search(r"each of (\d+)", text).group(1)), 1)

    def test_nobody_at_the_port_is_told_at_once(self):
        with socket.create_server(("127.0.0.1", 0)) as door:
            address = f"127.0.0.1:{door.getsockname()[1]}"
        status, text = self.run_command(program("coordctl"), "status", "--coordinator", address)
        self.assertEqual(status, 1, text)
        self.assertIn("Connection refused", text)
        self.assertNotIn("it closed", text)

    def test_members_stay_while_strangers_come(self):
        tls = self.certificates()
        coordd = self.tls_coordd(tls, wrapper=limited(256, 256))
        workers = self.workers(coordd, 4, **self.worker_variables(tls))
        with Strangers(self.address(coordd), 500, tls_hello()):
            self.assertTrue(wait_for(lambda: (coordd.metric("coordd_connections_refused_total", reason="unfinished") or 0) > 500))
            for worker in workers:
                worker.tell("barrier")
            self.assertEqual({worker.answer() for worker in workers}, {"ok"})

    def test_descriptors_never_run_out(self):
        tls = self.certificates()
        for limit in (64, 100, 256):
            coordd = self.tls_coordd(tls, "--store", f"sqlite:{self.folder}/state-{limit}", wrapper=limited(limit, limit))
            host, port = coordd.http.rsplit(":", 1)
            grpc, most = self.address(coordd), 0
            with Strangers(grpc, 200, tls_hello(), source="127.0.0.2") as begin, Strangers(grpc, 200, b"", source="127.0.0.3"), \
                 Strangers((host, int(port)), 100, b"GET /metrics HTTP/1.1\r\n\r\n", read_every_s=1):
                while begin.closed < 2000:
                    most = max(most, len(os.listdir(f"/proc/{coordd.pid}/fd")))
                for i in range(4):  # one after the other: the smallest limit leaves room for few
                    seconds, worker = self.joining(coordd, f"among-{i}", **self.worker_variables(tls))
                    worker.end()
                    self.assertLess(seconds, 20)  # alone it is a fifth of a second
            self.assertLess(most, limit)
            self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="descriptors"), 0)
            self.assertNotIn("descriptors", coordd.text())

    def fill(self, coordd, count, context=None):
        """As many connections as honest clients, their first byte said; how many of them were told no."""
        opened, refused = [], []
        for _ in range(count):
            try:
                opened.append(Connection(coordd.listen, context=context).greeted())
            except (OSError, AssertionError):
                refused.append(None)
        return opened, refused

    def test_one_client_too_many_hears_a_sentence_and_the_next_gets_in(self):
        coordd = self.coordd(wrapper=limited(128, 128))
        most = int(coordd.metric("coordd_connections_max"))
        opened, _ = self.fill(coordd, 150)
        self.assertEqual(int(coordd.metric("coordd_connections")), most)
        status, body = self.get_status(coordd, "/readyz")
        self.assertEqual(status, 503)
        self.assertIn(f"takes no more connections: all {most}", body)
        self.assertEqual(coordd.get("/healthz").strip(), "ok")
        status, text = self.status_of(coordd)
        self.assertNotEqual(status, 0)
        self.assertIn(f"coordd takes no more connections: all {most}", text)
        self.assertIn("LimitNOFILE", text)
        self.assertGreater(coordd.metric("coordd_connections_refused_total", reason="full"), 0)
        for one in opened:
            one.close()
        self.joins(coordd, "after-them")
        self.assertEqual(coordd.get("/readyz").strip(), "ready")

    def test_one_too_many_hears_it_with_tls_too(self):
        tls = self.certificates()
        coordd = self.tls_coordd(tls, wrapper=limited(128, 128))
        context = ssl.create_default_context(cafile=f"{tls}/ca.crt")
        context.load_cert_chain(f"{tls}/operator.crt", f"{tls}/operator.key")
        context.set_alpn_protocols(["h2"])
        most = int(coordd.metric("coordd_connections_max"))
        opened, _ = self.fill(coordd, most, context)
        status, text = self.status_of(coordd, tls)
        self.assertNotEqual(status, 0)
        self.assertIn(f"coordd takes no more connections: all {most}", text)
        for one in opened:
            one.close()
        self.joins(coordd, "after-them", **self.worker_variables(tls))

    def test_a_compressed_message_is_refused_before_it_is_inflated(self):
        coordd = self.coordd()
        before = resident_mib(coordd.pid)
        for size in (60 * MIB, 100):  # compressed it fits into the window that a client has without asking
            client = Connection(coordd.listen)
            answer = client.answer(message=compressed_message(size), grpc_encoding="gzip")
            client.close()
            self.assertIn(b"grpc-status\x0212", answer.replace(b"\x00", b""))  # UNIMPLEMENTED
            self.assertIn(b"gzip", answer)
        self.assertLess(resident_mib(coordd.pid) - before, 30)
        self.joins(coordd, "after-it")

    @unittest.skipUnless(can_show_control_groups(), "no mount namespaces here: they need root, or unshare --map-root-user")
    def test_messages_that_do_not_end_cost_their_connection(self):
        coordd = self.coordd(wrapper=in_control_group(GROUP_MIB << 20))
        bound = GROUP_MIB / 4
        workers = self.workers(coordd, 2)
        strangers, sent, ended = [], 0, r"a connection of [\d.]+:\d+ was ended: it has sent"
        # On a loaded machine gRPC may take no more of one connection long before that is too much: then another one goes on.
        while not re.search(ended, coordd.text()) and len(strangers) < 40:
            strangers.append(Connection(coordd.listen, seconds=3).greeted())
            sent += strangers[-1].send_endless("/coordd.v1.Store/Set", streams=800, size=1 << 20, seconds=processes.PATIENCE_S)
        self.assertTrue(wait_for(lambda: re.search(ended, coordd.text())), (sent, coordd.text()))
        self.assertIn(re.search(ended, coordd.text())[0].split()[3], [f"{one.name[0]}:{one.name[1]}" for one in strangers])
        self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="endless"), 1)
        self.assertLess(sent / MIB, 3 * bound)
        for worker in workers:
            worker.tell("barrier")
        self.assertEqual({worker.answer() for worker in workers}, {"ok"})
        self.joins(coordd, "after-it")

    def assert_stores_no_more_than(self, coordd, bound):
        """Clients store as much as they may, until one hears that coordd keeps the rest of its `bound` for itself."""
        value = bytes(60000)  # with its frame it fits into a stream's window
        refused, stored = b"", 0
        for job in range(8):
            self.workers(coordd, 1, job=f"big{job}")
            client = Connection(coordd.listen)
            for key in range(5000):
                caller = field(1, f"big{job}".encode())
                message = field(1, caller) + field(2, f"k{key}".encode()) + field(3, value)
                answer = client.answer("/coordd.v1.Store/Set", framed(message), grpc_timeout="20S")
                if b"nothing more is stored" in answer or b"the most that it may" in answer:
                    refused = answer
                    break
                stored += 1
            client.close()
            if b"nothing more is stored" in refused:
                break
        self.assertIn(bound, refused)
        self.assertGreater(stored, 0)
        self.assertTrue(coordd.running())
        self.joins(coordd, "after-it")

    @unittest.skipIf(processes.SANITIZED, "a sanitizer's shadow memory is terabytes of address space, so that none can be taken away")
    def test_a_job_fits_into_little_address_space(self):
        coordd = self.coordd(wrapper=("prlimit", "--as=1500000000"))
        status, text = self.run_command(program("coordrun"), "-np", "8", "--coordinator", coordd.listen, "--", program("coordd-worker"),
                                        "allreduce", "--iterations", "20")
        self.assertEqual(status, 0, text)

    @unittest.skipIf(processes.SANITIZED, "a sanitizer's shadow memory is terabytes of address space, so that none can be taken away")
    def test_what_clients_store_never_takes_the_memory_that_coordd_needs(self):
        coordd = self.coordd("--max-bytes-per-owner", "8000000000", wrapper=("prlimit", "--as=1500000000"))
        self.assert_stores_no_more_than(coordd, b"of the 1430 MiB of address space that it may have")

    @unittest.skipUnless(can_show_control_groups(), "no mount namespaces here: they need root, or unshare --map-root-user")
    def test_nor_the_memory_that_its_control_group_leaves_it(self):
        coordd = self.coordd("--max-bytes-per-owner", "8000000000", wrapper=in_control_group(GROUP_MIB << 20))
        self.assert_stores_no_more_than(coordd, b"of the %d MiB of memory that it may have" % GROUP_MIB)

    def test_who_speaks_no_tls_where_it_is_wanted_hears_so(self):
        tls = self.certificates()
        coordd = self.tls_coordd(tls)
        status, text = self.status_of(coordd)
        self.assertNotEqual(status, 0)
        self.assertIn("this coordd wants TLS: give --tls-ca", text)
        worker = self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="j", COORDD_MIN_WORKERS=1, COORDD_JOIN_TIMEOUT=20))
        self.assertIn("this coordd wants TLS", worker.answer())
        self.assertGreaterEqual(coordd.metric("coordd_connections_refused_total", reason="plaintext"), 2)
        self.assertRegex(coordd.text(), r"a connection of 127\.0\.0\.1:\d+ was refused: it speaks no TLS")

    def test_who_speaks_tls_where_there_is_none_hears_so(self):
        tls = self.certificates()
        coordd = self.coordd()
        status, text = self.status_of(coordd, tls)
        self.assertNotEqual(status, 0)
        self.assertIn("speaks no TLS", text)
        worker = self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="j", COORDD_MIN_WORKERS=1, COORDD_JOIN_TIMEOUT=5,
                                           **self.worker_variables(tls)))
        self.assertIn("speaks no TLS", worker.answer())
        self.assertGreaterEqual(coordd.metric("coordd_connections_refused_total", reason="tls"), 2)
        self.assertRegex(coordd.text(), r"a connection of 127\.0\.0\.1:\d+ was refused: it speaks TLS")

    def test_a_refused_handshake_is_a_line_with_its_address_and_a_count(self):
        tls, others = self.certificates(), self.certificates("others")
        coordd = self.tls_coordd(tls)
        for who, said in ((others, "its certificate is not of the authority"), (None, "it presented no certificate")):
            context = ssl.create_default_context(cafile=f"{tls}/ca.crt")
            context.set_alpn_protocols(["h2"])
            if who:
                context.load_cert_chain(f"{who}/worker.crt", f"{who}/worker.key")
            with socket.create_connection(self.address(coordd), 20) as plain:
                mine = "%s:%d" % plain.getsockname()
                with self.assertRaises((OSError, ssl.SSLError)):
                    with context.wrap_socket(plain, server_hostname="localhost") as client:
                        client.sendall(b"x")
                        while client.recv(1000):
                            pass
                        raise ssl.SSLError("closed")
            self.assertTrue(wait_for(lambda said=said, mine=mine: f"a TLS handshake of {mine} was refused: {said}" in coordd.text()),
                            coordd.text())
        self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="handshake"), 2)
        self.assertEqual(self.status_of(coordd, tls)[0], 0)

    def test_a_browser_at_the_wrong_port_is_told(self):
        coordd = self.coordd()
        with socket.create_connection(self.address(coordd), 20) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while more := client.recv(4096):
                answer += more
        self.assertIn(b"400 Bad Request", answer)
        self.assertIn(b"--http", answer)

    def test_http_beyond_loopback_has_to_be_asked_for(self):
        status, text = self.run_command(program("coordd"), "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0", "--store", "memory")
        self.assertEqual(status, 2, text)
        self.assertIn("refusing to serve HTTP on 0.0.0.0:0 without --insecure-http", text)
        coordd = self.coordd("--insecure-http", http="0.0.0.0:0")
        self.assertIn("0.0.0.0:", coordd.http)
        status, text = self.run_command(program("coordd"), "--listen", "0.0.0.0:0", "--insecure-http", "--store", "memory")
        self.assertEqual(status, 2, text)  # which says nothing about gRPC

    @unittest.skipUnless(has_ipv6(), "no IPv6 here")
    def test_http_and_metrics_listen_on_ipv6(self):
        coordd = self.coordd(http="[::1]:0", listen="[::1]:0")
        self.assertEqual(coordd.get("/readyz").strip(), "ready")
        self.assertIn("<title>coordd</title>", coordd.get("/"))
        worker = self.workers(coordd, 1, COORDD_METRICS="[::1]:0")[0]
        self.assertRegex(worker.place["metrics"], r"^\[::1\]:\d+$")
        targets = [target for group in coordd.json("/v1/targets") for target in group["targets"]]
        self.assertEqual(targets, [worker.place["metrics"]])

    def assert_probed_in_time(self, address, path, drips=80):
        """While `drips` clients send a byte now and then."""
        host, port = address.rsplit(":", 1)
        stop, begun = threading.Event(), threading.Semaphore(0)

        def drip():
            while not stop.is_set():
                with socket.create_connection((host, int(port)), 20) as client:
                    begun.release()
                    try:
                        for byte in b"GET / HTTP/1.1\r\nX: " + b"x" * 1000:
                            client.sendall(bytes([byte]))
                            if stop.wait(0.05):
                                break
                    except OSError:
                        pass

        threads = [threading.Thread(target=drip) for _ in range(drips)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(drips):
                begun.acquire()
            for _ in range(20):
                with socket.create_connection((host, int(port)), 1) as probe:
                    probe.settimeout(1)
                    probe.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    self.assertIn(b" 200 ", probe.recv(100))
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_slow_clients_of_http_delay_no_probe(self):
        coordd = self.coordd()
        self.assert_probed_in_time(coordd.http, "/healthz")
        self.assert_probed_in_time(coordd.http, "/readyz")

    def test_nor_do_hundreds_who_do_not_read_their_answers(self):
        coordd = self.coordd(wrapper=limited(256, 256))
        host, port = coordd.http.rsplit(":", 1)
        for path in ("/healthz", "/metrics"):
            ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            with Strangers((host, int(port)), 500, ask, read_every_s=1):
                for _ in range(20):
                    begin = time.monotonic()
                    self.assertEqual(coordd.get("/healthz").strip(), "ok")
                    # Against hangs: on two loaded cores it is 0.4 s at worst.
                    self.assertLess(time.monotonic() - begin, 10)

    def test_nor_any_of_a_workers_metrics(self):
        worker = self.workers(self.coordd(), 1, COORDD_METRICS="127.0.0.1:0")[0]
        self.assert_probed_in_time(worker.place["metrics"], "/healthz")

    def test_refused_joins_fill_no_log(self):
        coordd = self.coordd()
        self.workers(coordd, 1, job="taken", COORDD_TOKEN_FILE=self.token_file("right"))
        before = len(coordd.text())
        client = Connection(coordd.listen)
        client.close()
        wrong = self.token_file("wrong")
        refused = [self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="taken", COORDD_TOKEN_FILE=wrong)) for _ in range(40)]
        for worker in refused:
            self.assertIn("UNAUTHENTICATED", worker.answer())
        self.assertEqual(coordd.metric("coordd_join_refusals_total"), 40)
        lines = coordd.text()[before:].count("another run at this coordd is called job taken")
        self.assertLess(lines, 40)
        self.assertGreaterEqual(lines, 20)

    def token_file(self, token):
        path = os.path.join(self.folder, f"token-{token}")
        with open(path, "w", encoding="ascii") as out:
            out.write(token)
        os.chmod(path, 0o600)
        return path

    def test_a_token_file_that_others_can_read_is_refused(self):
        path = self.token_file("secret")
        os.chmod(path, 0o644)
        worker = self.start(ScriptedWorker(self.coordd().listen, COORDD_JOB_ID="j", COORDD_TOKEN_FILE=path))
        answer = worker.answer()
        self.assertIn(path, answer)
        self.assertIn("chmod 600", answer)


if __name__ == "__main__":
    processes.main()
