"""How long a probe of /readyz takes beside clients of HTTP that mean no good.

    PYTHONPATH=. COORDD_BUILD_DIR=build python3 bench/python/probes.py [--tls]

A row for each of them, who come from another address than the probes where they can: probes, p50, p99 and the longest in
milliseconds. Behind "# " the bar of issue "nobody in who does not belong": a p99 below 200 ms beside a thousand dripping connections, of which each is followed by another
when it is closed.
"""

import argparse
import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

from tests.support import processes
from tests.support.certificates import Certificates

PROBES, DRIPPING, THREADS = 100, 1000, 4
STRANGER = "127.0.0.2"  # another address than the probes': what one holds is bounded


class Drips:
    """Connections that begin a request, or a TLS handshake, a few bytes at a time, while a with statement goes on."""

    def __init__(self, address, beginning):
        self.address, self.beginning = address, beginning
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(THREADS)]

    def _run(self):
        dripping = []
        while not self._end.wait(0.05):
            while len(dripping) < DRIPPING // THREADS:
                one = socket.socket()
                one.setblocking(False)
                one.bind((STRANGER, 0))
                one.connect_ex(self.address)
                dripping.append(one)
            for one in list(dripping):
                try:
                    one.send(self.beginning)
                except BlockingIOError:
                    pass
                except OSError:
                    one.close()
                    dripping.remove(one)
        for one in dripping:
            one.close()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        time.sleep(2)  # until they are all there
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()


class Hellos:
    """TLS handshakes that are begun, as many as there can be, and not gone on with."""

    def __init__(self, address, context):
        self.address = address
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        self.hello = outgoing.read()
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]

    def _run(self):
        begun = []
        while not self._end.is_set():
            try:
                begun.append(socket.create_connection(self.address, 1, (STRANGER, 0)))
                begun[-1].sendall(self.hello)
            except OSError:
                pass
            if len(begun) > DRIPPING:
                begun.pop(0).close()
        for one in begun:
            one.close()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        time.sleep(1)
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def handshakes(address, programs):
    """TLS handshakes, one after the other, of so many programs."""
    command = ["openssl", "s_time", "-connect", f"{address[0]}:{address[1]}", "-new", "-time", "600"]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(programs)]
    time.sleep(1)
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


class Bench(processes.TestCase):
    tls = False

    def test_probes(self):
        flags, self.context, beginning = [], None, b"G"
        if self.tls:
            certificates = Certificates(os.path.join(self.folder, "tls"))
            flags, beginning = certificates.server_flags(), b"\x16\x03\x01\x02"
            self.context = ssl.create_default_context(cafile=f"{certificates.folder}/ca.crt")
        coordd = self.coordd(*flags, *([] if self.tls else ["--insecure-http"]), http="0.0.0.0:0")
        self.address = ("127.0.0.1", int(coordd.http.rsplit(":", 1)[1]))
        print("beside,probes,p50_ms,p99_ms,longest_ms", flush=True)
        self.measure("nothing")
        with Drips(self.address, beginning):
            p99 = self.measure(f"{DRIPPING} that drip")
        if self.tls:
            with Hellos(self.address, self.context):
                self.measure("handshakes begun and left")
        if self.tls and shutil.which("openssl"):
            with handshakes(self.address, 20):
                self.measure("20 that make handshakes")
        print(f"# p99 of /readyz {p99:.0f} ms beside {DRIPPING} that drip (bar: below 200) {'met' if p99 < 200 else 'MISSED'}", flush=True)

    def measure(self, beside):
        took = sorted(self.probe() for _ in range(PROBES))
        p99 = took[int(PROBES * 0.99)]
        print(f"{beside},{PROBES},{took[PROBES // 2]:.1f},{p99:.1f},{took[-1]:.1f}", flush=True)
        return p99

    def probe(self):
        """Until it is answered, by as many connections as that takes; once in 25 ms, since an address may begin 50 handshakes a second."""
        time.sleep(0.025)
        begun = time.monotonic()
        while time.monotonic() < begun + 20:
            try:
                self.ask()
                break
            except (OSError, http.client.HTTPException):
                pass
        return (time.monotonic() - begun) * 1e3

    def ask(self):
        connection = (http.client.HTTPSConnection(*self.address, timeout=20, context=self.context) if self.tls
                      else http.client.HTTPConnection(*self.address, timeout=20))
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")
            self.assertEqual(connection.getresponse().status, 200)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tls", action="store_true", help="over TLS, where a handshake is begun instead of a request")
    Bench.tls = parser.parse_args().tls
    sys.argv = sys.argv[:1]
    processes.main()
