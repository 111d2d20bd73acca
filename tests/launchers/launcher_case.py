"""What the tests of launchers have in common."""

import os
import subprocess

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
