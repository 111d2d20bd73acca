"""coordrun --launcher external: somebody else starts the workers."""

import os
import re
import shlex
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.launchers.launcher_case import LauncherCase
from tests.support import processes
from tests.support.processes import Process, program, wait_for


class ExternalTest(LauncherCase):
    def command_of(self, run):
        """The command that it tells us to start."""
        self.assertTrue(wait_for(lambda: "waiting for" in run.text()), run.text())
        return shlex.split(re.search(r"(?m)^env .*$", run.text()).group())

    def test_the_printed_command_starts_workers_that_dial_in(self):
        run = self.started("-np", "2", "--launcher", "external", "--", program("coordd-worker"), "allreduce",
                           "--iterations", "3", "--elements", "10")
        command = self.command_of(run)
        workers = [self.start(Process(command, self.environment)) for _ in range(2)]
        self.assertEqual([worker.wait() for worker in workers], [0, 0])
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), "2 workers, .* all workers exited with status 0")
        self.assert_clean()

    def test_a_worker_that_is_lost_fails_the_run(self):
        run = self.started("-np", "2", "--launcher", "external", "--", program("coordd-worker"))
        command = self.command_of(run)
        workers = [self.start(Process(command, self.environment)) for _ in range(2)]
        self.assertTrue(wait_for(lambda: "2 workers have joined" in run.text()), run.text())
        workers[1].signal(signal.SIGKILL)
        self.assertNotEqual(run.wait(), 0)
        self.assertRegex(run.text(), r"coordd saw: rank \d \(host .*was lost")

    def test_an_interrupt_ends_the_wait(self):
        run = self.started("-np", "2", "--launcher", "external", "--", "train")
        self.command_of(run)
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 128 + signal.SIGINT)
        self.assert_clean()


if __name__ == "__main__":
    processes.main()
