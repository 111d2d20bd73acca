"""coordd that is killed and started again on its state: what it knows, and which state it refuses."""

import os
import shutil
import signal
import subprocess

from tests.support import processes
from tests.support.processes import program, wait_for

# A tmpfs of our own, in a mount namespace of our own.
FULL_DISK = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
             'mount -t tmpfs -o size=256k,mode=700 none "$0" && exec "$@"']


# Whoever was a member and has died is soon given up.
IMPATIENT = ("--lease", "1s", "--heartbeat-interval", "300ms", "--resume-grace", "0s")


def may_mount():
    command = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class StateTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.state = os.path.join(self.folder, "state")
        self.store = ("--store", f"sqlite:{self.state}")

    def killed(self, coordd):
        coordd.signal(signal.SIGKILL)
        coordd.wait()

    def test_a_killed_coordd_is_followed_by_one_that_knows(self):
        coordd = self.coordd(*self.store)
        token = os.path.join(self.folder, "token")
        with open(token, "w", encoding="ascii") as file:
            file.write("the job's secret\n")
        os.chmod(token, 0o600)
        workers = self.workers(coordd, 2, job="run7", COORDD_TOKEN_FILE=token)
        self.assertEqual(coordd.json("/v1/jobs")["epoch"], 1)
        self.killed(coordd)
        for worker in workers:
            worker.end()
        with open(os.path.join(self.state, "state.db"), "rb") as file:
            stored = file.read()
        for name in os.listdir(self.state):
            with open(os.path.join(self.state, name), "rb") as file:
                stored += file.read()
        self.assertIn(b"run7", stored)
        self.assertNotIn(b"secret", stored)

        again = self.coordd(*self.store)
        state = again.json("/v1/jobs")
        self.assertEqual(state["epoch"], 2)
        self.assertEqual(state["store"], f"sqlite:{self.state}")
        self.assertEqual([(job["name"], job["phase"], job["max_workers"]) for job in state["jobs"]],
                         [("run7", "gathering", 2)])
        self.assertEqual(again.metric("coordd_epoch"), 2)
        stranger = self.start(processes.ScriptedWorker(again.listen, COORDD_JOB_ID="run7", COORDD_JOIN_TIMEOUT=60))
        self.assertIn("token", stranger.answer())
        environment = processes.clean_environment(XDG_RUNTIME_DIR=again.runtime)
        self.assertIn("epoch 2", self.run_command(program("coordctl"), "status", environment=environment)[1])
        self.killed(again)
        impatient = self.coordd(*self.store, *IMPATIENT)
        self.assertEqual(self.workers(impatient, 2, job="run7", COORDD_TOKEN_FILE=token)[0].place["generation"], "2")
        self.assertEqual(impatient.json("/v1/jobs")["jobs"][0]["generation"], 2)

    def test_numbers_grow_however_often_it_is_killed(self):
        seen = []
        for _ in range(6):
            coordd = self.coordd(*self.store, *IMPATIENT)
            workers = self.workers(coordd, 1)
            state = coordd.json("/v1/jobs")
            seen.append((state["epoch"], state["jobs"][0]["generation"]))
            self.assertEqual(workers[0].place["generation"], str(seen[-1][1]))
            self.killed(coordd)
            for worker in workers:
                worker.end()
        self.assertEqual([epoch for epoch, _ in seen], list(range(1, 7)))
        generations = [generation for _, generation in seen]
        self.assertEqual(sorted(set(generations)), generations)

    def test_two_on_one_directory_and_a_copy_of_it_are_refused(self):
        first = self.coordd(*self.store)
        arguments = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--connection-file", "")
        status, text = self.run_command(program("coordd"), *arguments, *self.store)
        self.assertEqual(status, 4, text)
        self.assertIn(f"pid {first.pid}", text)
        self.assertIn("to go on with its state, as in an upgrade, wait until it has ended", text)
        self.workers(first, 1)
        self.killed(first)
        copy = os.path.join(self.folder, "copy")
        shutil.copytree(self.state, copy)
        status, text = self.run_command(program("coordd"), *arguments, "--store", f"sqlite:{copy}")
        self.assertEqual(status, 5, text)
        self.assertIn("is a copy", text)
        self.assertIn("--adopt-state", text)
        adopted = self.coordd("--store", f"sqlite:{copy}", "--adopt-state", *IMPATIENT)
        self.assertGreater(adopted.json("/v1/jobs")["epoch"], 1_000_000)
        self.workers(adopted, 1)
        self.assertGreater(adopted.json("/v1/jobs")["jobs"][0]["generation"], 1_000_000)

    def test_a_place_that_cannot_be_used_is_told_from_one_that_cannot_be_had_now(self):
        """A service is started again for ever after the one, and not after the other."""
        arguments = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--connection-file", "")
        file = os.path.join(self.folder, "a-file")
        with open(file, "w", encoding="ascii"):
            pass
        public = os.path.join(self.folder, "public")
        os.mkdir(public)
        os.chmod(public, 0o755)
        for place, says in ((file, "is not a directory"), (f"{file}/below", "cannot be made: Not a directory"),
                            ("/proc/nowhere/state", "cannot be made: No such file or directory"), (public, "has mode 0755")):
            status, text = self.run_command(program("coordd"), *arguments, "--store", f"sqlite:{place}")
            self.assertEqual(status, 5, text)
            self.assertIn(says, text)
        status, text = self.run_command(program("coordd"), *arguments, "--store", "etcd:127.0.0.1:1")
        self.assertEqual(status, 4, text)

    def test_a_full_disk_stops_new_generations_only(self):
        if not may_mount():
            self.skipTest("this user may not mount a file system: no small disk to fill")
        os.mkdir(self.state)
        coordd = self.coordd(*self.store, wrapper=(*FULL_DISK, self.state))
        running = self.workers(coordd, 2, job="running")
        disk = f"/proc/{coordd.pid}/root{self.state}"
        with open(os.path.join(disk, "ballast"), "wb", buffering=0) as ballast:
            while True:
                try:
                    if not ballast.write(b"x" * 1024):
                        break
                except OSError:
                    break
        # Pages of the log that are there already may be written again: jobs come until one does not fit.
        waiting = []
        while not wait_for(lambda: coordd.metric("coordd_state_writable") == 0, 0.1):
            self.assertLess(len(waiting), 40)
            waiting.append(self.start(processes.ScriptedWorker(
                coordd.listen, COORDD_JOB_ID=f"job{len(waiting)}", COORDD_MAX_WORKERS=1, COORDD_JOIN_TIMEOUT=60)))
            wait_for(lambda: coordd.metric("coordd_state_commits_total") > len(waiting), 20)
        self.assertIn("disk", coordd.json("/v1/jobs")["store_error"])
        late = self.start(processes.ScriptedWorker(coordd.listen, COORDD_JOB_ID="late", COORDD_MAX_WORKERS=1, COORDD_JOIN_TIMEOUT=3))
        self.assertRegex(late.answer(), "job late has not started in time: generation .* could not be stored: .*full")
        for worker in running:
            worker.ask("submit a float32 3 2")
        for worker in running:
            self.assertEqual(worker.ask("wait a"), "ok 4 4")
        os.unlink(os.path.join(disk, "ballast"))
        self.assertTrue(waiting[-1].joined())
        self.assertTrue(wait_for(lambda: coordd.metric("coordd_state_writable") == 1))
        self.assertEqual(coordd.json("/v1/jobs")["store_error"], "")


if __name__ == "__main__":
    processes.main()
