"""Real processes for the integration tests: coordd, workers, commands; all ended when the test is.

Programs are found in $COORDD_BUILD_DIR (default: build/ of this repository). Every process carries COORDD_TEST_ID in its
environment, so that a test can ask whether anything of it is still running.
"""

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("COORDD_BUILD_DIR", os.path.join(ROOT, "build"))
SKIPPED = 77  # exit status of a test program that could not test anything here; ctest knows it

# Against hangs only; the sanitizers slow everything down several times.
PATIENCE_S = float(os.environ.get("COORDD_TEST_PATIENCE_S", "60"))
SANITIZED = os.environ.get("COORDD_SANITIZE", "") != ""


def program(name):
    """Path of one of ours in bin/, or of a program for tests in tests/."""
    for folder in ("bin", "tests"):
        path = os.path.join(BUILD, folder, name)
        if os.path.exists(path):
            return path
    raise FileNotFoundError(f"{name} is not in {BUILD}/bin: build it first")


def is_built(name):
    """Whether this build has it: sanitizers' builds have no benchmarks, for instance."""
    return any(os.path.exists(os.path.join(BUILD, folder, name)) for folder in ("bin", "tests"))


def has_ucx():
    """Whether this build's ranks can be on several nodes."""
    table = subprocess.run([program("coordctl"), "check-build"], capture_output=True, text=True, check=True).stdout
    return "[X] UCX" in table


def clean_environment(**more):
    """This process's environment without COORDD_*, with `more`."""
    keep = {"COORDD_TEST_ID", "COORDD_BUILD_DIR"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COORDD_") or k in keep}
    environment.update({k: str(v) for k, v in more.items() if v is not None})
    return environment


class Process:
    """A child in a process group of its own; its output goes to a file."""

    def __init__(self, command, environment=None, folder=None, **options):
        self.command = command
        self.output = tempfile.NamedTemporaryFile("w+b", prefix="coordd-output-")
        self.child = subprocess.Popen(command, env=environment or clean_environment(), cwd=folder,
                                      stdin=options.pop("stdin", subprocess.DEVNULL),
                                      stdout=options.pop("stdout", self.output), stderr=self.output,
                                      start_new_session=True, **options)

    @property
    def pid(self):
        return self.child.pid

    def text(self):
        """What it has printed so far."""
        with open(self.output.name, "rb") as printed:
            return printed.read().decode(errors="replace")

    def wait(self, seconds=PATIENCE_S):
        """Its exit status; negative: the signal that ended it."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} is still running after {seconds} s:\n{self.text()}") from None

    def running(self):
        return self.child.poll() is None

    def signal(self, number):
        self.child.send_signal(number)

    def end(self):
        """Kills the group, if anything of it is left."""
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe:
                pipe.close()
        self.output.close()


class Coordd(Process):
    """A coordd on ports that it chose itself. `wrapper` comes before the command (ip netns exec ...)."""

    def __init__(self, *arguments, listen="127.0.0.1:0", http="127.0.0.1:0", wrapper=(), environment=None):
        self.runtime = tempfile.mkdtemp(prefix="coordd-run-")
        reading, writing = os.pipe()
        command = [*wrapper, program("coordd"), "--listen", listen, "--http", http, "--ready-fd", str(writing),
                   *arguments]
        if not any(argument.startswith("--store") for argument in arguments):
            command += ["--store", "memory"]  # a port that a test names would have state in the user's home
        environment = environment or clean_environment(XDG_RUNTIME_DIR=self.runtime)
        super().__init__(command, environment, pass_fds=[writing])
        os.close(writing)
        self.listen, self.http = self._ready(reading)

    def _ready(self, reading):
        """Waits until it says where it listens."""
        said = b""
        os.set_blocking(reading, False)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while not said.endswith(b"\n"):
                try:
                    more = os.read(reading, 4096)
                    if not more:
                        break
                    said += more
                except BlockingIOError:
                    if not wait_for(lambda: readable(reading), deadline - time.monotonic()):
                        raise AssertionError(f"coordd is not ready:\n{self.text()}") from None
        finally:
            os.close(reading)
        if not said:
            self.child.wait(PATIENCE_S)
            raise AssertionError(f"coordd ended with {self.child.returncode}:\n{self.text()}")
        ready = json.loads(said)
        return ready["listen"], ready.get("http", "")

    def get(self, path):
        """Body of a page of its HTTP port."""
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE_S) as answer:
            return answer.read().decode()

    def json(self, path):
        return json.loads(self.get(path))

    def metric(self, name, **labels):
        """Sum over the series of `name` that have `labels`; None without any."""
        return metric(self.get("/metrics"), name, **labels)

    def end(self):
        super().end()
        shutil.rmtree(self.runtime, ignore_errors=True)


def readable(descriptor):
    import select
    return bool(select.select([descriptor], [], [], 0)[0])


def metric(exposition, name, **labels):
    total, found = 0.0, False
    for line in exposition.splitlines():
        series, _, value = line.rpartition(" ")
        if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
            total, found = total + float(value), True
    return total if found else None


class ScriptedWorker(Process):
    """tests/integration/scripted_worker.cc: a member that does what it is told."""

    def __init__(self, coordinator, worker_id=None, wrapper=(), **variables):
        environment = clean_environment(COORDD_ADDR=coordinator, **variables)
        command = [*wrapper, program("scripted_worker")] + ([worker_id] if worker_id else [])
        super().__init__(command, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.place = {}

    def _read(self):
        for line in self.child.stdout:
            self._answers.put(line.rstrip("\n"))
        self._answers.put(None)

    def tell(self, command):
        self.child.stdin.write(command + "\n")
        self.child.stdin.flush()

    def answer(self, seconds=PATIENCE_S):
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"worker {self.pid} has not answered in {seconds} s\n{self.text()}") from None
        if line is None:
            raise AssertionError(f"worker {self.pid} ended with {self.child.wait()}\n{self.text()}")
        return line

    def ask(self, command, seconds=PATIENCE_S):
        self.tell(command)
        return self.answer(seconds)

    def joined(self):
        """Waits until it is a member; then `place` and `rank` say where."""
        line = self.answer()
        if not line.startswith("ok "):
            raise AssertionError(f"worker could not start: {line}\n{self.text()}")
        self.place = dict(field.split("=", 1) for field in line[3:].split())
        return self

    @property
    def rank(self):
        return int(self.place["rank"])


def wait_for(condition, seconds=PATIENCE_S):
    """Whether `condition` came true in time. Asks 50 times a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def processes_with(variable, value):
    """Process ids whose environment says so."""
    wanted = f"{variable}={value}".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if wanted in environment.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            pass
    return found


def shared_memory():
    """Names in /dev/shm, without those that Python's and torch's data loaders, tests/support/etcd.py and temp_directory.h make
    in tests that run at the same time."""
    others = ("sem.mp-", "sem.loky-", "torch_", "coordd-etcd-", "coordd-test-")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}


def cpu_seconds(pid):
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TestCase(unittest.TestCase):
    """Ends what it started, and knows what is left."""

    def setUp(self):
        self.test_id = uuid.uuid4().hex
        os.environ["COORDD_TEST_ID"] = self.test_id
        self.shared_memory_before = shared_memory()
        self.folder = tempfile.mkdtemp(prefix="coordd-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, process):
        self.addCleanup(process.end)
        return process

    def coordd(self, *arguments, **options):
        return self.start(Coordd(*arguments, **options))

    def run_command(self, *command, environment=None, seconds=PATIENCE_S):
        """Runs it to its end: (exit status, what it printed)."""
        process = self.start(Process(list(command), environment))
        status = process.wait(seconds)
        return status, process.text()

    def workers(self, coordd, count, job="test", min_workers=None, **variables):
        """`count` members of a job, in the order of their ranks."""
        started = [self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID=job, COORDD_MIN_WORKERS=min_workers or count,
                                             COORDD_MAX_WORKERS=count, COORDD_JOIN_TIMEOUT=PATIENCE_S, **variables))
                   for _ in range(count)]
        return sorted((worker.joined() for worker in started), key=lambda worker: worker.rank)

    def assert_nothing_left(self):
        """No process of this test is running, and no shared memory has stayed behind."""
        self.assertTrue(wait_for(lambda: not processes_with("COORDD_TEST_ID", self.test_id)
                                 or processes_with("COORDD_TEST_ID", self.test_id) == [os.getpid()], 10),
                        f"still running: {processes_with('COORDD_TEST_ID', self.test_id)}")
        # What other tests have there now goes away with them.
        wait_for(lambda: shared_memory() <= self.shared_memory_before, 10)
        self.assertEqual(shared_memory() - self.shared_memory_before, set())


def main():
    """unittest.main, but a program all of whose tests were skipped exits with SKIPPED."""
    result = unittest.main(exit=False, verbosity=2).result
    if result.testsRun and len(result.skipped) == result.testsRun:
        sys.exit(SKIPPED)
    sys.exit(0 if result.wasSuccessful() else 1)
