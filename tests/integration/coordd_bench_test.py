"""coordd-bench measures what it says: every mode runs with a few ranks, and what can be counted is right."""

import json
import os
import unittest

from tests.support import etcd, processes
from tests.support.processes import program


class CoorddBenchTest(processes.TestCase):
    def bench(self, *arguments):
        """The JSON object on its last line."""
        status, text = self.run_command(program("coordd-bench"), *arguments, "--json")
        self.assertEqual(status, 0, text)
        return json.loads(text.splitlines()[-1])

    def test_a_job_joins_with_one_call_per_rank_or_node(self):
        for sessions, calls in (("off", 1), ("on", 0.25)):  # of each rank; of each node of four
            found = self.bench("control", "--rendezvous", "--nodes", "4", "--ranks-per-node", "4", "--node-sessions", sessions)
            self.assertEqual((found["ranks"], found["channels"], found["calls_per_rank"]), (16, 4, calls))
            self.assertGreater(found["seconds_after_last_join"], 0)
            self.assertGreater(found["coordd_cpu_seconds"], 0)

    def test_rounds_are_counted_beside_bare_ones(self):
        found = self.bench("control", "--cached", "--nodes", "2,4", "--ranks-per-node", "4", "--channels", "2",
                           "--rounds", "10", "--tensors", "8")
        self.assertEqual([size["ranks"] for size in found["sizes"]], [8, 16])
        for size in found["sizes"]:
            self.assertEqual(size["messages_per_step"], size["sessions"])
            self.assertEqual(size["batches_per_step"], 1)
            for field in ("round_p50_us", "round_p99_us", "coordd_cpu_us_per_round", "bare_round_p50_us",
                          "bare_cpu_us_per_round"):
                self.assertGreater(size[field], 0, field)
        self.assertIn("exponent", found)

    def test_a_new_tensor_is_negotiated(self):
        found = self.bench("control", "--negotiate", "--ranks", "2", "--rounds", "20")
        self.assertEqual((found["ranks"], found["tensors"]), (2, 1))
        self.assertGreater(found["round_p50_us"], 0)

    def test_an_idle_job_stays(self):
        found = self.bench("control", "--idle", "--ranks", "16", "--seconds", "0.2")
        self.assertGreater(found["rss_bytes_per_session"], 0)
        self.assertGreaterEqual(found["seconds"], 0.15)

    def test_the_state_machine_alone(self):
        found = self.bench("control", "--state", "--ranks", "16,64", "--rounds", "2")
        self.assertEqual([size["ranks"] for size in found["sizes"]], [16, 64])

    def test_real_processes_come_through_a_barrier(self):
        found = self.bench("rendezvous", "--ranks", "2", "--rounds", "1")
        self.assertLessEqual(found["main_ms"], found["joined_ms"])
        self.assertLessEqual(found["joined_ms"], found["first_barrier_ms"])
        self.assert_nothing_left()

    def test_collectives_of_real_processes(self):
        for path, transport, buffers, offset in (("bare", "mapped", "registered", "0"), ("bare", "shm", "private", "16"),
                                                 ("scheduled", "mapped", "private", "4"), ("negotiated", "shm", "private", "0")):
            found = self.bench("collectives", "--ranks", "2", "--max", "4096", "--seconds", "0.001", "--path", path,
                               "--transport", transport, "--buffers", buffers, "--offset", offset)
            # 4 to 4096 bytes; blocks of one float from 16 bytes on.
            cells = {(row["op"], row["in_place"]): 0 for row in found["rows"]}
            for row in found["rows"]:
                cells[row["op"], row["in_place"]] += 1
                self.assertGreater(row["p50_us"], 0)
            blocks = 5 if path == "bare" else 0
            expected = {("allreduce", 0): 6, ("allreduce", 1): 6, ("allgather", 0): 5, ("allgather", 1): blocks,
                        ("broadcast", 0): 6, ("reduce_scatter", 0): 5, ("reduce_scatter", 1): blocks,
                        ("alltoall", 0): 5, ("barrier", 0): 1, ("reduce", 0): 6, ("reduce", 1): 6, ("gather", 0): 5}
            self.assertEqual(cells, {cell: count for cell, count in expected.items() if count > 0})
        self.assert_nothing_left()

    def test_a_killed_worker_costs_no_step_and_is_named(self):
        found = self.bench("recovery", "--workers", "3", "--kills", "2", "--elements", "1000")
        self.assertEqual((found["workers"], found["kills"], found["generations"]), (3, 2, 2))
        for field in ("steps_lost", "hung", "wrong_culprit", "wrong_results", "ended_badly"):
            self.assertEqual(found[field], 0, (field, found))
        # Each survivor's program has heard of it; of what else was under way, too.
        self.assertGreaterEqual(found["failed_collectives"], 4)
        self.assertGreater(found["p50_ms"], 0)
        self.assertGreaterEqual(found["worst_ms"], found["p50_ms"])
        self.assert_nothing_left()

    def test_a_killed_worker_is_nothing_to_programs_that_go_on(self):
        for victim in ("worker", "newcomer"):
            found = self.bench("recovery", "--workers", "3", "--kills", "2", "--elements", "1000", "--victim", victim,
                               "--on-failure", "continue")
            self.assertEqual((found["on_failure"], found["generations"]), ("continue", 2))
            for field in ("steps_lost", "hung", "failed_collectives", "wrong_results", "ended_badly"):
                self.assertEqual(found[field], 0, (field, found))
            self.assertGreater(found["p50_ms"], 0)
        self.assert_nothing_left()

    def test_a_killed_coordd_costs_nothing(self):
        found = self.bench("recovery", "--workers", "2", "--kills", "3", "--victim", "coordd", "--interval", "0.2",
                           "--elements", "1000")
        self.assertEqual((found["victim"], found["generations"]), ("coordd", 1))
        for field in ("steps_lost", "hung", "failed_collectives", "wrong_results", "ended_badly"):
            self.assertEqual(found[field], 0, (field, found))
        self.assertGreater(found["ready_worst_ms"], 0)
        self.assert_nothing_left()

    @unittest.skipUnless(etcd.installed(), "no etcd is installed here (Debian: etcd-server): its fail-over is not tested")
    def test_a_killed_coordd_is_followed_by_the_one_that_stands_by(self):
        found = self.bench("recovery", "--workers", "2", "--kills", "2", "--victim", "coordd", "--interval", "0.2", "--elements", "1000",
                           "--etcd", etcd.start(self).address, "--store-lease", "1")
        self.assertEqual((found["store"], found["store_lease_ms"], found["generations"]), ("etcd", 1000, 1))
        for field in ("steps_lost", "hung", "failed_collectives", "wrong_results", "ended_badly"):
            self.assertEqual(found[field], 0, (field, found))
        self.assertGreater(found["ready_worst_ms"], 0)

    def test_what_recovery_costs_is_measured_in_pairs(self):
        status, text = self.run_command(os.path.join(processes.ROOT, "bench/recovery/cost"), "--build", processes.BUILD, "--pairs", "2",
                                        "--bytes", "4,4096", "--seconds", "0.01", "--json")
        self.assertEqual(status, 0, text)
        found = json.loads(text.splitlines()[-1])
        self.assertEqual([row["bytes"] for row in found["rows"]], [4, 4096])
        for row in found["rows"]:
            self.assertGreater(row["without_us"], 0)

    def test_a_stopped_worker_is_gone_and_does_nothing_any_more(self):
        found = self.bench("recovery", "--workers", "3", "--kills", "1", "--victim", "stopped", "--lease", "1", "--elements", "1000")
        self.assertEqual((found["victim"], found["lease_ms"], found["generations"]), ("stopped", 1000, 2))
        for field in ("steps_lost", "hung", "wrong_culprit", "wrong_results", "ended_badly", "acted_again"):
            self.assertEqual(found[field], 0, (field, found))
        self.assertGreater(found["p50_ms"], 0)
        self.assert_nothing_left()

    def test_a_newcomer_fails_nothing(self):
        found = self.bench("recovery", "--workers", "2", "--kills", "2", "--victim", "newcomer", "--elements", "1000")
        self.assertEqual((found["victim"], found["generations"]), ("newcomer", 2))
        for field in ("steps_lost", "hung", "failed_collectives", "wrong_results", "ended_badly"):
            self.assertEqual(found[field], 0, (field, found))
        self.assertGreater(found["p50_ms"], 0)
        self.assert_nothing_left()

    def test_nothing_happens_beside_spinning_processes(self):
        found = self.bench("recovery", "--workers", "2", "--victim", "nobody", "--seconds", "0.5", "--spinning", "2", "--elements", "1000")
        self.assertEqual((found["victim"], found["spinning"], found["generations"]), ("nobody", 2, 1))
        for field in ("steps_lost", "hung", "failed_collectives", "wrong_results", "ended_badly"):
            self.assertEqual(found[field], 0, (field, found))
        self.assertGreater(found["steps"], 20)
        self.assert_nothing_left()

    def test_what_a_killed_coordd_has_announced_is_stored(self):
        found = self.bench("recovery", "--victim", "coordd-writing", "--kills", "8", "--planted", "2")
        self.assertEqual((found["missing"], found["planted"], found["planted_found"]), (0, 2, 2))
        self.assertGreater(found["announced"], 0)
        self.assert_nothing_left()

    def test_what_cannot_be_measured_is_refused(self):
        for arguments in ([], ["control"], ["control", "--idle", "--cached"], ["control", "--state"],
                          ["collectives", "--ops", "sum"], ["collectives", "--offset", "4096"], ["collectives", "--offset", "6"], ["collectives", "--buffers", "registered", "--on-failure", "continue"],
                          ["recovery", "--workers", "1"], ["recovery", "--victim", "rank 1"]):
            status, text = self.run_command(program("coordd-bench"), *arguments)
            self.assertNotEqual(status, 0, text)


if __name__ == "__main__":
    processes.main()
