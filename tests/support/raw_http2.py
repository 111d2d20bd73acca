"""HTTP/2 by hand, for what no client of gRPC's would send. RFC 9113 and 7541, without Huffman or a dynamic table."""

import gzip
import select
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
ACK = 1
END_STREAM, END_HEADERS = 1, 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def number(value, prefix_bits, first=0):
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytes([first | most]), value - most
    while value >= 128:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def headers(pairs):
    """A header block: literals that are not indexed, their names written out."""
    return b"".join(b"\0" + b"".join(number(len(text), 7) + text for text in (name.encode(), value.encode())) for name, value in pairs)


def call_headers(path, **more):
    return headers([(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"), ("te", "trailers"),
                    ("content-type", "application/grpc")] + [(name.replace("_", "-"), value) for name, value in more.items()])


class Connection:
    """One to `address`, "host:port", whose preface has been sent; with `context` over TLS."""

    def __init__(self, address, seconds=20, context=None):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host.strip("[]"), int(port)), seconds)
        self.name = self.socket.getsockname()[:2]
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self.received = b""
        self.stream = -1
        self.window = 65535  # bytes that may be sent before the other side takes some
        self.windows = {}  # of each stream whose window matters

    def send(self, kind, flags, stream, payload=b""):
        self.socket.sendall(frame(kind, flags, stream, payload))

    def frames(self):
        """What comes, frame by frame, until the other side closes."""
        while True:
            while len(self.received) >= 9:
                size = int.from_bytes(self.received[:3], "big")
                if len(self.received) < 9 + size:
                    break
                kind, flags, payload = self.received[3], self.received[4], self.received[9:9 + size]
                stream = int.from_bytes(self.received[5:9], "big")
                if kind == WINDOW_UPDATE and stream == 0:
                    self.window += int.from_bytes(payload, "big")
                elif kind == WINDOW_UPDATE and stream in self.windows:
                    self.windows[stream] += int.from_bytes(payload, "big")
                if kind == SETTINGS and not flags & ACK:
                    self.send(SETTINGS, ACK, 0)
                if kind == PING and not flags & ACK:
                    self.send(PING, ACK, 0, payload)
                if kind == DATA and payload:
                    self.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(payload)))
                self.received = self.received[9 + size:]
                yield kind, flags, payload
            more = self.socket.recv(65536)
            if not more:
                return
            self.received += more

    def greeted(self):
        """Waits for the other side's settings."""
        for kind, _, _ in self.frames():
            if kind == SETTINGS:
                return self
        raise AssertionError("closed before it said anything")

    def answer(self, path="/coordd.v1.Admin/GetState", message=b"\0\0\0\0\0", **more):
        """Calls and returns the payloads of the header frames that come back, as they are on the wire: texts can be found in
        them, and what is said again is a number."""
        self.stream += 2
        self.send(HEADERS, END_HEADERS, self.stream, call_headers(path, **more))
        arriving = self.frames()
        while self.window < len(message):
            next(arriving)
        self.window -= len(message)
        for at in range(0, len(message), 16384):
            self.send(DATA, END_STREAM if at + 16384 >= len(message) else 0, self.stream, message[at:at + 16384])
        found = b""
        for kind, flags, payload in arriving:
            if kind == HEADERS:
                found += payload
            if kind == HEADERS and flags & END_STREAM or kind == GOAWAY:
                break
        return found

    def begin_calls(self, path, streams):
        """Begins so many calls of `path`, whose messages never come."""
        self.socket.sendall(b"".join(frame(HEADERS, END_HEADERS, stream, call_headers(path)) for stream in range(1, 2 * streams, 2)))

    def answered_a_ping(self):
        """Waits until the other side has read all that was sent, or has closed."""
        try:
            self.send(PING, 0, 0, bytes(8))
            for kind, flags, _ in self.frames():
                if kind == PING and flags & ACK:
                    return
        except OSError:
            pass

    def send_endless(self, path, streams, size, seconds):
        """On so many streams of `path` a message of `size` bytes, whose last byte never comes, as fast as the other side takes
        them, until it closes the connection or the time is over. The bytes that were sent."""
        end, total, chunk = time.monotonic() + seconds, 0, bytes(16384)
        first = struct.pack(">BI", 0, size)
        left = {}
        for stream in range(1, 2 * streams, 2):
            self.windows[stream], left[stream] = 65535, size - 1
            self.send(HEADERS, END_HEADERS, stream, call_headers(path))
            self.send(DATA, 0, stream, first)
            self.window, self.windows[stream] = self.window - len(first), self.windows[stream] - len(first)
        arriving = self.frames()
        try:
            while left and time.monotonic() < end:
                burst = b""
                for stream in list(left):
                    take = min(left[stream], self.windows[stream], self.window, len(chunk))
                    if take <= 0:
                        continue
                    burst += frame(DATA, 0, stream, chunk[:take])
                    total, self.window = total + take, self.window - take
                    self.windows[stream], left[stream] = self.windows[stream] - take, left[stream] - take
                    if not left[stream]:
                        del left[stream]
                self.socket.sendall(burst)
                if not burst and next(arriving, None) is None:
                    break
                while select.select([self.socket], [], [], 0)[0] and next(arriving, None) is not None:
                    pass
        except OSError:  # closed, or nothing came for long
            pass
        return total

    def close(self):
        self.socket.close()


def framed(message):
    """As gRPC sends it."""
    return b"\0" + struct.pack(">I", len(message)) + message


def field(tag, value):
    """A field of a protobuf message that has a length."""
    return bytes([tag << 3 | 2]) + varint(len(value)) + value


def varint(value):
    out = b""
    while value >= 128:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def compressed_message(size):
    """A message of gRPC's with `size` zeros, gzipped: a thousandth of that."""
    body = gzip.compress(bytes(size), 9)
    return b"\1" + struct.pack(">I", len(body)) + body
