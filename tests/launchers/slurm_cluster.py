"""A real Slurm on this machine: munged, slurmctld and four slurmd that pose as nodes n0 to n3 with four cores each."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time

NODES = 4
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc")

CONFIGURATION = """\
ClusterName=coordtest
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=30
InactiveLimit=0
KillWait=5
Waittime=0
MinJobAge=60
RebootProgram=/bin/true
{gpus}
NodeName=n[0-3] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4 Boards=1 SocketsPerBoard=1 \
CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1024 {gres} State=UNKNOWN
PartitionName=debug Nodes=n[0-3] Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Programs of Slurm that are not installed here."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def free_ports(count):
    """Consecutive free ports, below those that the kernel gives to clients and those that coordd takes by itself (from 20000
    on): tests that run at the same time would be given them before they are bound."""
    for first in range(10000 + os.getpid() % 9000, 20000 - count, count):
        sockets = []
        try:
            for port in range(first, first + count):
                probe = socket.socket()
                sockets.append(probe)
                probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise AssertionError(f"there are no {count} free ports in a row")


class Cluster:
    """Up when constructed; `environment` makes Slurm's commands use it."""

    def __init__(self, fake_gpus=0):
        self.folder = tempfile.mkdtemp(prefix="coordd-slurm-")
        self.path = os.environ["PATH"] + ":/usr/sbin:/sbin"
        for name in ("munge", "state", "spool"):
            os.mkdir(os.path.join(self.folder, name))
        for node in range(NODES):
            os.mkdir(os.path.join(self.folder, "spool", f"n{node}"))
        self._configure(fake_gpus)
        self.environment = {"SLURM_CONF": os.path.join(self.folder, "slurm.conf")}
        try:
            self._start_munge()
            self._run("slurmctld", "-c")
            for node in range(NODES):
                self._run("slurmd", "-c", "-N", f"n{node}")
            self._await_idle()
        except BaseException:
            self.end()
            raise

    def _configure(self, fake_gpus):
        first = free_ports(NODES + 1)
        text = CONFIGURATION.format(user=getpass.getuser(), folder=self.folder, controller=first, first=first + 1,
                                    last=first + NODES, gpus="GresTypes=gpu" if fake_gpus else "",
                                    gres=f"Gres=gpu:{fake_gpus}" if fake_gpus else "")
        with open(os.path.join(self.folder, "slurm.conf"), "w", encoding="ascii") as configuration:
            configuration.write(text)
        if self._version() >= (23, 2):
            # From then on slurmd does not start without a plugin for control groups, also where nothing uses them. That of
            # version 1 asks nothing of the system until then.
            with open(os.path.join(self.folder, "cgroup.conf"), "w", encoding="ascii") as groups:
                groups.write("CgroupPlugin=cgroup/v1\n")
        if fake_gpus:
            # Any character device will do; nobody opens it.
            with open(os.path.join(self.folder, "gres.conf"), "w", encoding="ascii") as gres:
                for gpu in range(fake_gpus):
                    device = os.path.join(self.folder, f"fakegpu{gpu}")
                    os.mknod(device, 0o20666, os.makedev(1, 3))
                gres.write(f"NodeName=n[0-3] Name=gpu File={self.folder}/fakegpu[0-{fake_gpus - 1}]\n")

    def _version(self):
        """Of slurmd, which needs no configuration to tell it: (22, 5)."""
        text = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True,
                              env={"PATH": self.path}).stdout
        return tuple(int(number) for number in text.split()[-1].split(".")[:2])

    def _start_munge(self):
        munge = os.path.join(self.folder, "munge")
        os.chmod(munge, 0o711)
        key = os.path.join(munge, "munge.key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(1024))
        self._run("munged", "--force", "--num-threads=2", f"--key-file={key}", f"--socket={munge}/munge.socket",
                  f"--pid-file={munge}/munged.pid", f"--log-file={munge}/munged.log",
                  f"--seed-file={munge}/munged.seed")

    def _run(self, *command):
        # Daemons outlive the test's other processes: they must not carry its mark, nor hold its pipes.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COORDD_")}
        environment.update(self.environment, PATH=self.path)
        subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=30)

    def ask(self, *command):
        """What one of Slurm's commands prints."""
        environment = dict(os.environ, **self.environment, PATH=self.path)
        return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=30, check=False).stdout

    def _await_idle(self):
        deadline = time.monotonic() + 90  # against hangs only
        while self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != str(NODES):
            if time.monotonic() > deadline:
                raise AssertionError("Slurm's nodes do not come up: " + self.ask("sinfo"))
            time.sleep(0.05)

    def end(self):
        for name in [f"slurmd.n{node}.pid" for node in range(NODES)] + ["slurmctld.pid", "munge/munged.pid"]:
            try:
                with open(os.path.join(self.folder, name), encoding="ascii") as file:
                    os.kill(int(file.read()), 9 if name.startswith("slurmd") else 15)
            except (OSError, ValueError):
                pass
        shutil.rmtree(self.folder, ignore_errors=True)
