"""coordrun as a person at a terminal, a shell or a script meets it: signals that are ignored, progress bars and prompts, stdin,
addresses, and what it says when something is not as it should be.
"""

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support import processes
from tests.support.processes import Process, clean_environment, program, wait_for

NOWHERE = ("--coordinator", "127.0.0.1:1")  # for workers that need no coordd
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def program_of(pid):
    """The name of the file that a process runs; "" when it has ended."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except FileNotFoundError:
        return ""


class TerminalCase(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.environment = clean_environment(TMPDIR=self.folder)
        self.environment.pop("XDG_RUNTIME_DIR", None)
        self.go = os.path.join(self.folder, "go")

    def coordrun(self, *arguments):
        return self.run_command(program("coordrun"), *arguments, environment=self.environment)

    def started(self, *arguments, **options):
        return self.start(Process([program("coordrun"), *arguments], self.environment, **options))

    def let_go(self):
        with open(self.go, "w", encoding="ascii"):
            pass

    def until_let_go(self):
        return f"until [ -e {self.go} ]; do sleep 0.02; done"

    def assert_says(self, run, text):
        self.assertTrue(wait_for(lambda: text in run.text() or not run.running()), run.text())
        self.assertIn(text, run.text())


class IgnoredSignalsTest(TerminalCase):
    def test_a_signal_that_is_ignored_at_the_start_stays_ignored(self):
        def ignore():
            for number in ENDING:
                signal.signal(number, signal.SIG_IGN)

        run = self.started("-np", "2", *NOWHERE, "--", "bash", "-c",
                           f"echo up $(grep SigIgn /proc/$$/status); {self.until_let_go()}", preexec_fn=ignore)
        self.assertTrue(wait_for(lambda: run.text().count("up ") == 2), run.text())
        own = [pid for pid in processes.processes_with("COORDD_TEST_ID", self.test_id)
               if program_of(pid) == "coordrun"]
        self.assertGreaterEqual(len(own), 2, "the guard and what it guards")
        for number in ENDING:
            for pid in own:
                os.kill(pid, number)
        # Not ignored: both have handled what came before it.
        run.signal(signal.SIGUSR1)
        self.let_go()
        status = run.wait()
        self.assertIn(status, (0, 128 + signal.SIGUSR1), run.text())
        self.assertNotIn("ended by", run.text())
        for mask in re.findall(r"SigIgn: *\s*([0-9a-f]+)", run.text()):
            for number in ENDING:
                self.assertTrue(int(mask, 16) >> (number - 1) & 1, f"workers inherit {number.name}: {mask}")
        self.assert_nothing_left()

    def test_others_end_the_run_as_ever(self):
        run = self.started("-np", "1", *NOWHERE, "--", "bash", "-c", "echo up; sleep 1000",
                           preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.assert_says(run, "up\n")
        run.signal(signal.SIGTERM)
        self.assertEqual(run.wait(), 128 + signal.SIGTERM)


class UnfinishedLinesTest(TerminalCase):
    def test_a_progress_bar_is_seen_while_it_moves(self):
        run = self.started("-np", "1", *NOWHERE, "--", "bash", "-c",
                           rf"printf '10%%\r20%%\r'; {self.until_let_go()}; printf '30%%\n'")
        self.assert_says(run, "[0] 10%\r[0] 20%\r")
        self.let_go()
        self.assertEqual(run.wait(), 0, run.text())
        self.assertIn("[0] 10%\r[0] 20%\r[0] 30%\n", run.text())

    def test_a_prompt_is_seen_before_its_line_ends(self):
        run = self.started("-np", "2", *NOWHERE, "--", "bash", "-c",
                           f'[ "$COORDD_RANK" = 1 ] && {{ {self.until_let_go()}; echo later; exit; }}; '
                           f"printf '(Pdb) '; {self.until_let_go()}; sleep 0.3; echo next")
        self.assert_says(run, "[0] (Pdb) ")
        self.let_go()
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), r"(?m)^\[1\] later$")

    def test_files_get_the_bytes_as_they_are(self):
        files = os.path.join(self.folder, "out")
        status, text = self.coordrun("-np", "1", *NOWHERE, "--output-dir", files, "--", "bash", "-c",
                                     r"printf 'a\r\nb\rc\n\r1%%'; sleep 0.3; printf '\r2%%\n\nend'")
        self.assertEqual(status, 0, text)
        with open(os.path.join(files, "rank-0.out"), "rb") as file:
            self.assertEqual(file.read(), b"a\r\nb\rc\n\r1%\r2%\n\nend")
        self.assertIn("\ncoordrun: job", text, "the summary begins a line of its own")


class StdinTest(TerminalCase):
    def run_with(self, data, *arguments):
        path = os.path.join(self.folder, "stdin")
        with open(path, "w", encoding="utf-8") as file:
            file.write(data)
        with open(path, "rb") as file:
            run = self.started(*arguments, stdin=file)
        return run.wait(), run.text()

    def test_a_script_on_stdin_is_run(self):
        status, text = self.run_with("import sys\nprint('ran')\nsys.exit(4)\n", "-np", "1", *NOWHERE, "--", sys.executable, "-")
        self.assertEqual(status, 4, text)
        self.assertIn("[0] ran\n", text)

    def test_it_is_rank_0_that_has_it(self):
        status, text = self.run_with("hello\n", "-np", "2", *NOWHERE, "--", "bash", "-c", 'echo "got $(cat)."')
        self.assertEqual(status, 0, text)
        self.assertIn("[0] got hello.\n", text)
        self.assertIn("[1] got .\n", text)

    def test_a_terminal_can_be_asked(self):
        ours, theirs = pty.openpty()
        try:
            run = self.started("-np", "1", *NOWHERE, "--", sys.executable, "-c",
                               "print('hello ' + input('name? '))", stdin=theirs)
            self.assert_says(run, "[0] name? ")
            os.write(ours, b"world\n")
            self.assertEqual(run.wait(), 0, run.text())
            self.assertIn("hello world\n", run.text())
            self.assert_nothing_left()
        finally:
            os.close(ours)
            os.close(theirs)

    def test_where_it_cannot_be_had_that_is_said(self):
        status, text = self.coordrun("-np", "1", "--launcher", "external", "--start-timeout", "0.1", "--timeout", "0.1",
                                     "--", "python3", "-")
        self.assertNotEqual(status, 0)
        self.assertIn("workers with launcher external have an empty stdin", text)


class WholeOutputTest(TerminalCase):
    def test_a_reader_that_pauses_gets_everything(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)  # which coordrun shares with us
        with subprocess.Popen([program("coordrun"), "-np", "1", *NOWHERE, "--no-prefix", "--", "seq", "200000"], stdout=writer,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=self.environment) as run:
            os.close(writer)
            waiting = lambda: struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))[0]
            self.assertTrue(processes.wait_for(lambda: waiting() >= 60000), "the pipe is full")
            with os.fdopen(reader, "rb") as pipe:
                text = pipe.read()
            self.assertEqual(run.wait(processes.PATIENCE_S), 0)
        self.assertEqual(text.split(), [b"%d" % number for number in range(1, 200001)])

    def test_a_line_of_megabytes_is_whole(self):
        script = "print('x' * 20000000, end='')"
        done = subprocess.run([program("coordrun"), "-np", "1", *NOWHERE, "--no-prefix", "--", sys.executable, "-c", script],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=self.environment,
                              timeout=processes.PATIENCE_S, check=True)
        self.assertEqual(done.stdout.strip(b"\n"), b"x" * 20000000)

    def test_what_is_lost_is_said(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([program("coordrun"), "-np", "1", *NOWHERE, "--", "seq", "20"], stdout=full, stderr=subprocess.PIPE,
                                  stdin=subprocess.DEVNULL, env=self.environment, timeout=processes.PATIENCE_S, text=True, check=False)
        self.assertEqual(done.stderr.count("what is written to stdout is lost: No space left on device"), 1, done.stderr)


class AddressesTest(TerminalCase):
    def worker(self, *arguments, environment=None):
        return self.run_command(program("coordrun"), "-np", "2", *arguments, "--", program("coordd-worker"), "allreduce",
                                "--elements", "10", "--iterations", "2", environment=environment or self.environment)

    def test_workers_here_reach_a_coordd_that_listens_everywhere(self):
        for listen in ("0.0.0.0:0", "[::]:0", "[::1]:0"):
            status, text = self.worker("--listen", listen, "--metrics", "off")
            self.assertEqual(status, 0, f"{listen}: {text}")

    def test_a_certificate_that_does_not_fit_is_final_at_once(self):
        run = self.started("-np", "1", "--listen", "0.0.0.0:0", "--", "bash", "-c",
                           f'export COORDD_ADDR=127.0.0.2:${{COORDD_ADDR##*:}}; exec {program("coordd-worker")}')
        self.assertNotEqual(run.wait(), 0)
        self.assertIn("is for other names than 127.0.0.2", run.text())
        self.assertIn("127.0.0.2", run.text())

    def without_ipv4(self, command):
        if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
            self.skipTest("network namespaces need root, unshare and ip")
        return self.run_command("unshare", "-n", "sh", "-c",
                                f"ip link set lo up && ip addr del 127.0.0.1/8 dev lo && {command}",
                                environment=self.environment)

    def test_a_machine_without_ipv4_has_a_loopback_too(self):
        worker = f"{program('coordd-worker')} allreduce --elements 10 --iterations 2"
        status, text = self.without_ipv4(f"exec {program('coordrun')} -np 2 --http off --metrics off -- {worker}")
        self.assertEqual(status, 0, text)


class MessagesTest(TerminalCase):
    def test_a_file_that_is_there_and_not_executable(self):
        script = os.path.join(self.folder, "tr.py")
        with open(script, "w", encoding="ascii") as file:
            file.write("print()\n")
        for name in ("tr.py", "./tr.py"):
            status, text = self.run_command("sh", "-c", f"cd {self.folder} && exec {program('coordrun')} -np 1 "
                                            f"{' '.join(NOWHERE)} -- {name}", environment=self.environment)
            self.assertIn(status, (126, 127), text)
            self.assertIn("cannot be run", text)
            self.assertIn("the file ./tr.py is not executable: expected its interpreter before it", text)
        os.chmod(script, 0o755)
        status, text = self.run_command("sh", "-c", f"cd {self.folder} && exec {program('coordrun')} -np 1 "
                                        f"{' '.join(NOWHERE)} -- tr.py", environment=self.environment)
        self.assertEqual(status, 127, text)
        self.assertIn("it is not in PATH: expected ./tr.py", text)

    def test_a_relay_that_does_not_start_says_why(self):
        # coordrun takes the programs beside itself.
        for name in ("coordrun", "coordd"):
            shutil.copy(program(name), self.folder)
        relay = os.path.join(self.folder, "coordd-relay")
        with open(relay, "w", encoding="ascii") as script:
            script.write("#!/bin/sh\necho 'coordd-relay: there is no room for a socket' >&2\nexit 1\n")
        os.chmod(relay, 0o755)
        status, text = self.run_command(os.path.join(self.folder, "coordrun"), "-np", "2", "--node-sessions", "on", "--", "true",
                                        environment=self.environment)
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"the relay at unix:\S+ did not start: .*there is no room for a socket")

    def test_hosts_are_never_options(self):
        for arguments in (("-H", "-Fevil:1"), ("-H", "h1,-oProxyCommand=x"), ("--host-discovery-script", "echo -Fevil:2")):
            status, text = self.coordrun(*arguments, "--elastic-timeout", "0.3", "--dry-run", "--", "true")
            self.assertEqual(status, 2, text)
            self.assertIn("begins with '-'", text)


if __name__ == "__main__":
    processes.main()
