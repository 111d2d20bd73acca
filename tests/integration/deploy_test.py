"""What lies in deploy/: the service's own command line is started as systemd does it, and the container image is made and run by buildah.

No systemd runs here: what it does around the process (users, namespaces, seccomp) is judged by `systemd-analyze`.
"""

import glob
import json
import os
import re
import shutil
import socket
import subprocess
import unittest

from tests.support import processes
from tests.support.processes import Process, clean_environment, program, wait_for
from tests.support.service import UNIT, Service

DEPLOY = os.path.join(processes.ROOT, "deploy")
CONTAINERFILE = os.path.join(DEPLOY, "container", "Containerfile")
APPTAINER = os.path.join(DEPLOY, "container", "coordd.def")


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def text_of(path):
    return "\n".join(lines_of(path))


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


# What systemd makes of the unit, in a mount namespace: /run/coordd of the service's own user, credentials, and in /etc what the
# administrator has put there. $1 the certificates, $2 an empty folder, then the service's command. Prints what root's coordctl says.
AS_A_SERVICE = """
set -eu
mkdir "$2/upper" "$2/work"
mkdir -p "$2/upper/coordd"
cp -r "$1" "$2/upper/coordd/tls"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$2/upper,workdir=$2/work" /etc
mount -t tmpfs tmpfs /run
mkdir -m 0700 /run/coordd /run/credentials /run/state /run/user
cp "$1"/ca.crt "$1"/server.crt "$1"/server.key /run/credentials
chown -R 65534:65534 /run/coordd /run/credentials /run/state
shift 2
env XDG_RUNTIME_DIR=/run/coordd STATE_DIRECTORY=/run/state setpriv --reuid=65534 --regid=65534 --clear-groups "$@" &
trap 'kill $!; wait' EXIT
for _ in $(seq 200); do
  if ls /run/coordd/coordd/*.json >/dev/null 2>&1; then break; fi
  kill -0 $!
  sleep 0.1
done
XDG_RUNTIME_DIR=/run/user "$COORDCTL" status
"""


class ServiceTest(processes.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze here")
    def test_is_hardened(self):
        said = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", UNIT], capture_output=True, text=True,
                              check=False)
        level = re.search(r"Overall exposure level for .*: ([0-9.]+)", said.stdout)
        self.assertIsNotNone(level, said.stdout + said.stderr)
        self.assertLessEqual(float(level.group(1)), 2.5)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze here")
    def test_systemd_understands_each_line(self):
        unit = os.path.join(self.folder, "coordd.service")
        with open(unit, "w", encoding="utf-8") as file:
            file.writelines(line.replace("/usr/bin/coordd ", "/bin/true ") + "\n" for line in lines_of(UNIT))
        said = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
        self.assertEqual((said.returncode, said.stdout + said.stderr), (0, ""))

    def test_what_trying_again_does_not_mend_is_one_failure(self):
        """Status 5: the state cannot be used. systemd's own are without certificates and without a place for the state."""
        lines = lines_of(UNIT)
        [prevented] = [line.partition("=")[2].split() for line in lines if line.startswith("RestartPreventExitStatus=")]
        self.assertEqual(set(prevented), {"2", "5", "STATE_DIRECTORY", "CREDENTIALS"})
        self.assertIn("RestartSec=1s", lines)
        tls, ports = self.path("tls"), free_ports(2)
        self.run_ok(program("coordctl"), "certs", tls, "--name", "127.0.0.1")
        os.mkdir(os.path.join(self.folder, "state"), 0o700)
        with open(os.path.join(self.folder, "state", str(ports[0])), "w", encoding="ascii"):
            pass  # where the directory for the state belongs
        service = self.start(Service(tls, self.folder, program("coordd"), ports=tuple(ports)))
        self.assertFalse(service.is_started_again(), service.text())
        self.assertIn("is not a directory", service.text())

    def test_states_how_many_descriptors_it_has_and_leaves_no_memory_on_disk(self):
        lines = lines_of(UNIT)
        self.assertIn("LimitCORE=0", lines)
        limits = [int(line.partition("=")[2]) for line in lines if line.startswith("LimitNOFILE=")]
        self.assertEqual(len(limits), 1)
        self.assertGreater(limits[0], 3 * 2 * 131_072)

    def test_its_command_says_when_it_is_ready_and_when_it_stops(self):
        tls = self.path("tls")
        self.run_ok(program("coordctl"), "certs", tls, "--name", "127.0.0.1")
        service = self.start(Service(tls, self.folder, program("coordd"), COORDD_OPTIONS="--log-level info")).await_ready()
        # What it says holds: it takes a worker, whose certificate is of the same folder.
        self.run_ok(program("coordctl"), "status", "--coordinator", service.listen, "--tls-ca", f"{tls}/ca.crt",
                    "--tls-cert", f"{tls}/operator.crt", "--tls-key", f"{tls}/operator.key")
        self.assertEqual(service.stop(), 0)
        self.assertEqual(service.says(), "STOPPING=1")
        self.assertTrue(glob.glob(service.state + "/**/*.sqlite*", recursive=True) or os.listdir(service.state),
                        "its state is where systemd wants it")

    def test_its_addresses_can_be_others_than_the_units(self):
        tls = self.path("tls")
        self.run_ok(program("coordctl"), "certs", tls, "--name", "127.0.0.1")
        service = self.start(Service(tls, self.folder, program("coordd"), COORDD_LISTEN="127.0.0.1:0", COORDD_HTTP="0.0.0.0:0"))
        self.assertTrue(wait_for(lambda: "http https://0.0.0.0:" in service.text()), service.text())

    @unittest.skipUnless(os.getuid() == 0, "mount namespaces need root here")
    def test_roots_coordctl_finds_it(self):
        tls, place = self.path("tls"), self.path("place")
        status, text = self.run_command(program("coordctl"), "certs", tls, "--name", "127.0.0.1")
        self.assertEqual(status, 0, text)
        # overlayfs takes no overlay as its upper layer, which /tmp is in a container.
        os.mkdir(place)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        self.addCleanup(subprocess.run, ["umount", place], check=True)
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", AS_A_SERVICE, "sh", tls, place, program("coordd"), "--listen", "127.0.0.1:0", "--http", "off",
             "--tls-cert", "/run/credentials/server.crt", "--tls-key", "/run/credentials/server.key", "--tls-ca",
             "/run/credentials/ca.crt", "--store", "memory"],
            env=clean_environment(COORDCTL=program("coordctl")), capture_output=True, text=True, timeout=processes.PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("no job", done.stdout)

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


@unittest.skipIf(os.environ.get("COORDD_SANITIZE"), "what users run is what goes into images")
@unittest.skipUnless(shutil.which("buildah"), "no buildah here")
@unittest.skipUnless(os.getuid() == 0, "buildah's chroot isolation needs root here")
class ImageTest(processes.TestCase):
    """The image that deploy/container/Containerfile describes, made and run by buildah: no daemon, no registry. Its base is
    nothing but the libraries that the programs of this build name, instead of a distribution with a package of tools/package."""

    def setUp(self):
        super().setUp()
        self.buildah = ["buildah", "--root", f"{self.folder}/storage", "--runroot", f"{self.folder}/run", "--storage-driver", "vfs"]
        root, context = os.path.join(self.folder, "root"), os.path.join(self.folder, "context")
        for folder in ("tmp", "var/lib/coordd"):
            os.makedirs(os.path.join(root, folder))
        os.makedirs(os.path.join(context, "coordd", "bin"))
        for name in ("coordd", "coordctl", "coordrun", "coordd-worker"):
            shutil.copy(program(name), os.path.join(context, "coordd", "bin", name))
            listed = subprocess.run(["ldd", program(name)], capture_output=True, text=True, check=True).stdout
            for library in re.findall(r"(/\S+) \(0x", listed):
                os.makedirs(os.path.dirname(root + library), exist_ok=True)
                shutil.copy(library, root + library)
        shutil.copy(CONTAINERFILE, context)
        base = self.run_buildah("from", "scratch")
        self.run_buildah("copy", base, root, "/")
        self.run_buildah("commit", base, "localhost/base")
        self.run_buildah("bud", "--isolation", "chroot", "--pull-never", "--build-arg", "BASE=localhost/base", "--tag", "coordd", context)
        self.container = self.new_container()

    def new_container(self):
        return self.run_buildah("from", "--pull-never", "localhost/coordd")

    def run_buildah(self, *words):
        """What it says on stdout."""
        done = subprocess.run([*self.buildah, *words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def in_container(self, command, container=None):
        """One at a time in the same container: of two `buildah run` that begin at once one fails where the other makes its mount points.
        The host's name is the machine's, as where podman has its network; buildah would give each container one of its own."""
        return [*self.buildah, "run", "--isolation", "chroot", "--network", "host", "--hostname", os.uname().nodename, "--env", f"COORDD_TEST_ID={self.test_id}",
                container or self.container, "--", *command]

    def test_the_container_runs_coordd(self):
        image = json.loads(self.run_buildah("inspect", "--type", "image", "localhost/coordd"))["OCIv1"]["config"]
        grpc_port, http_port = free_ports(2)
        command = [word.replace("29650", str(grpc_port)).replace("29651", str(http_port)) for word in image["Cmd"]]
        daemon = self.start(Process(self.in_container(command), {"PATH": os.environ["PATH"]}))
        self.assertTrue(wait_for(lambda: " ready: grpc " in daemon.text()), daemon.text())
        # A worker of this machine is a member there; as nobody in particular, coordd needs no rights.
        status, said = self.run_command(program("coordd-worker"), "selftest", "--coordinator", f"127.0.0.1:{grpc_port}", "--size", "1")
        self.assertEqual(status, 0, said)
        self.assertEqual(image["User"], "65534:65534")

    def test_two_containers_of_a_machine_share_memory(self):
        daemon = self.coordd()
        members = []
        for rank, container in enumerate((self.container, self.new_container())):
            command = self.in_container(["coordd-worker", "allreduce", "--elements", "1000", "--iterations", "0", "--interval-ms", "20"],
                                        container)
            variables = {"COORDD_ADDR": daemon.listen, "COORDD_JOB_ID": "boxes", "COORDD_SIZE": "2", "COORDD_RANK": str(rank)}
            given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
            place = command.index("--env")
            members.append(self.start(Process([*command[:place], *given, *command[place:]], {"PATH": os.environ["PATH"]})))

        def edges():
            return self.run_command(program("coordctl"), "status", "--coordinator", daemon.listen)[1]
        self.assertTrue(wait_for(lambda: "  edges in nodes: mapped\n" in edges()), edges() + "".join(member.text() for member in members))

    def test_the_other_programs_run_in_it(self):
        for name in ("coordctl", "coordrun", "coordd-worker"):
            status, said = self.run_command(*self.in_container([name, "--version"]))
            self.assertEqual(status, 0, said)
            self.assertIn(name, said)


class MonitoringTest(unittest.TestCase):
    def test_scrapes_of_the_prometheus_operator_have_the_names_that_rules_and_dashboard_know(self):
        known = set()
        for name in ("coordd-alerts.yml", "coordd-dashboard.json"):
            known.update(re.findall(r'\bjob=\\?"([a-z-]+)', text_of(os.path.join(DEPLOY, "prometheus", name))))
        given = re.findall(r"targetLabel: job, replacement: ([a-z-]+)}", text_of(os.path.join(DEPLOY, "kubernetes", "monitoring.yaml")))
        self.assertEqual(sorted(given), sorted(known))


class RecipeTest(unittest.TestCase):
    """Apptainer is in no distribution that coordd is built on: of its definition only what it shares with the Containerfile is judged."""

    def test_no_registry_is_named(self):
        self.assertEqual(re.findall(r"^FROM (\S+)", text_of(CONTAINERFILE), re.M), ["${BASE}"])
        self.assertEqual(re.findall(r"^From: (.+)", text_of(APPTAINER), re.M), ["{{ BASE }}"])

    def test_apptainer_takes_the_same_folder_to_the_same_place(self):
        source, place = re.search(r"^COPY (\S+) (\S+)", text_of(CONTAINERFILE), re.M).groups()
        self.assertEqual(re.search(r"%files\n\s*(\S+) (\S+)", text_of(APPTAINER)).groups(), (source, place))
        self.assertIn(f"export PATH={place}/bin:", text_of(APPTAINER))

    def test_what_is_named_behind_an_image_runs_and_else_coordd(self):
        text = text_of(CONTAINERFILE)
        # What podman and docker put before the words behind the image, which are programs (docs/CONTAINERS.md).
        self.assertNotIn("ENTRYPOINT", text)
        default = json.loads(re.search(r"^CMD (.*)", text, re.M).group(1))
        self.assertEqual(default[0], "coordd")
        script = re.search(r"%runscript\n(.*?)\n%", text_of(APPTAINER), re.S).group(1)
        script = script.replace("exec ", "echo ")
        for words in ([], ["coordctl", "status"]):
            done = subprocess.run(["sh", "-c", script, "run", *words], capture_output=True, text=True, check=True)
            self.assertEqual(done.stdout.split(), words or default)


if __name__ == "__main__":
    processes.main()
