"""coordrun --launcher blaunch inside a job of LSF, with a stand-in for blaunch: it starts the command on "the host" with its own stdin."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.launchers.launcher_case import LauncherCase, lines_of
from tests.support import processes
from tests.support.processes import program

BLAUNCH = """#!/bin/sh
echo "$@" >>"$BLAUNCH_LOG"
host=$1
shift
case $host in gone*) echo "blaunch: $host is not a host of the job" >&2; exit 255 ;; esac
exec "$@"
"""


class Blaunch(LauncherCase):
    def setUp(self):
        super().setUp()
        folder = self.file("bin")
        os.mkdir(folder)
        with open(os.path.join(folder, "blaunch"), "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as stub:
            stub.write(BLAUNCH)
        self.environment.update(PATH=f"{folder}:{self.environment['PATH']}", BLAUNCH_LOG=self.file("log"), LSB_JOBID="4711",
                                LSB_MCPU_HOSTS="batch1 1 h1 2 h2 2")

    def test_an_agent_on_each_host_without_the_launch_node(self):
        status, text = self.coordrun("--launcher", "blaunch", "--skip-checks", "--", program("coordd-worker"), "--json", "allreduce", "--iterations", "2", "--elements", "4")
        self.assertEqual(status, 0, text)
        with open(self.file("log"), encoding="ascii") as log:
            self.assertEqual(sorted(line.split()[0] for line in log), ["h1", "h2"])
        for rank in range(4):
            self.assertIn('"size":4', "".join(lines_of(text, rank)), text)
        self.assert_clean()

    def test_a_host_that_blaunch_does_not_know_is_named(self):
        self.environment["LSB_MCPU_HOSTS"] = "h1 1 gone7 1"
        status, text = self.coordrun("--launcher", "blaunch", "--", sys.executable, "-c", "pass")
        self.assertEqual(status, 1, text)
        self.assertRegex(text, "host gone7: blaunch .*: blaunch: gone7 is not a host of the job")

    def test_outside_of_a_job_it_is_said_where_the_hosts_come_from(self):
        del self.environment["LSB_JOBID"], self.environment["LSB_MCPU_HOSTS"]
        status, text = self.coordrun("--launcher", "blaunch", "--", "true")
        self.assertEqual(status, 2, text)
        self.assertIn("--launcher blaunch: expected -H HOST:SLOTS,... or --hostfile, or a job of LSF around coordrun", text)


if __name__ == "__main__":
    processes.main()
