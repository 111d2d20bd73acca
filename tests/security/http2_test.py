"""What a client that was let in can do to coordd below gRPC's messages: its connection is closed and named, and a job does not
notice."""

import contextlib
import os
import re
import signal
import struct
import threading

from tests.support import processes
from tests.support.certificates import Certificates
from tests.support.processes import PATIENCE_S, wait_for
from tests.support.raw_http2 import (ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, SETTINGS, WINDOW_UPDATE, Connection, call_headers,
                                     frame, headers, number)

PRIORITY, RST_STREAM, CONTINUATION, NOBODYS = 2, 3, 9, 0xfe
MIB = 1 << 20
PATH = "/coordd.v1.Admin/GetState"
# As much as any of these may make of coordd; without a bound of its own each takes more, or holds others up for seconds.
MOST_MIB = 256
# Behind so much a flood goes on for ever.
FLOOD_MIB = 256
CONNECTIONS = 80
ORDINARY = {":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "test", "te": "trailers", "content-type": "application/grpc"}
CALL = frame(HEADERS, END_HEADERS, 1, call_headers(PATH))
# A value whose length is a gibibyte, and one whose length never ends.
ENDLESS_STRING = call_headers(PATH) + b"\0\x05x-bom" + number(1 << 30, 7)
ENDLESS_NUMBER = call_headers(PATH) + b"\0\x05x-bom\x7f"


def memory_mib(pid, what="VmRSS"):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(what + ":")) >> 10


def resets(stream):
    """A hundred calls, each of which is reset at once."""
    return b"".join(frame(HEADERS, END_HEADERS, one, call_headers(PATH)) + frame(RST_STREAM, 0, one, struct.pack(">I", 8))
                    for one in range(stream, stream + 200, 2))


def ended(stream):
    """A hundred calls that have no message."""
    return b"".join(frame(HEADERS, END_HEADERS | END_STREAM, one, call_headers(PATH)) for one in range(stream, stream + 200, 2))


def whole(stream):
    """A hundred calls, of which gRPC answers each: there is no such path."""
    return b"".join(frame(HEADERS, END_HEADERS, one, call_headers("/x/y")) + frame(DATA, END_STREAM, one, bytes(5))
                    for one in range(stream, stream + 200, 2))


def always(repeated, first=b""):
    """`first`, and then the same again and again."""
    def pieces():
        yield first
        many = repeated * max(1, 16384 // len(repeated))
        while True:
            yield many
    return pieces


def calls(hundred):
    def pieces():
        for stream in range(1, 1 << 30, 200):
            yield hundred(stream)
    return pieces


FLOODS = {
    "an endless string of a header": (always(frame(CONTINUATION, 0, 1, b"a" * 16384), frame(HEADERS, 0, 1, ENDLESS_STRING)),
                                      "a block of headers of more than 64 KiB"),
    "an endless number in a header": (always(frame(CONTINUATION, 0, 1, b"\x80" * 16384), frame(HEADERS, 0, 1, ENDLESS_NUMBER)),
                                      "a block of headers of more than 64 KiB"),
    "the same in small pieces": (always(frame(CONTINUATION, 0, 1, b"\x80" * 8), frame(HEADERS, 0, 1, ENDLESS_NUMBER)),
                                 "a block of headers in more than 16 frames"),
    "headers without an end": (always(frame(CONTINUATION, 0, 1, headers([("x-pad", "a" * 4000)])), frame(HEADERS, 0, 1, call_headers(PATH))),
                               "a block of headers (of|in) more than"),
    "empty pieces of headers": (always(frame(CONTINUATION, 0, 1), frame(HEADERS, 0, 1, call_headers(PATH))),
                                "a block of headers in more than 16 frames"),
    "resets": (calls(resets), "more calls that are reset or have no message"),
    "calls without a message": (calls(ended), "more calls that are reset or have no message"),
    "pings": (always(frame(PING, 0, 0, bytes(8))), "more PING frames"),
    "answers to no pings": (always(frame(PING, ACK, 0, bytes(8))), "more PING frames"),
    "settings": (always(frame(SETTINGS, 0, 0, struct.pack(">HIHI", 4, 65535, 3, 100))), "more SETTINGS frames"),
    "empty settings": (always(frame(SETTINGS, 0, 0)), "more SETTINGS frames"),
    "priorities": (always(frame(PRIORITY, 0, 1, struct.pack(">IB", 3, 16))), "more PRIORITY frames"),
    "windows": (always(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))), "more WINDOW_UPDATE frames"),
    "data without data": (always(frame(DATA, 0, 1), CALL), "more DATA frames without data"),
    "frames of no known kind": (always(frame(NOBODYS, 0, 0, b"x" * 16)), "more frames that mean nothing here"),
    "a frame that is too large": (always(frame(DATA, 0, 1, bytes(1 << 20)), CALL), "a frame of 1048576 bytes"),
    "a frame within headers": (always(frame(PING, 0, 0, bytes(8)), frame(HEADERS, 0, 1, call_headers(PATH))),
                               "another frame within a block of headers"),
    # The last one: whoever was closed for it has fewer calls for a while.
    "calls whose answers nobody hears": (calls(whole), "more calls at a time than the 1024"),
}


class LiveJob:
    """Workers that meet again and again while a with statement goes on."""

    def __init__(self, workers):
        self.workers, self.met, self.answers = workers, 0, set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._end.is_set():
            for worker in self.workers:
                worker.tell("barrier")
            self.answers |= {worker.answer() for worker in self.workers}
            self.met += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


class Http2Test(processes.TestCase):
    def assert_floods_end(self, coordd, named, context=None, **variables):
        workers = self.workers(coordd, 2, **variables)
        with LiveJob(workers) as job:
            for count, (name, (pieces, said)) in enumerate(FLOODS.items(), 1):
                with self.subTest(name):
                    self.flood(coordd, pieces, context, rf"a connection of {{}}{named} was closed: it has sent {said}")
                    self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="frames"), count)
                    met = job.met
                    self.assertTrue(wait_for(lambda met=met: job.met > met), coordd.text())
        self.assertEqual(job.answers, {"ok"})
        self.assertTrue(coordd.running())

    def flood(self, coordd, pieces, context, line):
        before, sent = memory_mib(coordd.pid), 0
        client = Connection(coordd.listen, seconds=PATIENCE_S, context=context).greeted()
        try:
            for piece in pieces():
                client.socket.sendall(piece)
                sent += len(piece)
                if sent > FLOOD_MIB * MIB:
                    self.fail(f"after {sent >> 20} MiB it goes on")
        except OSError:  # closed
            pass
        client.close()
        line = line.format(re.escape("%s:%d" % client.name))
        self.assertTrue(wait_for(lambda: re.search(line, coordd.text())), (line, coordd.text()))
        if not processes.SANITIZED:
            self.assertLess(memory_mib(coordd.pid, "VmHWM") - before, MOST_MIB)

    def test_floods_cost_their_connection(self):
        self.assert_floods_end(self.coordd(), "")

    def test_floods_out_of_tls_cost_their_connection_and_its_owner_is_named(self):
        certificates = Certificates(os.path.join(self.folder, "tls"))
        stem = certificates.add("worker", "floods")
        coordd = self.coordd(*certificates.server_flags())
        self.assert_floods_end(coordd, r" \(worker/floods\)", certificates.context(stem), **certificates.variables("worker"))

    def test_who_comes_again_after_many_calls_has_few(self):
        coordd = self.coordd()
        for _ in range(4):
            self.flood(coordd, calls(whole), None, r"a connection of {} was closed: it has sent more ")
        # Others, and its own first calls, go on.
        self.assertIn("more than 16 calls at a time", coordd.text())
        client = Connection(coordd.listen, seconds=PATIENCE_S).greeted()
        for _ in range(200):
            self.assertTrue(client.answer())
        client.close()

    def test_calls_that_never_end_on_many_connections_of_one_name(self):
        certificates = Certificates(os.path.join(self.folder, "tls"))
        context = certificates.context(certificates.add("worker", "floods"))
        coordd = self.coordd(*certificates.server_flags())
        workers = self.workers(coordd, 2, **certificates.variables("worker"))
        before = memory_mib(coordd.pid)
        with LiveJob(workers) as job:
            clients = []
            for _ in range(CONNECTIONS):
                client = Connection(coordd.listen, seconds=PATIENCE_S, context=context).greeted()
                clients.append(client)
                with contextlib.suppress(OSError):  # closed
                    client.send(SETTINGS, ACK, 0)
                    client.begin_calls("/coordd.v1.Coordinator/Session", 1000)
            # Those for which there was no place are closed.
            self.assertTrue(wait_for(lambda: "more than 16 calls at a time" in coordd.text()), coordd.text())
            met = job.met
            self.assertTrue(wait_for(lambda: job.met > met + 5), coordd.text())
            for client in clients:
                client.close()
        self.assertEqual(job.answers, {"ok"})
        if not processes.SANITIZED:
            self.assertLess(memory_mib(coordd.pid, "VmHWM") - before, MOST_MIB)

    def assert_grpc_ends(self, coordd, context, sent, reason):
        client = Connection(coordd.listen, seconds=PATIENCE_S, context=context).greeted()
        client.socket.sendall(sent)
        line = rf"a connection of {re.escape('%s:%d' % client.name)} \(worker/floods\) was closed by gRPC, which gives {reason}"
        self.assertTrue(wait_for(lambda: re.search(line, coordd.text())), (line, coordd.text()))
        client.close()

    def test_who_is_closed_by_grpc_itself_is_named_too(self):
        certificates = Certificates(os.path.join(self.folder, "tls"))
        stem = certificates.add("worker", "floods")
        coordd = self.coordd(*certificates.server_flags())
        # Fewer than the guard takes for a flood, and more than gRPC bears.
        self.assert_grpc_ends(coordd, certificates.context(stem), frame(PING, 0, 0, bytes(8)) * 20, r"ENHANCE_YOUR_CALM \(too_many_pings\)")
        # What HTTP/2 forbids, and gRPC closes without a word.
        self.assert_grpc_ends(coordd, certificates.context(stem), frame(WINDOW_UPDATE, 0, 0, bytes(3)), "no reason")
        self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="grpc"), 2)

    def test_who_answers_no_ping_is_named_if_it_has_a_call(self):
        """gRPC's own clients answer none while they have no call: nothing is wrong with these."""
        coordd = self.coordd()
        idle, calling = (Connection(coordd.listen, seconds=PATIENCE_S).greeted() for _ in range(2))
        for client in (idle, calling):
            self.addCleanup(client.close)
        calling.begin_calls(PATH, 1)
        for client in (idle, calling):  # until the end of what coordd says, without an answer
            while client.socket.recv(65536):
                pass
        line = "a connection of %s:%d was closed by gRPC, which gives no reason, while 1 of its pings had no answer"
        self.assertTrue(wait_for(lambda: line % calling.name in coordd.text()), coordd.text())
        self.assertNotIn("%s:%d" % idle.name, coordd.text())
        self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="grpc"), 1)

    def test_nobody_is_named_who_goes_or_is_sent_away_in_order(self):
        coordd = self.coordd()
        workers = self.workers(coordd, 2)
        Connection(coordd.listen, seconds=PATIENCE_S).greeted().close()
        client = Connection(coordd.listen, seconds=PATIENCE_S).greeted()
        client.socket.sendall(frame(GOAWAY, 0, 0, bytes(8)))
        client.close()
        workers[0].tell("leave")
        workers[0].answer()
        os.kill(coordd.pid, signal.SIGTERM)
        self.assertEqual(coordd.wait(), 0)
        self.assertNotIn("was closed by gRPC", coordd.text())

    def test_headers_that_end_other_versions_of_grpc_end_a_call_at_most(self):
        """CVE-2023-1428, and what is like it: a wrong header, and then more than gRPC takes of them."""
        coordd = self.coordd()
        wrong = [{name: "x"} for name in ("te", ":scheme", ":method", "grpclb_client_stats", "grpc-timeout", "grpc-encoding", "grpc-status",
                                          "grpc-accept-encoding", "grpc-previous-rpc-attempts", "grpc-tags-bin", "content-type")]
        for one in wrong:
            for size in (9, 20, 60):
                with self.subTest(one, kib=size):
                    self.call_with(coordd, {**ORDINARY, **one}, size)
        self.assertTrue(coordd.running())
        self.assertEqual(coordd.get("/readyz").strip(), "ready")

    def call_with(self, coordd, named, kib):
        """A call with these headers and so many KiB behind them, in pieces; what gRPC says to it."""
        block = headers([*named.items(), *((f"pad-{at}", "a" * 1000) for at in range(kib))])
        pieces = [block[at:at + 16384] for at in range(0, len(block), 16384)]
        client = Connection(coordd.listen, seconds=PATIENCE_S).greeted()
        sent = b"".join(frame(CONTINUATION if at else HEADERS, END_HEADERS if at + 1 == len(pieces) else 0, 1, piece)
                        for at, piece in enumerate(pieces))
        try:
            client.socket.sendall(sent)
            said = next((kind for kind, flags, _ in client.frames() if kind in (GOAWAY, RST_STREAM) or kind == HEADERS and flags & END_STREAM), None)
        except OSError:
            said = None  # it was closed
        client.close()
        return said

    def test_many_calls_in_one_connection_are_no_flood(self):
        coordd = self.coordd()
        client = Connection(coordd.listen, seconds=PATIENCE_S).greeted()
        for _ in range(5000):
            self.assertTrue(client.answer())
        client.close()
        self.assertEqual(coordd.metric("coordd_connections_refused_total", reason="frames"), 0)

    def test_who_does_not_read_is_not_read_either(self):
        """What coordd has to say waits for who reads; the rest of what he says stays in his own socket."""
        coordd = self.coordd()
        self.workers(coordd, 1)
        before = memory_mib(coordd.pid)
        client = Connection(coordd.listen, seconds=1).greeted()
        client.send(SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1))
        client.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1 - 65535))
        try:
            for stream in range(1, 400000, 2):
                client.socket.sendall(frame(HEADERS, END_HEADERS, stream, call_headers(PATH)) + frame(DATA, END_STREAM, stream, bytes(5)))
        except OSError:  # held up, or closed
            pass
        if not processes.SANITIZED:
            self.assertLess(memory_mib(coordd.pid, "VmHWM") - before, MOST_MIB)
        self.assertEqual(coordd.get("/readyz").strip(), "ready")
        # Nor is he kept: the worker's is left.
        self.assertTrue(wait_for(lambda: coordd.metric("coordd_connections") == 1), coordd.text())
        client.close()


if __name__ == "__main__":
    processes.main()
