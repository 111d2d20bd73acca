"""Two coordds on one etcd: one leads, the other stands by and takes over."""

import re
import signal
import socket
import types
import unittest
import urllib.error

from tests.support import etcd, processes
from tests.support.processes import program, wait_for


# Whoever was a member and has died is soon given up.
IMPATIENT = ("--lease", "1s", "--heartbeat-interval", "300ms", "--resume-grace", "0s")


@unittest.skipUnless(etcd.installed(), "no etcd is installed here (Debian: etcd-server): coordd --standby is not tested")
class StandbyTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        # Short, since some wait for its end; not so short that a leader on a busy machine loses it.
        self.store = ("--store", f"etcd:{etcd.start(self).address}/lab7", "--store-lease", "3s")

    def standby(self, *arguments, listen="127.0.0.1:0", http="127.0.0.1:0"):
        process = self.start(processes.Process(
            [program("coordd"), "--listen", listen, "--http", http, "--connection-file", "",
             "--standby", *self.store, *arguments]))
        self.assertTrue(wait_for(lambda: "standing by" in process.text()), process.text())
        return process

    def taken_over(self, standby):
        """Waits until it leads; then it has `listen` and `http` as a Coordd has."""
        self.assertTrue(wait_for(lambda: " ready: " in standby.text()), standby.text())
        standby.listen, standby.http = re.search(r"ready: grpc (\S+), http http://(\S+)/", standby.text()).groups()
        standby.json = lambda path: processes.Coordd.json(standby, path)
        standby.get = lambda path: processes.Coordd.get(standby, path)
        return standby.json("/v1/jobs")

    def test_a_killed_leader_is_followed_by_its_standby(self):
        leader = self.coordd(*self.store)
        workers = self.workers(leader, 2, job="run7")
        before = leader.json("/v1/jobs")
        self.assertEqual((before["epoch"], before["jobs"][0]["generation"]), (1, 1))
        standby = self.standby(*IMPATIENT)
        self.assertIn(f"pid {leader.pid}", standby.text())
        self.assertNotIn(" ready: ", standby.text())
        leader.signal(signal.SIGKILL)
        leader.wait()
        for worker in workers:
            worker.end()
        after = self.taken_over(standby)
        self.assertEqual(after["epoch"], 2)
        self.assertEqual(after["cluster_id"], before["cluster_id"])
        self.assertEqual([job["name"] for job in after["jobs"]], ["run7"])
        # It waits for them, though not for long.
        self.assertIn("known from before: generation 1 had 2 members", standby.text())
        self.workers(standby, 2, job="run7")
        self.assertEqual(standby.json("/v1/jobs")["jobs"][0]["generation"], 2)

    def test_a_standby_lives_and_is_not_ready(self):
        leader = self.coordd(*self.store)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        standby = self.standby(http=address)
        standby.http = address
        self.assertEqual(processes.Coordd.get(standby, "/healthz"), "ok\n")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            processes.Coordd.get(standby, "/readyz")
        self.assertEqual(refused.exception.code, 503)
        self.assertRegex(refused.exception.read().decode(), rf"^stands by: .* pid {leader.pid} ")
        self.assertIn("\ncoordd_standby 1\n", processes.Coordd.get(standby, "/metrics"))
        self.assertEqual(leader.metric("coordd_standby"), 0)
        leader.signal(signal.SIGTERM)
        leader.wait()
        self.taken_over(standby)
        self.assertEqual(standby.http, address)
        self.assertEqual(standby.get("/readyz"), "ready\n")
        self.assertEqual(processes.Coordd.metric(standby, "coordd_standby"), 0)

    def test_one_without_a_port_for_its_pages_stands_by_all_the_same(self):
        leader = self.coordd(*self.store)
        standby = self.standby(http=leader.http)
        self.assertTrue(wait_for(lambda: "what stands by has no HTTP" in standby.text()), standby.text())
        leader.signal(signal.SIGTERM)
        leader.wait()
        self.taken_over(standby)
        self.assertEqual(standby.http, leader.http)

    def test_a_running_job_goes_on_under_the_standby(self):
        leader = self.coordd(*self.store)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        standby = self.standby(listen=address)
        both = types.SimpleNamespace(listen=f"{leader.listen},{address}")
        workers = self.workers(both, 3, min_workers=2, COORDD_ON_FAILURE="raise")
        leader.signal(signal.SIGKILL)
        leader.wait()
        for worker in workers:
            worker.tell("submit a float32 2 1")
        self.assertEqual([worker.answer() for worker in workers], ["ok"] * 3)
        self.assertEqual([worker.ask("wait a") for worker in workers], ["ok 3 3"] * 3)
        self.assertEqual(self.taken_over(standby)["jobs"][0]["generation"], 1)
        # The next generation finds its addresses in the store of the new one.
        workers[1].tell("die")
        rest = [workers[0], workers[2]]
        for worker in rest:
            self.assertIn("GENERATION_CHANGED", worker.ask("barrier"))
            worker.tell("next")
        self.assertEqual([worker.answer() for worker in rest], ["ok 2 0 2", "ok 2 1 2"])
        for worker in rest:
            worker.tell("barrier")
        self.assertEqual([worker.answer() for worker in rest], ["ok"] * 2)

    def test_a_leader_that_wakes_up_after_its_lease_ends_itself(self):
        leader = self.coordd(*self.store)
        standby = self.standby()
        leader.signal(signal.SIGSTOP)
        self.assertEqual(self.taken_over(standby)["epoch"], 2)
        leader.signal(signal.SIGCONT)
        self.assertEqual(leader.wait(), 4, leader.text())
        self.assertIn("does not lead", leader.text())

    def test_an_orderly_leader_hands_over(self):
        leader = self.coordd(*self.store)
        standby = self.standby()
        second = self.standby()
        leader.signal(signal.SIGTERM)
        self.assertEqual(leader.wait(), 0, leader.text())
        self.assertTrue(wait_for(lambda: sum(" ready: " in process.text() for process in (standby, second)) == 1))
        idle = second if " ready: " in standby.text() else standby
        idle.signal(signal.SIGTERM)
        self.assertEqual(idle.wait(), 0, idle.text())


if __name__ == "__main__":
    processes.main()
