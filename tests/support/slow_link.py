"""A link that delays what it carries, and so reorders it: netem is not in every kernel.

    ip netns exec HOST python3 slow_link.py eth0 port1 50 20

makes two TAP devices, of which the second may then be moved to another namespace, and carries each packet from the one to the
other after 50 ms, up to 20 ms more or less. Says "ready" when they are there; ends with them.
"""

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

DEVICE = "/dev/net/tun"
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LARGEST = 65536


def tap(name):
    end = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return end


def deliver(end, packet):
    try:
        os.write(end, packet)
    except OSError:  # the device is not up yet, or full: as on any network
        pass


def carry(ends, delay_s, jitter_s):
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way, numbers = [], itertools.count()
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, end, packet = heapq.heappop(under_way)
            deliver(end, packet)
        readable, _, _ = select.select(ends, [], [], under_way[0][0] - now if under_way else None)
        for end in readable:
            try:
                packet = os.read(end, LARGEST)
            except BlockingIOError:
                continue
            arrives = time.monotonic() + delay_s + random.uniform(-jitter_s, jitter_s)
            heapq.heappush(under_way, (arrives, next(numbers), other[end], packet))


def main():
    ends = [tap(name) for name in sys.argv[1:3]]
    print("ready", flush=True)
    try:
        carry(ends, *(float(milliseconds) / 1000 for milliseconds in sys.argv[3:5]))
    except OSError:
        pass  # its namespace is gone


if __name__ == "__main__":
    main()
