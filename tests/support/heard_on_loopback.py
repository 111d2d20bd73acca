"""What the connections of the loopback device say, heard by who may (root, or CAP_NET_RAW)."""

import socket
import struct
import threading

ALL_PROTOCOLS = 3
OUTGOING = 4
SYN = 2
SO_RCVBUFFORCE = 33
SOL_PACKET = 263
PACKET_STATISTICS = 6


class HeardOnLoopback:
    """Keeps the first bytes that each TCP connection says, while it is open. PermissionError: this user may not listen."""

    MOST = 64 << 10  # of each connection

    def __init__(self):
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)  # others use this device, too
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.1)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._said = {}  # (from port, to port) to (number of the first byte, parts by where they begin)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self):
        while not self._ended.is_set():
            try:
                packet, (_, _, kind, _, _) = self._socket.recvfrom(1 << 18)
            except TimeoutError:
                continue
            if kind != OUTGOING and packet[:1] and packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
                self._hear(packet[4 * (packet[0] & 15):struct.unpack("!H", packet[2:4])[0] or len(packet)])

    def _hear(self, segment):
        from_port, to_port, number = struct.unpack("!HHI", segment[:8])
        said = segment[4 * (segment[12] >> 4):]
        with self._lock:
            if segment[13] & SYN:
                self._said[from_port, to_port] = ((number + 1) % (1 << 32), {})
            elif said and (from_port, to_port) in self._said:
                first, parts = self._said[from_port, to_port]
                begin = (number - first) % (1 << 32)
                if begin < self.MOST:
                    parts[begin] = said

    def said_to(self, port):
        """What each connection to the port has said, of those that have said something."""
        with self._lock:
            parts = [parts for (_, to), (_, parts) in self._said.items() if to == port]
            return [said for said in map(self._joined, parts) if said]

    @staticmethod
    def _joined(parts):
        """Up to the first that is missing; one may be heard before another, or twice."""
        joined = b""
        for begin in sorted(parts):
            if begin > len(joined):
                break
            joined += parts[begin][len(joined) - begin:]
        return joined

    def lost(self):
        """How many packets were not heard, for want of room."""
        return struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]

    def end(self):
        self._ended.set()
        self._thread.join()
        self._socket.close()
