"""What the tests of launchers have in common."""

import os
import shutil
import subprocess
import unittest

from tests.support import processes
from tests.support.processes import Process, clean_environment, program, wait_for


def lines_of(text, rank):
    prefix = f"[{rank}] "
    return [line[len(prefix):] for line in text.splitlines() if line.startswith(prefix)]


def workers_find_themselves():
    """Whether workers look for their launcher and their coordd (--coordinator auto)."""
    said = subprocess.run([program("coordd-worker"), "--help"], capture_output=True, text=True, check=False)
    return "--launcher" in said.stdout


class LauncherCase(processes.TestCase):
    def setUp(self):
        super().setUp()
        # Secrets of all hosts, which are one machine, lie here.
        self.runtime = os.path.join(self.folder, "run")
        os.mkdir(self.runtime, 0o700)
        self.environment = clean_environment(TMPDIR=self.runtime)
        for name in [name for name in self.environment if name.startswith("SLURM") or name == "XDG_RUNTIME_DIR"]:
            del self.environment[name]

    def file(self, name):
        return os.path.join(self.folder, name)

    def coordrun(self, *arguments):
        return self.run_command(program("coordrun"), *arguments, environment=self.environment)

    def started(self, *arguments):
        return self.start(Process([program("coordrun"), *arguments], self.environment))

    def assert_clean(self):
        self.assert_nothing_left()
        self.assertTrue(wait_for(lambda: self.secrets() == [], 5), f"left behind: {self.secrets()}")

    def secrets(self):
        return [name for name in os.listdir(self.runtime) if name.startswith("coordrun")]


class MpiCase(LauncherCase):
    """A subclass names its mpirun and what it wants on a machine with few cores."""

    mpirun = ""
    variables = {}

    def setUp(self):
        super().setUp()
        # The name under which people have it in PATH.
        folder = self.file("bin")
        os.mkdir(folder)
        with open(os.path.join(folder, "mpirun"), "w", encoding="utf-8") as script:
            script.write(f'#!/bin/sh\nexec {shutil.which(self.mpirun)} "$@"\n')
            os.chmod(script.fileno(), 0o755)
        self.environment.update(self.variables, PATH=folder + ":" + self.environment["PATH"])


@unittest.skipUnless(shutil.which("mpirun.openmpi"), "Open MPI is not installed")
class OpenMpiCase(MpiCase):
    mpirun = "mpirun.openmpi"
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl": "self,tcp"}


@unittest.skipUnless(shutil.which("mpirun.mpich"), "MPICH is not installed")
class MpichCase(MpiCase):
    mpirun = "mpirun.mpich"
