"""What another user of the machine learns of a run, and what he can put in its way: nothing."""

import json
import os
import signal
import subprocess
import unittest

from tests.support import processes
from tests.support.processes import Process, clean_environment, program, wait_for

NOBODY = 65534

# Prints what could be read of a process, and of the folders and files that are given; an object of JSON.
LOOK = """
import json, os, socket, sys
seen = []
def attempt(what, call):
    try:
        call()
        seen.append(what)
    except OSError:
        pass
def read(path):
    with open(path, "rb") as file:
        file.read(1)
def connect(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
asked = json.loads(sys.argv[1])
for pid in asked["pids"]:
    for file in ("environ", "mem", "maps", "stack", "auxv", "io"):
        attempt(f"/proc/{pid}/{file}", lambda: read(f"/proc/{pid}/{file}"))
    attempt(f"/proc/{pid}/fd", lambda: os.listdir(f"/proc/{pid}/fd"))
    attempt(f"/proc/{pid}/cwd", lambda: os.readlink(f"/proc/{pid}/cwd"))
for path in asked["paths"]:
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else read(path))
    attempt("socket " + path, lambda: connect(path))
    attempt("beside " + path, lambda: os.mkdir(os.path.join(os.path.dirname(path), "mine")))
print(json.dumps(seen))
"""

# Prints which of these processes it could trace; without stopping them.
TRACE = """
import ctypes, json, sys
PTRACE_SEIZE = 0x4206
libc, done = ctypes.CDLL(None, use_errno=True), []
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
for pid in json.loads(sys.argv[1]):
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0:
        done.append(pid)
print(json.dumps(done))
"""

# Connects to a Unix socket of each name, a NUL in front of abstract ones, and says a byte: which of them have said something to it.
CONNECT = """
import json, socket, sys
heard, reached = [], 0
for name, kind in json.loads(sys.argv[1]):
    with socket.socket(socket.AF_UNIX, kind) as one:
        one.settimeout(5)
        try:
            one.connect(name)
            reached += 1
            one.send(b"x")
            if one.recv(100):
                heard.append(name)
        except OSError:
            pass
print(json.dumps([reached, heard]))
"""


def as_nobody(*command, **options):
    return subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True,
                          timeout=processes.PATIENCE_S, check=False, **options)


def where_it_is(name):
    """Of a socket that the kernel knows by the name at which it was bound: a relay's is moved to its path after that."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if os.path.exists(name) else name.rpartition(".")[0]


def everything_below(folder):
    return [os.path.join(root, name) for root, folders, files in os.walk(folder) for name in [*folders, *files]]


@unittest.skipUnless(os.geteuid() == 0, "only root can be two users")
class NeighbourTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        os.chmod(self.folder, 0o755)
        self.shared = os.path.join(self.folder, "tmp")  # as /tmp is
        os.mkdir(self.shared)
        os.chmod(self.shared, 0o1777)

    def start_run(self):
        command = [program("coordrun"), "-np", "2", "--node-sessions", "on", "--", program("coordd-worker"), "allreduce", "--elements",
                   "1000", "--iterations", "0"]
        run = self.start(Process(command, clean_environment(TMPDIR=self.shared)))
        self.assertTrue(wait_for(lambda: self.folders() and self.names().count("coordd-worker") == 2), run.text())
        return run

    def pids(self):
        return [pid for pid in processes.processes_with("COORDD_TEST_ID", self.test_id) if pid != os.getpid()]

    def folders(self):
        return [os.path.join(self.shared, name) for name in os.listdir(self.shared)]

    def names(self):
        found = []
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/comm", encoding="ascii") as file:
                    found.append(file.read().strip())
            except OSError:
                pass  # it has ended
        return found

    def test_another_user_sees_nothing_of_a_run(self):
        run = self.start_run()
        paths = [path for folder in self.folders() for path in [folder, *everything_below(folder)]]
        self.assertTrue(any(path.endswith(".key") for path in paths), paths)
        asked = json.dumps({"pids": self.pids(), "paths": paths})
        own = subprocess.run(["/usr/bin/python3", "-c", LOOK, asked], capture_output=True, text=True, check=True)
        self.assertGreater(len(json.loads(own.stdout)), 10, "what can be seen is seen by the same program")
        self.assertTrue(run.running(), run.text())
        others = as_nobody("/usr/bin/python3", "-c", LOOK, asked)
        self.assertEqual(json.loads(others.stdout), [], others.stderr)

    def test_no_secret_of_a_run_is_in_what_everybody_reads(self):
        self.start_run()
        secrets = []
        for folder in self.folders():
            for path in everything_below(folder):
                if os.path.isfile(path) and "token" in os.path.basename(path):
                    with open(path, encoding="ascii") as file:
                        secrets.append(file.read().strip())
        self.assertTrue(secrets and all(len(secret) >= 32 for secret in secrets), "a run has a token")
        for pid in self.pids():
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace")
            for secret in secrets:
                self.assertNotIn(secret, words)

    def test_another_user_traces_no_process_of_a_run(self):
        run = self.start_run()
        asked = json.dumps(self.pids())
        own = subprocess.run(["/usr/bin/python3", "-c", TRACE, asked], capture_output=True, text=True, check=True)
        self.assertGreater(len(json.loads(own.stdout)), 2, "what can be traced is traced by the same program")
        self.assertTrue(run.running(), run.text())
        others = as_nobody("/usr/bin/python3", "-c", TRACE, asked)
        self.assertEqual(json.loads(others.stdout), [], others.stderr)

    def mapped(self):
        """What the processes of a run have mapped to share it."""
        mapped = set()
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps:
                    mapped |= {line.split(maxsplit=5)[5].strip() for line in maps if " rw-s " in line}
            except OSError:
                pass  # it has ended
        return mapped

    def test_memory_of_a_run_has_no_name_that_another_user_could_open(self):
        self.start_run()
        self.assertTrue(wait_for(self.mapped), "ranks of a node share memory")
        mapped = self.mapped()
        named = [path for path in mapped if os.path.exists(path)]
        others = as_nobody("/usr/bin/python3", "-c", LOOK, json.dumps({"pids": [], "paths": named}))
        self.assertEqual([seen for seen in json.loads(others.stdout) if not seen.startswith("beside ")], [], others.stderr)

    def listening(self):
        """Unix sockets at which processes of a run listen: (name, kind)."""
        own = set()
        for pid in self.pids():
            for name in os.listdir(f"/proc/{pid}/fd"):
                try:
                    own.add(os.readlink(f"/proc/{pid}/fd/{name}"))
                except OSError:
                    pass
        with open("/proc/net/unix", encoding="ascii") as table:
            rows = [line.split() for line in table.readlines()[1:]]
        return [(where_it_is(row[7]), int(row[4], 16)) for row in rows
                if len(row) > 7 and row[3] == "00010000" and f"socket:[{row[6]}]" in own]

    def test_no_socket_of_a_run_says_anything_to_another_user(self):
        run = self.start_run()
        self.assertTrue(wait_for(self.listening), "ranks and relays listen")
        asked = json.dumps(self.listening())
        others = as_nobody("/usr/bin/python3", "-c", CONNECT, asked)
        self.assertEqual(json.loads(others.stdout)[1], [], others.stderr)
        own = subprocess.run(["/usr/bin/python3", "-c", CONNECT, asked], capture_output=True, text=True, check=True)
        self.assertGreater(json.loads(own.stdout)[0], 0, "the same program reaches what is there")
        self.assertTrue(run.running(), run.text())

    def test_state_and_cores_are_of_who_runs_coordd(self):
        state, core = os.path.join(self.folder, "state"), os.path.join(self.shared, "core")
        os.mkdir(core, 0o755)
        coordd = self.coordd("--store", f"sqlite:{state}",
                             wrapper=("/bin/sh", "-c", 'ulimit -c unlimited; umask 0; cd "$0"; exec "$@"', core))
        self.workers(coordd, 1)
        paths = [state, *everything_below(state)]
        self.assertGreater(len(paths), 2)
        others = as_nobody("/usr/bin/python3", "-c", LOOK, json.dumps({"pids": [coordd.pid], "paths": paths}))
        self.assertEqual([seen for seen in json.loads(others.stdout) if not seen == f"beside {state}"], [], others.stderr)
        coordd.signal(signal.SIGABRT)
        self.assertEqual(coordd.wait(), -signal.SIGABRT)
        # There is none where the machine gives cores to a program of its own.
        cores = everything_below(core)
        others = as_nobody("/usr/bin/python3", "-c", LOOK, json.dumps({"pids": [], "paths": cores}))
        self.assertEqual(json.loads(others.stdout), [], others.stderr)

    def test_a_folder_that_another_user_has_made_is_not_written_to(self):
        squatted = os.path.join(self.shared, "coordd")
        as_nobody("mkdir", "-m", "777", squatted)
        coordd = self.start(Process([program("coordd"), "--listen", "127.0.0.1:0", "--http", "off", "--store", "memory"],
                                    clean_environment(XDG_RUNTIME_DIR=self.shared)))
        self.assertTrue(wait_for(lambda: "ready" in coordd.text()), coordd.text())
        self.assertIn(f"no connection file: directory {squatted} belongs to user {NOBODY}", coordd.text())
        self.assertEqual(os.listdir(squatted), [])
        # Nor does coordctl believe what lies there.
        with open(os.path.join(squatted, "1.json"), "w", encoding="ascii") as file:
            file.write('{"listen": "127.0.0.1:1", "pid": 1}')
        os.chown(file.name, NOBODY, NOBODY)
        status, text = self.run_command(program("coordctl"), "status", environment=clean_environment(XDG_RUNTIME_DIR=self.shared))
        self.assertNotEqual(status, 0, text)
        self.assertNotIn("127.0.0.1:1", text)

    def test_state_that_another_user_could_have_written_is_not_used(self):
        outside = os.path.join(self.folder, "outside")
        for what, make in (("of another user", lambda d: (os.mkdir(d, 0o700), os.chown(d, NOBODY, NOBODY))),
                           ("that everybody may write", lambda d: (os.mkdir(d), os.chmod(d, 0o777))),
                           ("with a link as lock", lambda d: (os.mkdir(d, 0o700), os.symlink(outside, os.path.join(d, "lock"))))):
            with self.subTest(what):
                state = os.path.join(self.folder, what.replace(" ", "-"))
                make(state)
                status, text = self.run_command(program("coordd"), "--listen", "127.0.0.1:0", "--http", "off", "--connection-file", "",
                                                "--store", "sqlite:" + state)
                self.assertEqual(status, 5, text)
                self.assertIn(state, text)
                self.assertFalse(os.path.exists(outside))


if __name__ == "__main__":
    processes.main()
