"""Workers behind a relay of their node: whoever dies, coordd hears what it would have heard without one; and when the relay
itself dies, nobody is lost and no collective fails."""

import os
import signal
import subprocess
import urllib.request

from tests.support import processes
from tests.support.processes import wait_for
from tests.support.relays import RelayCase


# The first of them ends the relay that both have; each waits until another one takes workers.
KILLS_ITS_RELAY = """
import glob, os, signal, socket, sys, time
address = os.environ["COORDD_NODE_SESSION"]
mark = sys.argv[1] + ".killed"

def relays():
    found = {}
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = open(path).read().split("\\0")
        except OSError:
            continue
        if words[0].endswith("coordd-relay") and address in words:
            found[int(path.split("/")[2])] = words
    return set(found)

if os.environ["COORDD_RANK"] == "0":
    [first] = relays()
    open(mark + ".new", "w").write(str(first))
    os.kill(first, signal.SIGKILL)
    os.rename(mark + ".new", mark)
while not os.path.exists(mark):
    time.sleep(0.01)
first = int(open(mark).read())
while True:
    with socket.socket(socket.AF_UNIX) as one:
        if relays() - {first} and one.connect_ex(address.removeprefix("unix:")) == 0:
            break
    time.sleep(0.01)
print("the next one listens")
"""


class NodeSessionTest(RelayCase):
    def test_prometheus_has_one_target_for_the_workers_of_a_node(self):
        coordd = self.coordd(*self.store)
        self.relay(coordd, "--metrics", "127.0.0.1:0")
        workers = self.behind(coordd, 3, COORDD_METRICS="127.0.0.1:0")
        for worker in workers:
            self.assertEqual(worker.ask("submit a float32 100 1"), "ok")
        for worker in workers:
            self.assertEqual(worker.ask("wait a"), "ok 3 3")
        [target] = coordd.json("/v1/targets")
        self.assertEqual(target["labels"]["__metrics_path__"], "/node")
        self.assertRegex(target["labels"]["instance"], "^test/")
        self.assertNotIn("rank", target["labels"])

        def text():
            with urllib.request.urlopen(f"http://{target['targets'][0]}/node", timeout=processes.PATIENCE_S) as answer:
                return answer.read().decode()
        joined = text()
        self.assertEqual(processes.metric(joined, "coordd_worker_ranks"), 3, joined)
        self.assertEqual(processes.metric(joined, "coordd_worker_payload_bytes_total", kind="allreduce"), 3 * 400, joined)
        for rank in range(3):
            self.assertIsNotNone(processes.metric(joined, "coordd_worker_arrival_lag_seconds", rank=rank), joined)
        # Who has left is in it no more.
        self.assertEqual(workers[2].ask("leave"), "ok")
        self.assertTrue(wait_for(lambda: processes.metric(text(), "coordd_worker_ranks") == 2), text())

    def test_workers_have_targets_of_their_own_where_the_relay_serves_none(self):
        coordd = self.coordd(*self.store)
        self.relay(coordd)
        self.behind(coordd, 2, COORDD_METRICS="127.0.0.1:0")
        self.assertEqual([target["labels"]["instance"] for target in coordd.json("/v1/targets")], ["test/0", "test/1"])

    def job(self, coordd):
        return coordd.json("/v1/jobs")["jobs"][0]

    def sessions(self, coordd):
        return int(coordd.metric("coordd_node_sessions")), int(coordd.metric("coordd_sessions"))

    def training(self, workers, kind="unique"):
        """Steps of all of them; what ends these and checks that all have made the same."""
        path = os.path.join(self.folder, "stop")
        for worker in workers:
            worker.tell(f"steps {path} {kind}")

        def stop():
            open(path, "w", encoding="ascii").close()
            answers = {worker.answer() for worker in workers}
            self.assertEqual(len(answers), 1, answers)
            self.assertRegex(answers.pop(), r"^ok \d+$")
        return stop

    def test_a_job_behind_a_relay_is_a_job_like_others(self):
        coordd = self.coordd(*self.store)
        relay = self.relay(coordd)
        workers = self.behind(coordd, 4)
        self.assertEqual(self.sessions(coordd), (1, 4))
        for kind in ("", "unique"):
            stop = self.training(workers, kind)
            self.assertTrue(wait_for(lambda: self.job(coordd)["phase"] == "running"))
            stop()
            os.unlink(os.path.join(self.folder, "stop"))
        for worker in workers:
            worker.tell("leave")
        self.assertEqual([worker.answer() for worker in workers], ["ok"] * 4)
        self.assertTrue(wait_for(lambda: self.sessions(coordd)[1] == 0))
        relay.signal(signal.SIGTERM)
        self.assertEqual(relay.wait(), 0, relay.text())

    def test_a_relay_that_is_killed_is_nobodys_loss(self):
        coordd = self.coordd(*self.store)
        relay = self.relay(coordd)
        workers = self.behind(coordd, 5)
        stop = self.training(workers)
        relay.signal(signal.SIGKILL)
        relay.wait()
        self.assertTrue(wait_for(lambda: "generation 1 goes on: all 5 ranks" in coordd.text()), coordd.text())
        self.assertEqual(self.sessions(coordd), (0, 5))
        stop()
        self.assertEqual((self.job(coordd)["generation"], self.job(coordd)["joined"]), (1, 5))
        self.assertNotIn("was lost: its connection", coordd.text())

    def test_the_loss_of_a_node_is_one_line_of_the_log(self):
        coordd = self.coordd("--store", "memory")
        relay = self.relay(coordd)
        self.behind(coordd, 5)
        relay.signal(signal.SIGKILL)  # a coordd without a disk does not take its workers back
        self.assertTrue(wait_for(lambda: "lost 5 workers on " in coordd.text()), coordd.text())
        self.assertRegex(coordd.text(), r"job \S+: lost 5 workers on \S+, ranks 0-4: its connection closed without a goodbye "
                                        r"\(the relay of \S+ was lost")
        self.assertNotRegex(coordd.text(), r"job \S+: rank \d+ \(")

    def test_coordd_may_die_behind_a_relay(self):
        coordd = self.coordd(*self.store)
        self.relay(coordd)
        workers = self.behind(coordd, 4)
        stop = self.training(workers)
        for _ in range(3):
            coordd.signal(signal.SIGKILL)
            coordd.wait()
            coordd = self.coordd(*self.store, listen=coordd.listen)
            self.assertTrue(wait_for(lambda: "generation 1 goes on: all 4" in coordd.text()), coordd.text())
        stop()
        self.assertEqual(self.job(coordd)["generation"], 1)

    def test_a_worker_that_dies_behind_a_relay_is_the_one_that_is_blamed(self):
        coordd = self.coordd(*self.store)
        self.relay(coordd)
        workers = self.behind(coordd, 4)
        workers[2].signal(signal.SIGKILL)
        for worker in (workers[0], workers[1], workers[3]):
            answer = worker.ask("barrier")
            self.assertIn("ABORTED", answer)
            self.assertIn("rank 2 (host", answer)
            self.assertIn(f"pid {workers[2].pid}) was lost", answer)

    def test_without_a_relay_there_workers_speak_to_coordd_themselves(self):
        coordd = self.coordd(*self.store)
        workers = self.behind(coordd, 2)
        self.assertEqual(self.sessions(coordd), (0, 2))
        for worker in workers:
            worker.tell("barrier")
        self.assertEqual([worker.answer() for worker in workers], ["ok"] * 2)

    def test_coordrun_starts_one_where_it_is_told_to(self):
        code = "import os; print('through', os.environ.get('COORDD_NODE_SESSION', 'nothing'))"
        for mode, said in (("on", "through unix:"), ("auto", "through nothing"), ("off", "through nothing")):
            status, text = self.run_command(processes.program("coordrun"), "-np", "2", "--node-sessions", mode,
                                            "--", "python3", "-c", code)
            self.assertEqual((status, text.count(said)), (0, 2), text)
        status, text = self.run_command(processes.program("coordrun"), "-np", "2", "--node-sessions", "on",
                                        "--", processes.program("coordd-worker"), "selftest")
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()

    def test_where_temporary_files_are_below_a_long_name(self):
        # A socket's path has 107 bytes.
        deep = os.path.join(self.folder, *["x" * 60] * 3)
        os.makedirs(deep)
        program = os.path.join(self.folder, "worker.py")
        with open(program, "w", encoding="ascii") as text:
            text.write(KILLS_ITS_RELAY)
        environment = {**processes.clean_environment(), "TMPDIR": deep}
        environment.pop("XDG_RUNTIME_DIR", None)
        coordrun = (processes.program("coordrun"), "-np", "2", "--node-sessions", "on", "--")
        status, text = self.run_command(*coordrun, processes.program("coordd-worker"), "selftest", environment=environment)
        self.assertEqual(status, 0, text)
        self.assertNotIn("relay", text)
        # There is one, and the next one is found, too.
        status, text = self.run_command(*coordrun, "python3", program, self.socket, environment=environment)
        self.assertEqual((status, text.count("the next one listens")), (0, 2), text)
        self.assertEqual(os.listdir(deep), [])
        self.assert_nothing_left()

    def test_coordrun_starts_one_again_that_has_ended(self):
        program = os.path.join(self.folder, "worker.py")
        with open(program, "w", encoding="ascii") as text:
            text.write(KILLS_ITS_RELAY)
        status, text = self.run_command(processes.program("coordrun"), "-np", "2", "--node-sessions", "on",
                                        "--", "python3", program, self.socket)
        self.assertEqual((status, text.count("the next one listens")), (0, 2), text)
        self.assertIn("the relay of this node was killed by SIGKILL; its workers go on without it, and it is started again in 1s",
                      text)
        self.assert_nothing_left()

    def test_what_a_relay_needs_is_said_in_a_sentence(self):
        for arguments, said in ((("--coordinator", "x:1", "--listen", "tcp:1"), 'expected unix: and a path'),
                                (("--coordinator", "x", "--listen", "unix:/tmp/x"), "x")):
            done = subprocess.run([processes.program("coordd-relay"), *arguments], capture_output=True, text=True,
                                  check=False, env=processes.clean_environment())
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    processes.main()
