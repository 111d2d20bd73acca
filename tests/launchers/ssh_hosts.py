"""Real ssh servers on 127.0.0.1, .2 and .3: hosts that are one machine, with keys of their own."""

import os
import shutil
import subprocess
import tempfile

from tests.launchers.slurm_cluster import free_ports
from tests.support.processes import wait_for

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def missing():
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    return [name for name in ("ssh", "sshd", "ssh-keygen") if shutil.which(name, path=path) is None]


class SshHosts:
    """Up when constructed; `arguments` are coordrun's to reach them."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="coordd-ssh-")
        self.port = free_ports(1)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.file(name)], check=True)
        shutil.copy(self.file("user.pub"), self.file("authorized_keys"))
        with open(self.file("host.pub"), encoding="ascii") as public:
            key = " ".join(public.read().split()[:2])
        self.write("known_hosts", "".join(f"[{host}]:{self.port} {key}\n" for host in HOSTS))
        self.write("sshd_config", "\n".join(
            [f"Port {self.port}", *(f"ListenAddress {host}" for host in HOSTS), f"HostKey {self.file('host')}",
             f"AuthorizedKeysFile {self.file('authorized_keys')}", f"PidFile {self.file('sshd.pid')}", "UsePAM no",
             "StrictModes no", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "MaxStartups 100",
             "UseDNS no"]) + "\n")
        os.makedirs("/run/sshd", exist_ok=True)
        server = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COORDD_")}
        subprocess.run([server, "-f", self.file("sshd_config"), "-E", self.file("log")], check=True, env=environment)
        assert wait_for(lambda: os.path.exists(self.file("sshd.pid")), 10), "sshd has not come up"
        self.arguments = ["-p", str(self.port), "-i", self.file("user"), *self.known("known_hosts")]

    @staticmethod
    def ssh_option(text):
        return [f"--launcher-arg=-o{text}"]

    def known(self, name):
        return self.ssh_option(f"UserKnownHostsFile={self.file(name)}") + self.ssh_option("GlobalKnownHostsFile=none")

    def file(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.file(name), "w", encoding="ascii") as file:
            file.write(text)

    def end(self):
        try:
            with open(self.file("sshd.pid"), encoding="ascii") as file:
                os.kill(int(file.read()), 15)
        except (OSError, ValueError):
            pass
        shutil.rmtree(self.folder, ignore_errors=True)
