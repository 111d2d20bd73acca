"""Four nodes in two racks (COORDD_NODE_ID, COORDD_TOPOLOGY): collectives go inside the racks, then between them, or the other way."""

import json
import os
import re

from tests.support import processes
from tests.support.processes import PATIENCE_S, ScriptedWorker, program
from tests.support.scripted_jobs import allreduce, kill_in_an_allreduce, leave

# What rank 0 says before its first collective between nodes that may go so.
DIMENSIONS = "allreduces, allgathers and reducescatters between the 4 nodes go by dimensions, 2 x 2,"
PLACES = {"rank": "export COORDD_NODE_ID=node$COORDD_LOCAL_RANK COORDD_TOPOLOGY=rack$((COORDD_LOCAL_RANK / 2)); ",
          "two ranks": "export COORDD_NODE_ID=node$((COORDD_LOCAL_RANK / 2)) COORDD_TOPOLOGY=aisle/rack$((COORDD_LOCAL_RANK / 4)); "}


class RacksTest(processes.TestCase):
    def selftest(self, ranks, places, **variables):
        """Every operation, dtype and op. -> what was said"""
        status, text = self.run_command(program("coordrun"), "-np", str(ranks), "--", "/bin/sh", "-c",
                                        f'{PLACES[places]}exec {program("coordd-worker")} selftest',
                                        environment=processes.clean_environment(COORDD_LOG_LEVEL="info", **variables), seconds=170)
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()
        return text

    def test_every_operation_dtype_and_op_checked(self):
        self.assertIn(DIMENSIONS, self.selftest(4, "rank", COORDD_TRANSPORT="tcp", COORDD_CHECK_RESULTS="1e-12"))

    def test_every_operation_dtype_and_op_encrypted(self):
        self.assertIn(DIMENSIONS, self.selftest(4, "rank", COORDD_TRANSPORT="tcp", COORDD_DATA_ENCRYPTION="on"))

    def test_every_operation_dtype_and_op_over_ucx(self):
        if not processes.has_ucx():
            self.skipTest("no UCX here")
        self.assertIn(DIMENSIONS, self.selftest(4, "rank", COORDD_TRANSPORT="ucx"))

    def test_every_operation_dtype_and_op_on_nodes_of_two_ranks(self):
        self.assertIn(DIMENSIONS, self.selftest(8, "two ranks"))

    def test_flat_keeps_them_off(self):
        self.assertNotIn("go by dimensions", self.selftest(4, "rank", COORDD_HOST_ALGORITHM="flat"))

    def test_the_timeline_names_the_algorithm_of_allgathers_and_reducescatters(self):
        for algorithm, ranks, places, expected in (("auto", 4, "rank", "dimensions"), ("auto", 8, "two ranks", "hierarchical_by_dimensions"),
                                                   ("flat", 4, "rank", None)):
            path = os.path.join(self.folder, f"timeline-{algorithm}-{ranks}.json")
            self.selftest(ranks, places, COORDD_TRANSPORT="auto", COORDD_TIMELINE=path, COORDD_HOST_ALGORITHM=algorithm)
            with open(path, encoding="utf-8") as file:
                batches = [event["args"] for event in json.load(file) if "algorithm" in event.get("args", {})]
            # Of all ranks: a process set may be of nodes that lie in no grid.
            said = {kind: {batch["algorithm"] for batch in batches if batch["kind"] == kind and batch["process_set"] == 0}
                    for kind in ("ALLGATHER", "REDUCESCATTER")}
            if expected is None:
                self.assertEqual(said, {"ALLGATHER": {"ring"}, "REDUCESCATTER": {"pairwise"}})
            else:
                for kind, names in said.items():
                    self.assertIn(expected, names, kind)
                    self.assertFalse(names & {"ring", "pairwise"}, (kind, names))

    def test_the_timeline_names_the_algorithm_and_results_are_those_of_flat(self):
        daemon = self.coordd()
        for number, (algorithm, names) in enumerate((("auto", ["recursive_doubling", "dimensions", "slices_by_dimensions"]),
                                                     ("flat", ["recursive_doubling", "halving_doubling", "ring"]))):
            path = os.path.join(self.folder, f"timeline-{algorithm}.json")
            workers = self.workers_in_racks(daemon, f"named-{number}", COORDD_TRANSPORT="tcp", COORDD_TIMELINE=path,
                                            COORDD_HOST_ALGORITHM=algorithm)
            for count in (1000, 30000, 1000000):
                for worker in workers:
                    self.assertEqual(worker.ask(f"submit t{count} float32 {count} {worker.rank + 1}"), "ok")
                    worker.tell(f"wait t{count}")
                for worker in workers:
                    self.assertEqual(worker.answer(), "ok 10 10")
            leave(self, workers)
            with open(path, encoding="utf-8") as file:
                said = re.findall(r'"algorithm":"(\w+)"', file.read())
            self.assertEqual(said, names)
        daemon.end()
        self.assert_nothing_left()

    def workers_in_racks(self, daemon, job, **variables):
        started = [self.start(ScriptedWorker(daemon.listen, COORDD_JOB_ID=job, COORDD_MIN_WORKERS=4, COORDD_MAX_WORKERS=4,
                                             COORDD_JOIN_TIMEOUT=PATIENCE_S, COORDD_NODE_ID=f"node{number}",
                                             COORDD_TOPOLOGY=f"rack{number // 2}", **variables))
                   for number in range(4)]
        return sorted((worker.joined() for worker in started), key=lambda worker: worker.rank)

    def test_a_rank_that_is_killed_at_any_instant_hangs_nobody_and_leaves_nothing(self):
        daemon = self.coordd()
        ways = [{"COORDD_TRANSPORT": "tcp"}, {"COORDD_TRANSPORT": "tcp", "COORDD_DATA_ENCRYPTION": "on"}]
        if processes.has_ucx():
            ways.append({"COORDD_TRANSPORT": "ucx"})
        for way, variables in enumerate(ways):
            for number, instant_s in enumerate((None, 0.003, 0.03)):
                workers = self.workers_in_racks(daemon, f"kill-{way}-{number}", **variables)
                allreduce(self, workers, "small", 30000, "ok 4 4")  # so that they know each other
                kill_in_an_allreduce(self, workers, 2, instant_s)
        daemon.end()
        self.assert_nothing_left()


if __name__ == "__main__":
    processes.main()
