"""Four nodes in two racks (COORDD_NODE_ID, COORDD_TOPOLOGY): allreduces go inside the racks, then between them."""

import signal
import time

from tests.support import processes
from tests.support.processes import PATIENCE_S, ScriptedWorker, program

# What rank 0 says before its first allreduce between nodes.
DIMENSIONS = "allreduces between the 4 nodes go by dimensions, 2 x 2,"
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
                for worker in workers:  # so that they know each other
                    self.assertEqual(worker.ask("submit small float32 30000 1"), "ok")
                    worker.tell("wait small")
                for worker in workers:
                    self.assertEqual(worker.answer(), "ok 4 4")
                victim = workers.pop(2)
                for worker in workers if instant_s is None else [*workers, victim]:
                    self.assertEqual(worker.ask("submit big float32 20000000 1"), "ok")
                    worker.tell("wait big")
                time.sleep(instant_s or 0.0)
                victim.signal(signal.SIGKILL)
                for worker in workers:
                    text = worker.answer()
                    # Whoever had finished has the right result; everybody else an error that names the culprit.
                    self.assertTrue(text == "ok 4 4" or (text.startswith("ABORTED ") and "rank 2" in text), text)
                    self.assertEqual(worker.ask("leave"), "ok")
                    worker.tell("exit")
                    worker.wait()
        daemon.end()
        self.assert_nothing_left()


if __name__ == "__main__":
    processes.main()
