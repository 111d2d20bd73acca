"""Hosts as network namespaces: a switch (a bridge in a namespace of its own) and one namespace for each host."""

import os
import shutil
import subprocess
import sys

from tests.support import slow_link

_numbers = iter(range(1000))


def why_not():
    """Why namespaces cannot be made here; None when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip here: tools/install-deps --test"
    return None


def why_no_cuts():
    """Why links cannot be cut one by one here; None when they can."""
    if why_not():
        return why_not()
    if shutil.which("nft") is None:
        return "no nft here: tools/install-deps --test"
    return None


def why_no_delays():
    """Why links cannot be made slow here; None when they can."""
    if why_not():
        return why_not()
    if not os.path.exists(slow_link.DEVICE):
        return f"no {slow_link.DEVICE} here"
    return None


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """`count` hosts with addresses 10.77.0.1, 10.77.0.2, ... that only they can reach. close() when done.

    `delayed`: by host, milliseconds that a packet to it or from it takes, and how much that varies.
    `racks`: the hosts are on as many switches, as many on each, one rack behind the other; all of these are on one more switch.
    Those of one rack have `rack_of` of the same number."""

    def __init__(self, count, delayed=None, racks=1):
        self.racks = racks
        self.rack_of = [index * racks // count for index in range(count)]
        prefix = f"coordd{os.getpid()}n{next(_numbers)}"
        self.switch = prefix + "s"
        self.hosts = []
        self.addresses = []
        self.links = []
        ip("netns", "add", self.switch)
        try:
            self._build(prefix, count, delayed or {})
        except subprocess.CalledProcessError as failed:
            self.close()
            raise AssertionError(f"{failed.cmd}: {failed.stderr.decode()}") from None

    def _build(self, prefix, count, delayed):
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for rack in range(self.racks if self.racks > 1 else 0):
            ip("-n", self.switch, "link", "add", f"rack{rack}", "type", "bridge")
            ip("-n", self.switch, "link", "set", f"rack{rack}", "up")
            ip("-n", self.switch, "link", "add", f"up{rack}", "type", "veth", "peer", "name", f"down{rack}")
            ip("-n", self.switch, "link", "set", f"up{rack}", "master", f"rack{rack}", "up")
            ip("-n", self.switch, "link", "set", f"down{rack}", "master", "bridge0", "up")
        for index in range(count):
            host, address = f"{prefix}h{index}", f"10.77.0.{index + 1}"
            ip("netns", "add", host)
            self.hosts.append(host)
            self.addresses.append(address)
            if index in delayed:
                self._add_slow_link(host, f"port{index}", *delayed[index])
            else:
                ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{index}", "netns", self.switch)
            switch = f"rack{self.rack_of[index]}" if self.racks > 1 else "bridge0"
            ip("-n", self.switch, "link", "set", f"port{index}", "master", switch, "up")
            ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
            ip("-n", host, "link", "set", "lo", "up")

    def _add_slow_link(self, host, port, delay_ms, jitter_ms):
        link = subprocess.Popen(["ip", "netns", "exec", host, sys.executable, slow_link.__file__, "eth0", port, str(delay_ms),
                                 str(jitter_ms)], stdout=subprocess.PIPE)
        self.links.append(link)
        if link.stdout.readline() != b"ready\n":
            raise AssertionError(f"no TAP devices on {host}")
        ip("-n", host, "link", "set", port, "netns", self.switch)

    def on(self, host):
        """What comes before a command to run it on the host of this number."""
        return ["ip", "netns", "exec", self.hosts[host]]

    def disconnect(self, host):
        ip("-n", self.switch, "link", "set", f"port{host}", "down")

    def reconnect(self, host):
        ip("-n", self.switch, "link", "set", f"port{host}", "up")

    def filter(self, host, rule):
        """What comes in at the host and fits the rule of nft does not come in. -> how to take it back"""
        name = f"faults{next(_numbers)}"
        self._nft(host, f"table inet {name} {{\nchain in {{\ntype filter hook input priority 0\n{rule} drop\n}}\n}}\n")
        return lambda: self._nft(host, f"delete table inet {name}\n")

    def _nft(self, host, text):
        done = subprocess.run([*self.on(host), "nft", "-f", "-"], input=text.encode(), capture_output=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"nft: {text}: {done.stderr.decode()}")

    def cut(self, source, target):
        """What `source` sends to `target` is lost. -> how to take it back"""
        return self.filter(target, f"ip saddr {self.addresses[source]}")

    def lossy(self, host, percent):
        """So much of what is sent to the host is lost. -> how to take it back"""
        return self.filter(host, f"numgen random mod 100 < {percent}")

    def slow(self, host, rate, burst="32k"):
        """What the host sends waits in a queue in front of a line of this rate, "20mbit", which so much passes at once."""
        self._line(self.hosts[host], "eth0", rate, burst)

    def slow_flows(self, host, rate, burst="32k", lines=64):
        """What the host sends over TCP goes over one of so many lines of this rate, beside each other, by the port at which the side that has
        called is: one connection has one line. Who listens has a port below 32768."""
        name = self.hosts[host]

        def tc(*arguments):
            subprocess.run(["ip", "netns", "exec", name, "tc", *arguments], check=True, capture_output=True)

        tc("qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1", "r2q", "1000")
        tc("class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate", "100gbit", "burst", burst)
        for line in range(lines):  # callers have even ports by preference
            flow, bits = f"1:{line + 16:x}", [str(2 * line), hex(2 * (lines - 1))]
            tc("class", "add", "dev", "eth0", "parent", "1:", "classid", flow, "htb", "rate", rate, "burst", burst, "cburst", burst)
            for priority, port in (("1", "sport"), ("2", "dport")):
                tc("filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "prio", priority, "u32", "match", "ip", port,
                   "0x8000", "0x8000", "match", "ip", port, *bits, "flowid", flow)

    def slow_uplink(self, rack, rate, burst="32k"):
        """What a rack sends to others, and what they send to it, goes over lines of this rate."""
        for line in (f"up{rack}", f"down{rack}"):
            self._line(self.switch, line, rate, burst)

    @staticmethod
    def _line(name, device, rate, burst):
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", burst,
                        "latency", "100ms"], check=True, capture_output=True)

    def congestion_control(self, *names):
        """The hosts' TCP uses the first of these that this kernel lets them choose. -> its name"""
        for name in names:
            done = [subprocess.run([*self.on(host), "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={name}"], capture_output=True,
                                   check=False).returncode for host in range(len(self.hosts))]
            if not any(done):
                return name
        raise AssertionError(f"congestion control: this kernel lets a network namespace choose none of {', '.join(names)}")

    def close(self):
        for link in self.links:
            link.kill()
            link.wait()
            link.stdout.close()
        self.links = []
        for name in [*self.hosts, self.switch]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        self.hosts = []
