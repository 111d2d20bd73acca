"""A tensor that some ranks have submitted and others have not: everybody who looks can see it."""

import json
import os
import re

from tests.support import processes
from tests.support.processes import ScriptedWorker, program, wait_for


class StallsTest(processes.TestCase):
    def test_log_metrics_and_status_name_the_tensor_and_the_missing_ranks(self):
        coordd = self.coordd("--stall-warning", "1s")
        workers = self.workers(coordd, 4)
        for rank in (0, 3):
            self.assertEqual(workers[rank].ask("submit layer3.weight float32 10 1"), "ok")
        self.assertTrue(wait_for(lambda: (coordd.metric("coordd_stalled_tensors") or 0) == 1), coordd.get("/metrics"))
        self.assertTrue(wait_for(lambda: "layer3.weight" in coordd.text()), coordd.text())
        line = next(line for line in coordd.text().splitlines() if "layer3.weight" in line)
        self.assertRegex(line, r"1.*2", "the missing ranks")
        status, text = self.run_command(program("coordctl"), "status",
                                        environment=processes.clean_environment(XDG_RUNTIME_DIR=coordd.runtime))
        self.assertEqual(status, 0, text)
        self.assertIn("layer3.weight", text)
        self.assertIn("layer3.weight", coordd.get("/v1/jobs"))
        # It ends as soon as the others come.
        for rank in (1, 2):
            self.assertEqual(workers[rank].ask("submit layer3.weight float32 10 1"), "ok")
        for worker in workers:
            self.assertEqual(worker.ask("wait layer3.weight"), "ok 4 4")
        self.assertTrue(wait_for(lambda: coordd.metric("coordd_stalled_tensors") == 0))

    def look_at_calls_of_a_comm(self, coordd, workers):
        def activity(rank):
            return json.loads(coordd.get("/v1/jobs"))["jobs"][0]["workers"][rank].get("activity", "")

        for command in ("comm torch", "call torch"):
            for worker in workers:
                worker.tell(command)
            for worker in workers:
                self.assertRegex(worker.answer(), "ok( 6)?$")
        for worker in workers[:2]:
            worker.tell("call torch")
        name = "comm torch: allreduce number 2"
        self.assertTrue(wait_for(lambda: coordd.metric("coordd_stalled_tensors") == 1), coordd.get("/metrics"))
        self.assertTrue(wait_for(lambda: activity(1) == f"waiting in {name} (rank 2 missing)"), coordd.get("/v1/jobs"))
        self.assertTrue(wait_for(lambda: re.search(rf"{name} waiting for .*: in rank.*missing .*2", coordd.text())), coordd.text())
        self.assertEqual(coordd.metric("coordd_stall_missing_rank"), 2)
        workers[2].tell("call torch")
        for worker in workers:
            self.assertEqual(worker.answer(), "ok 6")
        self.assertTrue(wait_for(lambda: coordd.metric("coordd_stalled_tensors") == 0))
        self.assertIn("stalled call of a comm goes on", coordd.text())
        # Of messages each side says whom it waits for.
        for rank, command, other in ((1, "receive", 2), (2, "send", 1)):
            workers[rank].tell(f"{command} torch {other}")
            text = rf"comm torch: {command} of tag 0 {'from' if command == 'receive' else 'to'} rank {other}"
            self.assertTrue(wait_for(lambda: re.search(rf"waiting in {text} \(rank {other} missing\)", activity(rank))), activity(rank))
            workers[other].tell(f"{'send' if command == 'receive' else 'receive'} torch {rank}")
            for one in (rank, other):
                self.assertEqual(workers[one].answer(), "ok")

    def test_a_call_of_a_comm_that_a_rank_does_not_make_is_named(self):
        coordd = self.coordd("--stall-warning", "3s")
        self.look_at_calls_of_a_comm(coordd, self.workers(coordd, 3))

    def test_a_call_of_a_comm_between_nodes_is_named_too(self):
        coordd = self.coordd("--stall-warning", "3s")
        workers = [self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="test", COORDD_MIN_WORKERS=3, COORDD_MAX_WORKERS=3,
                                             COORDD_NODE_ID=f"node{node}")) for node in range(3)]
        self.look_at_calls_of_a_comm(coordd, sorted((one.joined() for one in workers), key=lambda one: one.rank))

    def test_a_trace_of_a_job_that_hangs_says_what_it_waits_for(self):
        coordd = self.coordd("--stall-warning", "200ms")
        environment = processes.clean_environment(XDG_RUNTIME_DIR=coordd.runtime)
        workers = self.workers(coordd, 3)
        for worker in workers[:2]:
            self.assertEqual(worker.ask("submit grad float32 10 1"), "ok")
        self.assertTrue(wait_for(lambda: coordd.metric("coordd_stalled_tensors") == 1), coordd.text())
        status, text = self.run_command(program("coordctl"), "trace", "test", "--seconds", "0.5", "--output",
                                        os.path.join(self.folder, "trace.json"), environment=environment)
        self.assertEqual(status, 0, text)
        self.assertIn("coordctl: recording 0.5 s of job test...", text)
        self.assertRegex(text, r"3 ranks: nothing was executed in .* s; stalled for .*: grad; ranks in: 0, 1; ranks missing: 2")
        self.assertNotIn("came last in", text)
        self.assertEqual(workers[2].ask("submit grad float32 10 1"), "ok")
        for worker in workers:
            self.assertEqual(worker.ask("wait grad"), "ok 3 3")

    def test_of_several_coordds_the_one_with_the_job_is_asked(self):
        environment = processes.clean_environment(XDG_RUNTIME_DIR=self.folder)
        coordds = [self.coordd(environment=environment) for _ in range(2)]
        for coordd, job in zip(coordds, ("train", "eval")):
            self.workers(coordd, 1, job=job)
        status, text = self.run_command(program("coordctl"), "status", environment=environment)
        self.assertEqual(status, 3, text)
        for coordd, job in zip(coordds, ("train", "eval")):
            self.assertRegex(text, rf"{coordd.listen} \(pid \d+, job {job}\)")
        for job in ("train", "eval"):
            status, text = self.run_command(program("coordctl"), "status", job, environment=environment)
            self.assertEqual(status, 0, text)
            self.assertIn(f"job {job}", text)
        status, text = self.run_command(program("coordctl"), "status", "other", environment=environment)
        self.assertEqual(status, 3, text)
        self.assertIn("none has a job other", text)

    def test_after_stall_abort_every_rank_gets_an_error_and_the_job_goes_on(self):
        coordd = self.coordd("--stall-warning", "500ms", "--stall-abort", "1s")
        workers = self.workers(coordd, 3)
        for worker in workers[:2]:
            self.assertEqual(worker.ask("submit grad float32 10 1"), "ok")
        for worker in workers[:2]:
            text = worker.ask("wait grad")
            self.assertTrue(text.startswith("DEADLINE_EXCEEDED "), text)
            self.assertIn("grad", text)
            self.assertRegex(text, r"rank.* 2\b")
        # The one that was late learns the same.
        self.assertEqual(workers[2].ask("submit grad float32 10 1"), "ok")
        self.assertTrue(workers[2].ask("wait grad").startswith("DEADLINE_EXCEEDED "))

        def goes_on():
            """On a machine that is busy the ranks themselves may be too far apart, and the next try is as good."""
            for worker in workers:
                self.assertEqual(worker.ask("submit next float32 10 1"), "ok")
            return [worker.ask("wait next") for worker in workers] == ["ok 3 3"] * 3

        self.assertTrue(wait_for(goes_on))

    def test_a_deadline_of_the_caller_reaches_the_others(self):
        coordd = self.coordd()
        workers = self.workers(coordd, 2)
        self.assertEqual(workers[0].ask("submit grad float32 10 1 sum 1"), "ok")
        text = workers[0].ask("wait grad")
        self.assertTrue(text.startswith("DEADLINE_EXCEEDED "), text)
        self.assertIn("grad", text)
        self.assertEqual(workers[1].ask("submit grad float32 10 1"), "ok")
        text = workers[1].ask("wait grad")
        self.assertTrue(text.startswith(("CANCELLED ", "DEADLINE_EXCEEDED ")), text)


if __name__ == "__main__":
    processes.main()
