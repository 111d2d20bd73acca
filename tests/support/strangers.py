"""Strangers at a port: many connections that say the beginning of something and then nothing, each made anew once it is closed."""

import errno
import select
import socket
import ssl
import threading
import time

from tests.support.raw_http2 import PREFACE, SETTINGS, frame

# What they say. Of TLS only the head of a record; its first message whole, after which a server has done its half of the work;
# the same of HTTP/2.
TLS_HEAD = b"\x16\x03\x01\x02\x00\x01"
HTTP2_PREFACE = PREFACE
HTTP2_HELLO = PREFACE + frame(SETTINGS, 0, 0)


def tls_hello():
    """A whole ClientHello of TLS 1.3."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


class Strangers:
    """`count` of them from the address `source`, on a thread of their own, until the with statement ends. `ask`: what each sends
    as soon as it is connected. `read_every_s`: how often each reads a byte of what it is told; None: never."""

    def __init__(self, address, count, ask, source="127.0.0.1", read_every_s=None):
        self.address, self.count, self.ask, self.source, self.read_every_s = address, count, ask, source, read_every_s
        self.connected, self.closed = 0, 0
        self._open = {}
        self._epoll = select.epoll()
        self._end, self._all_there = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        assert self._all_there.wait(60), f"{self.connected} of {self.count} strangers are there after 60 s"
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()
        for one in self._open.values():
            one.close()
        self._epoll.close()

    def _connect(self):
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        one.bind((self.source, 0))
        if one.connect_ex(self.address) not in (0, errno.EINPROGRESS):
            one.close()
            return
        self._open[one.fileno()] = one
        self._epoll.register(one.fileno(), select.EPOLLOUT | select.EPOLLRDHUP)

    def _run(self):
        read_at = time.monotonic()
        while not self._end.is_set():
            for _ in range(min(50, self.count - len(self._open))):
                self._connect()
            for number, what in self._epoll.poll(0.01 if self._all_there.is_set() else 0.001):
                if what & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                    self.closed += 1
                    self._epoll.unregister(number)  # by itself it would wait for children that a fork gave it to
                    self._open.pop(number).close()
                    continue
                self.connected += 1
                self._epoll.modify(number, select.EPOLLRDHUP)
                try:
                    self._open[number].send(self.ask)
                except OSError:
                    pass  # its end is the next event
            if self.connected >= self.count:
                self._all_there.set()
            if self.read_every_s and time.monotonic() - read_at > self.read_every_s:
                read_at = time.monotonic()
                for one in self._open.values():
                    try:
                        one.recv(1)
                    except OSError:
                        pass
