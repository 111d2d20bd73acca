"""A real etcd of a test's own, for coordd --store etcd:."""

import shutil
import socket
import tempfile

from tests.support.processes import Process, wait_for


def installed():
    return shutil.which("etcd") is not None


def free_port():
    with socket.socket() as picked:
        picked.bind(("127.0.0.1", 0))
        return picked.getsockname()[1]


class Etcd(Process):
    """One member, with elections so short that it grants leases of one second. Alone on loopback, unless `peers` says otherwise:
    the peers' URLs by the name of each member."""

    def __init__(self, name="default", peers=None, address=None, wrapper=()):
        self.data = tempfile.mkdtemp(prefix="coordd-etcd-", dir="/dev/shm")
        self.address = address or f"127.0.0.1:{free_port()}"
        self.wrapper = wrapper
        peers = peers or {name: f"http://127.0.0.1:{free_port()}"}
        client, peer = f"http://{self.address}", peers[name]
        super().__init__([*wrapper, "etcd", "--name", name, "--data-dir", self.data, "--listen-client-urls", client,
                          "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                          "--initial-cluster", ",".join(f"{member}={url}" for member, url in peers.items()),
                          "--heartbeat-interval", "10", "--election-timeout", "100"])

    def ready(self):
        """Whether it serves. False: it has ended, most often because another process took its port."""
        return wait_for(lambda: not self.running() or self._accepts()) and self.running()

    def _accepts(self):
        if self.wrapper:  # out of this process's reach
            return "ready to serve client requests" in self.text()
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
            return True
        except OSError:
            return False

    def end(self):
        super().end()
        shutil.rmtree(self.data, ignore_errors=True)


def cluster(test, count):
    """`count` members of one cluster; as `start`."""
    for _ in range(5):
        peers = {f"member{number}": f"http://127.0.0.1:{free_port()}" for number in range(count)}
        members = [test.start(Etcd(name, peers)) for name in peers]
        if all(member.ready() for member in members):
            return members
        for member in members:
            member.end()
    raise AssertionError("no cluster of etcds starts")


def start(test):
    """An etcd that `test` ends; its ports were free when they were picked, so it may need another try."""
    for _ in range(5):
        etcd = test.start(Etcd())
        if etcd.ready():
            return etcd
    raise AssertionError(f"etcd does not start:\n{etcd.text()}")
