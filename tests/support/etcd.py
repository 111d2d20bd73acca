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
    """One member on loopback, with elections so short that it grants leases of one second."""

    def __init__(self):
        self.data = tempfile.mkdtemp(prefix="coordd-etcd-", dir="/dev/shm")
        self.address = f"127.0.0.1:{free_port()}"
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{free_port()}"
        super().__init__(["etcd", "--data-dir", self.data, "--listen-client-urls", client, "--advertise-client-urls",
                          client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                          "--initial-cluster", f"default={peer}", "--heartbeat-interval", "10",
                          "--election-timeout", "100"])

    def ready(self):
        """Whether it serves. False: it has ended, most often because another process took its port."""
        return wait_for(lambda: not self.running() or self._accepts()) and self.running()

    def _accepts(self):
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
            return True
        except OSError:
            return False

    def end(self):
        super().end()
        shutil.rmtree(self.data, ignore_errors=True)


def start(test):
    """An etcd that `test` ends; its ports were free when they were picked, so it may need another try."""
    for _ in range(5):
        etcd = test.start(Etcd())
        if etcd.ready():
            return etcd
    raise AssertionError(f"etcd does not start:\n{etcd.text()}")
