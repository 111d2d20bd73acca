"""Which rank is late, while a job executes by schedule and tells coordd nothing of its tensors; and what a trace says."""

import json
import os

from tests.support import processes
from tests.support.processes import program


class LatenessTest(processes.TestCase):
    RANKS = 3

    def step(self, late=None):
        """An allreduce of all ranks; `late` submits it when the others wait for it, and then some."""
        workers = [worker for worker in self.members if worker.rank != late]
        for worker in workers:
            self.assertEqual(worker.ask("submit grad float32 10 1"), "ok")
        if late is not None:
            self.pause()
            self.assertEqual(self.members[late].ask("submit grad float32 10 1"), "ok")
        for worker in self.members:
            self.assertEqual(worker.ask("wait grad"), "ok 3 3")

    def pause(self):
        """Long enough to count as late. A question takes as long as it takes: only who is named is asserted."""
        self.state = self.coordd_of_test.json("/v1/jobs")["jobs"][0]
        processes.time.sleep(0.01)

    def steps_until(self, condition, late):
        for _ in range(2000):
            self.step(late)
            if condition(self.state):
                return
        self.fail(f"not within 2000 steps: {json.dumps(self.state)}")

    def start_job(self, **variables):
        self.coordd_of_test = self.coordd("--heartbeat-interval", "100ms")
        self.members = self.workers(self.coordd_of_test, self.RANKS, **variables)
        self.environment = processes.clean_environment(XDG_RUNTIME_DIR=self.coordd_of_test.runtime)
        self.state = None
        return self.coordd_of_test

    def steps_until_scheduled(self):
        while not self.state or self.state["schedules"] == 0:
            self.step()
            self.state = self.coordd_of_test.json("/v1/jobs")["jobs"][0]

    def test_the_late_rank_is_named_by_everything_that_an_operator_looks_at(self):
        timeline = os.path.join(self.folder, "{rank}.json")
        coordd = self.start_job(COORDD_METRICS="127.0.0.1:0", COORDD_TIMELINE=timeline, COORDD_TIMELINE_MARK_CYCLES=1)
        self.steps_until_scheduled()
        planned = self.state["batches_planned"]
        # Each of them: what was measured before it began to be late has to be forgotten.
        for late in (2, 0):
            self.steps_until(lambda state, late=late: state["slowest_rank"] == late, late)
            lags = [worker["arrival_lag_seconds"] for worker in self.state["workers"]]
            self.assertEqual(lags.index(max(lags)), late, lags)
        self.assertEqual(self.state["batches_planned"], planned, "all of it without asking")
        self.assertEqual(self.state["schedules"], 1)

        # It is late on, and everybody says so, in the end.
        def everywhere(_):
            status, text = self.run_command(program("coordctl"), "status", environment=self.environment)
            if status != 0 or "slowest: rank 0 " not in text:
                return False
            _, text = self.run_command(program("coordctl"), "status", "--json", environment=self.environment)
            said = json.loads(text)["jobs"][0]["slowest_rank"]
            return said == 0 and coordd.metric("coordd_slowest_rank") == 0 \
                and coordd.metric("coordd_arrival_lag_seconds_max") > 0 and self.own_lag(0) > self.own_lag(1)

        self.steps_until(everywhere, late=0)

        # Each rank has written its timeline all along.
        for member in self.members:
            member.tell("leave")
        for member in self.members:
            member.answer()
            with open(timeline.replace("{rank}", str(member.rank)), encoding="utf-8") as file:
                names = {event["name"] for event in json.load(file)}
            self.assertLessEqual({"grad", "NEGOTIATE_ALLREDUCE", "CYCLE_START", "timeline_ended"}, names)

    def trace(self, *arguments):
        """A running coordctl trace, whose file is self.timeline."""
        self.timeline = os.path.join(self.folder, "trace.json")
        return self.start(processes.Process([program("coordctl"), "trace", "test", "--json", "--output", self.timeline,
                                             *arguments], self.environment))

    def summary_of(self, trace):
        self.assertEqual(trace.wait(), 0, trace.text())
        return json.loads(trace.text())

    def test_a_trace_tells_where_steps_go_and_who_came_last(self):
        self.start_job()
        self.steps_until_scheduled()
        trace = self.trace("--steps", "8")
        while trace.running():
            self.step(late=1)
        summary = self.summary_of(trace)
        self.assertEqual((summary["steps"], summary["note"], summary["latest_rank"]), (8, "", 1), summary)
        self.assertEqual([rank["missing"] for rank in summary["ranks"]], [""] * self.RANKS)
        self.assertEqual({rank["batches"] for rank in summary["ranks"]}, {8}, "the same repetitions on all")
        for rank in summary["ranks"]:
            self.assertEqual(rank["collectives"], 8)
            self.assertGreaterEqual(rank["clock_error_us"], 0)
        self.assertGreater(summary["ranks"][0]["phase_ms"]["wait"], summary["ranks"][1]["phase_ms"]["wait"])
        with open(self.timeline, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        slices = [event for event in events if event["ph"] == "X"]
        self.assertEqual({event["pid"] for event in slices}, set(range(self.RANKS)))
        # On one clock: all of a collective's ends are behind all of its beginnings, but for the clocks' errors.
        error = 2 * max(rank["clock_error_us"] for rank in summary["ranks"])
        exchanges = [event for event in slices if event["name"] == "grad"]
        for batch in {event["args"]["batch"] for event in exchanges}:
            of_ranks = [event for event in exchanges if event["args"]["batch"] == batch]
            self.assertEqual(len(of_ranks), self.RANKS)
            self.assertLess(max(event["ts"] for event in of_ranks),
                            min(event["ts"] + event["dur"] for event in of_ranks) + error)

        # A rank that is lost meanwhile is missing, and the file is written.
        trace = self.trace("--seconds", "250")
        self.assertTrue(processes.wait_for(lambda: self.coordd_of_test.text().count("somebody traces") == 2))
        status, text = self.run_command(program("coordctl"), "trace", "test", environment=self.environment)
        self.assertNotEqual(status, 0)
        self.assertIn("is being traced already", text)
        self.members[2].tell("die")
        summary = self.summary_of(trace)
        self.assertIn("was lost", summary["ranks"][2]["missing"])
        self.assertIn("was lost", summary["note"])
        self.assertTrue(os.path.exists(self.timeline))
        status, text = self.run_command(program("coordctl"), "trace", "nobody", environment=self.environment)
        self.assertEqual(status, 4, text)
        self.assertIn("there is no job nobody", text)

    def own_lag(self, rank):
        """What the rank's own metrics say."""
        address = self.members[rank].place["metrics"]
        with processes.urllib.request.urlopen(f"http://{address}/metrics", timeout=processes.PATIENCE_S) as answer:
            return processes.metric(answer.read().decode(), "coordd_worker_arrival_lag_seconds")


if __name__ == "__main__":
    processes.main()
