"""Ranks in containers of one machine: which of them share memory, and what goes over TCP. Charliecloud's are the real thing; what podman and
docker make besides (IPC, host name, processes, users, network) is made of the same namespaces by unshare(1). No image comes from a registry:
the container has this machine's /usr, and our programs in /opt/coordd."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from tests.support import network, processes
from tests.support.processes import BUILD, PATIENCE_S, ROOT, Process, clean_environment, program, wait_for

PROGRAMS = ("coordd", "coordctl", "coordrun", "coordd-worker")
AS_PODMAN = ["unshare", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


def environment_of(**variables):
    """As of a login: ch-run binds what TMPDIR names to /tmp."""
    environment = clean_environment(USER="root", **variables)
    for name in {"TMPDIR", "XDG_RUNTIME_DIR"} - variables.keys():
        environment.pop(name, None)
    return environment


def works(*command):
    """Whether such a container can be made here."""
    try:
        return subprocess.run([*command, "true"], capture_output=True, check=False, env={**os.environ, "USER": "root"}).returncode == 0
    except FileNotFoundError:
        return False


class Containers(processes.TestCase):
    def member(self, daemon, rank, container, command=None, **variables):
        """Rank `rank` of a job of two, in a container."""
        environment = environment_of(COORDD_ADDR=daemon.listen, COORDD_JOB_ID="boxes", COORDD_SIZE=2, COORDD_RANK=rank,
                                        COORDD_JOIN_TIMEOUT=PATIENCE_S, **variables)
        return self.start(Process([*container, *(command or [program("coordd-worker")]), "--json", "allreduce", "--elements", "1000",
                                   "--iterations", "0", "--interval-ms", "20"], environment))

    def edges(self, daemon):
        """Of each rank: what it goes over within its node, and between nodes."""
        status, text = self.run_command(program("coordctl"), "status", "--json", "--coordinator", daemon.listen)
        self.assertEqual(status, 0, text)
        return self.edges_in(text)

    def edges_in(self, text):
        jobs = json.loads(text).get("jobs", [])
        told = [worker.get("host_edges") or {} for job in jobs for worker in job.get("workers", [])]
        return [(edges.get("within_node", ""), [group["over"] for group in edges.get("between_nodes", [])]) for edges in told]

    def assert_edges(self, daemon, members, expected):
        def told():
            for member in members:
                self.assertTrue(member.running(), member.text())
            return self.edges(daemon) == [expected] * 2
        self.assertTrue(wait_for(told, PATIENCE_S), str(self.edges(daemon)) + "".join(member.text() for member in members))

    def end_all(self, members):
        for member in members:
            os.killpg(member.pid, signal.SIGTERM)
        for member in members:
            member.wait()


@unittest.skipUnless(os.getuid() == 0 and works(*AS_PODMAN), "no namespaces can be made here")
class Namespaces(Containers):
    def test_an_ipc_namespace_each_is_a_node_each(self):
        """podman run --network host: each container counts as a node, and they speak TCP."""
        daemon = self.coordd()
        members = [self.member(daemon, rank, AS_PODMAN) for rank in (0, 1)]
        self.assert_edges(daemon, members, ("", ["tcp"]))
        self.end_all(members)

    def test_a_common_node_id_makes_them_one_node(self):
        """podman run --network host --env COORDD_NODE_ID=...: memory is handed over through the network namespace that they share."""
        daemon = self.coordd()
        members = [self.member(daemon, rank, AS_PODMAN, COORDD_NODE_ID="box") for rank in (0, 1)]
        self.assert_edges(daemon, members, ("mapped", []))
        self.end_all(members)

    def test_two_users_are_two_nodes(self):
        """Rootless containers with users of their own: nobody gets another's memory, and the job runs all the same."""
        daemon = self.coordd()
        members = [self.member(daemon, rank, ["setpriv", f"--reuid={1000 + rank}", f"--regid={1000 + rank}", "--clear-groups"],
                               HOME="/tmp") for rank in (0, 1)]
        self.assert_edges(daemon, members, ("", ["tcp"]))
        self.end_all(members)

    def test_one_user_under_two_names_shares_memory(self):
        """User namespaces of their own, of one user of the machine: root within one, 1000 within the other."""
        daemon = self.coordd()
        members = [self.member(daemon, 0, ["unshare", "--user", "--map-root-user"]),
                   self.member(daemon, 1, ["unshare", "--user", "--map-user=1000"])]
        self.assert_edges(daemon, members, ("mapped", []))
        self.end_all(members)


@unittest.skipIf(network.why_not(), network.why_not())
class Networks(Containers):
    """Containers with a network each, as pods and those of podman's and docker's bridges."""

    def setUp(self):
        super().setUp()
        self.network = network.Network(2)
        self.addCleanup(self.network.close)
        self.daemon = self.coordd("--insecure", listen=f"{self.network.addresses[0]}:0", wrapper=self.network.on(0))

    def edges(self, daemon):
        """As from the first of them, since nobody else reaches coordd."""
        shown = subprocess.run([*self.network.on(0), program("coordctl"), "status", "--json", "--coordinator", daemon.listen],
                               capture_output=True, text=True, check=True, env=clean_environment())
        return self.edges_in(shown.stdout)

    def test_each_is_a_node(self):
        members = [self.member(self.daemon, rank, self.network.on(rank)) for rank in (0, 1)]
        self.assert_edges(self.daemon, members, ("", ["tcp"]))
        self.end_all(members)

    def test_one_node_id_for_both_is_an_error_that_says_what_to_do(self):
        members = [self.member(self.daemon, rank, self.network.on(rank), COORDD_NODE_ID="box") for rank in (0, 1)]
        self.assertTrue(wait_for(lambda: any(not member.running() for member in members), PATIENCE_S))
        said = "".join(member.text() for member in members)
        self.assertIn("in another network namespace, in which case it needs another COORDD_NODE_ID", said)


@unittest.skipUnless(shutil.which("ch-run"), "no charliecloud here")
class Charliecloud(Containers):
    """Each ch-run has a mount and a user namespace of its own, and the machine's others: as Apptainer's containers."""

    def setUp(self):
        super().setUp()
        self.image = os.path.join(self.folder, "image")
        for folder in ("dev", "etc", "home", "mnt", "opt/coordd/bin", "proc", "root", "run", "sys", "tmp", "usr", "var"):
            os.makedirs(os.path.join(self.image, folder))
        for name in ("bin", "lib", "lib64", "sbin"):
            os.symlink(f"usr/{name}", os.path.join(self.image, name))
        for name in ("passwd", "group", "hosts", "resolv.conf"):
            with open(os.path.join(self.image, "etc", name), "w", encoding="ascii"):
                pass
        if not works("ch-run", "-b", "/usr:/usr", self.image, "--"):
            self.skipTest("no user namespace can be made here")
        for name in PROGRAMS:
            shutil.copy(program(name), os.path.join(self.image, "opt/coordd/bin", name))

    def in_tmp(self):
        folder = tempfile.mkdtemp(prefix="coordd-test-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def inside(self, *options):
        return ["ch-run", "--bind=/usr:/usr", *options, self.image, "--"]

    def test_containers_of_a_node_share_memory(self):
        """srun ch-run IMAGE -- python train.py: a container for each rank, the library in the image."""
        daemon = self.coordd()
        members = [self.member(daemon, rank, self.inside(), ["/opt/coordd/bin/coordd-worker"]) for rank in (0, 1)]
        self.assert_edges(daemon, members, ("mapped", []))
        self.end_all(members)

    def test_a_private_tmp_and_shm_change_nothing(self):
        """Memory has no name in a file system: neither /dev/shm nor /tmp need be shared with who has COORDD_ADDR."""
        daemon = self.coordd()
        members = [self.member(daemon, rank, [*self.inside("--private-tmp"), "unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                                              'mount -t tmpfs none /dev/shm && exec "$@"', "sh"], ["/opt/coordd/bin/coordd-worker"])
                   for rank in (0, 1)]
        self.assert_edges(daemon, members, ("mapped", []))
        self.end_all(members)

    def test_the_library_may_be_bound(self):
        """The image is somebody's, coordd comes from outside: its library by COORDD_LIBRARY, its package by PYTHONPATH."""
        place = os.path.join(self.image, "mnt", "0")
        os.makedirs(place)
        package = os.path.join(self.image, "mnt", "1")
        os.makedirs(package)
        status, said = self.run_command(
            *self.inside(f"--bind={BUILD}/lib:/mnt/0", f"--bind={ROOT}/client/python:/mnt/1", "--set-env=PYTHONPATH=/mnt/1",
                         "--set-env=COORDD_LIBRARY=/mnt/0/libcoordd.so", "--set-env=PYTHONDONTWRITEBYTECODE=1"),
            "python3", "-c", "import coordd; print(coordd.check_build()); from coordd import _basics; _basics.init(); _basics.shutdown(); print('done')",
            environment=environment_of(PATH=f"/opt/coordd/bin:{os.environ['PATH']}", HOME="/tmp"))
        self.assertEqual(status, 0, said)
        self.assertIn("[X] gRPC", said)
        self.assertIn("done", said)

    def test_coordrun_starts_a_container_for_each_rank(self):
        """coordrun outside; the run's secrets have to be in a folder that the container sees: --run-dir /tmp."""
        outside = self.in_tmp()  # which a private one hides
        command = [*self.inside(), "/opt/coordd/bin/coordd-worker", "--json", "allreduce", "--iterations", "2", "--elements", "4"]
        environment = environment_of()
        status, said = self.run_command(program("coordrun"), "-np", "2", "--run-dir", "/tmp", "--", *command, environment=environment)
        self.assertEqual(status, 0, said)
        self.assertEqual(said.count('"size":2,'), 2, said)
        # Where it is hidden, the sentence names the file and its variable.
        hidden = [*self.inside("--private-tmp"), *command[command.index("/opt/coordd/bin/coordd-worker"):]]
        status, said = self.run_command(program("coordrun"), "-np", "2", "--run-dir", outside, "--", *hidden, environment=environment)
        self.assertNotEqual(status, 0, said)
        self.assertRegex(said, r"COORDD_(TOKEN_FILE|TLS_CA).*" + re.escape(outside))

    def test_coordrun_runs_inside(self):
        status, said = self.run_command(*self.inside("--set-env=PATH=/opt/coordd/bin:/usr/bin:/bin"), "coordrun", "-np", "2", "--", "coordd-worker", "selftest",
                                        environment=environment_of(), seconds=170)
        self.assertEqual(status, 0, said)

    def test_ranks_of_a_launcher_meet_without_an_address(self):
        """mpirun, srun: rank 0 starts the coordd of the image, the others find it in the folder that their containers share."""
        home = self.in_tmp()
        members = [self.start(Process([*self.inside("--set-env=PATH=/opt/coordd/bin:/usr/bin:/bin"), "coordd-worker", "--json", "allreduce",
                                       "--iterations", "2", "--elements", "4"],
                                      environment_of(HOME=home, PMI_RANK=rank, PMI_SIZE=2,
                                                        COORDD_JOIN_TIMEOUT=PATIENCE_S,
                                                        COORDD_RENDEZVOUS_FILE=os.path.join(home, "here.json")))) for rank in (1, 0)]
        for member in members:
            self.assertEqual(member.wait(), 0, member.text())
            self.assertIn('"size":2,', member.text())

    def test_check_build_says_what_the_image_has(self):
        status, said = self.run_command(*self.inside(), "/opt/coordd/bin/coordctl", "check-build", environment=environment_of())
        self.assertEqual(status, 0, said)
        self.assertIn("[X] between nodes: coordd's TCP", said)


if __name__ == "__main__":
    processes.main()
