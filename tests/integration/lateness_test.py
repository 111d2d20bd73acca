"""Which rank is late, while a job executes by schedule and tells coordd nothing of its tensors."""

import json

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

    def test_the_late_rank_is_named_by_everything_that_an_operator_looks_at(self):
        coordd = self.coordd_of_test = self.coordd("--heartbeat-interval", "100ms")
        self.members = self.workers(coordd, self.RANKS, COORDD_METRICS="127.0.0.1:0")
        self.state = None
        while not self.state or self.state["schedules"] == 0:
            self.step()
            self.state = coordd.json("/v1/jobs")["jobs"][0]
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
            status, text = self.run_command(program("coordctl"), "status", environment=environment)
            if status != 0 or "slowest: rank 0 " not in text:
                return False
            _, text = self.run_command(program("coordctl"), "status", "--json", environment=environment)
            said = json.loads(text)["jobs"][0]["slowest_rank"]
            return said == 0 and coordd.metric("coordd_slowest_rank") == 0 \
                and coordd.metric("coordd_arrival_lag_seconds_max") > 0 and self.own_lag(0) > self.own_lag(1)

        environment = processes.clean_environment(XDG_RUNTIME_DIR=coordd.runtime)
        self.steps_until(everywhere, late=0)

    def own_lag(self, rank):
        """What the rank's own metrics say."""
        address = self.members[rank].place["metrics"]
        with processes.urllib.request.urlopen(f"http://{address}/metrics", timeout=processes.PATIENCE_S) as answer:
            return processes.metric(answer.read().decode(), "coordd_worker_arrival_lag_seconds")


if __name__ == "__main__":
    processes.main()
