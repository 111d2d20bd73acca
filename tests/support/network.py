"""Hosts as network namespaces: a switch (a bridge in a namespace of its own) and one namespace for each host."""

import os
import shutil
import subprocess

_numbers = iter(range(1000))


def why_not():
    """Why namespaces cannot be made here; None when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip here: tools/install-deps --test"
    return None


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """`count` hosts with addresses 10.77.0.1, 10.77.0.2, ... that only they can reach. close() when done."""

    def __init__(self, count):
        prefix = f"coordd{os.getpid()}n{next(_numbers)}"
        self.switch = prefix + "s"
        self.hosts = []
        self.addresses = []
        ip("netns", "add", self.switch)
        try:
            self._build(prefix, count)
        except subprocess.CalledProcessError as failed:
            self.close()
            raise AssertionError(f"{failed.cmd}: {failed.stderr.decode()}") from None

    def _build(self, prefix, count):
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for index in range(count):
            host, address = f"{prefix}h{index}", f"10.77.0.{index + 1}"
            ip("netns", "add", host)
            self.hosts.append(host)
            self.addresses.append(address)
            ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{index}", "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{index}", "master", "bridge0", "up")
            ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
            ip("-n", host, "link", "set", "lo", "up")

    def on(self, host):
        """What comes before a command to run it on the host of this number."""
        return ["ip", "netns", "exec", self.hosts[host]]

    def disconnect(self, host):
        ip("-n", self.switch, "link", "set", f"port{host}", "down")

    def reconnect(self, host):
        ip("-n", self.switch, "link", "set", f"port{host}", "up")

    def close(self):
        for name in [*self.hosts, self.switch]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        self.hosts = []
