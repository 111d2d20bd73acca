"""What lies in deploy/: the service's own command line is started as systemd does it, and the image's in a root of its own.

No systemd and no container runtime run here: what they do around the process (users, namespaces, seccomp) is judged by
`systemd-analyze`, and a chroot in namespaces of its own stands for the image.
"""

import glob
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import unittest

from tests.support import processes
from tests.support.processes import Process, clean_environment, program, wait_for

DEPLOY = os.path.join(processes.ROOT, "deploy")
UNIT = os.path.join(DEPLOY, "systemd", "coordd.service")


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class ServiceTest(processes.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze here")
    def test_is_hardened(self):
        said = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", UNIT], capture_output=True, text=True,
                              check=False)
        level = re.search(r"Overall exposure level for .*: ([0-9.]+)", said.stdout)
        self.assertIsNotNone(level, said.stdout + said.stderr)
        self.assertLessEqual(float(level.group(1)), 2.5)

    def test_its_command_says_when_it_is_ready_and_when_it_stops(self):
        tls, state = self.path("tls"), self.path("state")
        status, text = self.run_command(program("coordctl"), "certs", tls, "--name", "127.0.0.1")
        self.assertEqual(status, 0, text)
        os.mkdir(state, 0o700)
        grpc_port, http_port = free_ports(2)
        line = next(line for line in lines_of(UNIT) if line.startswith("ExecStart=")).partition("=")[2]
        line = line.replace("/usr/bin/coordd", program("coordd")).replace("29650", str(grpc_port)).replace("29651", str(http_port))
        variables = {"CREDENTIALS_DIRECTORY": tls, "COORDD_OPTIONS": "--log-level info"}
        command = shlex.split(re.sub(r"\$\{?(\w+)\}?", lambda name: variables[name.group(1)], line))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(self.path("notify"))
            manager.settimeout(processes.PATIENCE_S)
            service = self.start(Process(command, clean_environment(NOTIFY_SOCKET=self.path("notify"), STATE_DIRECTORY=state,
                                                                    XDG_RUNTIME_DIR=self.folder)))
            self.assertEqual(manager.recv(4096).decode().splitlines()[0], "READY=1")
            # What it says holds: it takes a worker, whose certificate is of the same folder.
            self.run_ok(program("coordctl"), "status", "--coordinator", f"127.0.0.1:{grpc_port}", "--tls-ca", f"{tls}/ca.crt",
                        "--tls-cert", f"{tls}/worker.crt", "--tls-key", f"{tls}/worker.key")
            service.child.terminate()
            self.assertEqual(manager.recv(4096).decode(), "STOPPING=1")
        self.assertEqual(service.wait(), 0)
        self.assertTrue(glob.glob(state + "/**/*.sqlite*", recursive=True) or os.listdir(state), "its state is where systemd wants it")

    def test_a_manager_that_is_not_there_is_no_reason_to_fail(self):
        service = self.start(Process([program("coordd"), "--listen", "127.0.0.1:0", "--http", "off", "--store", "memory"],
                                     clean_environment(NOTIFY_SOCKET=self.path("nobody"), XDG_RUNTIME_DIR=self.folder)))
        self.assertTrue(wait_for(lambda: "ready" in service.text()), service.text())
        self.assertTrue(wait_for(lambda: "NOTIFY_SOCKET" in service.text()), service.text())

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_ok(self, *command):
        status, text = self.run_command(*command)
        self.assertEqual(status, 0, text)


@unittest.skipIf(os.environ.get("COORDD_SANITIZE"), "a sanitizer's runtime needs /proc, which the image here does not have")
class ImageTest(processes.TestCase):
    """The image's content, entry point and default command, without its runtime."""

    def setUp(self):
        super().setUp()
        if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no namespaces of our own here")
        self.root = os.path.join(self.folder, "root")
        prefix = os.path.join(self.root, "opt", "coordd")
        os.makedirs(os.path.join(prefix, "bin"))
        for folder in ("tmp", "proc", "var/lib/coordd"):
            os.makedirs(os.path.join(self.root, folder))
        for name in ("coordd", "coordctl", "coordrun", "coordd-worker"):
            shutil.copy(program(name), os.path.join(prefix, "bin", name))
            listed = subprocess.run(["ldd", program(name)], capture_output=True, text=True, check=True).stdout
            for library in re.findall(r"(/\S+) \(0x", listed):
                place = self.root + library
                os.makedirs(os.path.dirname(place), exist_ok=True)
                if not os.path.exists(place):
                    shutil.copy(library, place)

    def in_image(self, command):
        """`command` as the first process of namespaces of its own, in the image's root."""
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", self.root, *command]

    def test_the_container_runs_coordd(self):
        text = "\n".join(lines_of(os.path.join(DEPLOY, "container", "Containerfile")))
        self.assertEqual(set(re.findall(r"^FROM (\S+)", text, re.M)), {"${BASE}"}, "no registry is named")
        entry, command = (json.loads(re.search(rf"^{what} (\[.*\])$", text, re.M).group(1)) for what in ("ENTRYPOINT", "CMD"))
        status, said = self.run_command(*self.in_image([*entry, "--version"]))
        self.assertEqual(status, 0, said)
        grpc_port, http_port = free_ports(2)
        command = [word.replace("29650", str(grpc_port)).replace("29651", str(http_port)) for word in command]
        daemon = self.start(Process(self.in_image([*entry, *command]), {"COORDD_TEST_ID": self.test_id, "PATH": os.environ["PATH"]}))
        self.assertTrue(wait_for(lambda: " ready: grpc " in daemon.text()), daemon.text())

    def test_apptainer_runs_the_programs_of_the_same_image(self):
        text = "\n".join(lines_of(os.path.join(DEPLOY, "container", "coordd.def")))
        self.assertIn("From: {{ BASE }}", text)
        script = re.search(r"%runscript\n(.*?)\n%", text, re.S).group(1).strip()
        self.assertEqual(script, 'exec /opt/coordd/bin/"$@"')
        words = ["coordctl", "--version"]
        status, said = self.run_command(*self.in_image([f"/opt/coordd/bin/{words[0]}", *words[1:]]))
        self.assertEqual(status, 0, said)
        self.assertIn("coordctl", said)


if __name__ == "__main__":
    processes.main()
