"""Jobs with tensors in GPU memory: four processes, over the stand-ins of CUDA's driver and NCCL, which check the rules.

With COORDD_TEST_GPU=1 (tests/gpu/run) the same over the real libraries, as far as faults need no stand-in. Ranks then share
the GPUs that there are: NCCL takes processes with different NCCL_HOSTIDs for hosts, and uses sockets between them.
COORDD_TEST_KILLS: how often a rank is killed (1).
"""

import os
import re
import signal
import unittest

from tests.support import processes
from tests.support.gpu_jobs import (
    GpuCase, KILLS, NCCL, NCCL_VERSION, ON_GPU, RANKS, gpu_in_node, needs_stand_in, two_per_node)
from tests.support.processes import program


class GpuTest(GpuCase):
    @unittest.skipUnless(ON_GPU, "the stand-ins run four ranks below")
    def test_every_collective_of_one_two_and_four_ranks(self):
        for count in (1, 2, 4):
            with self.subTest(ranks=count):
                for text in self.finish(self.ranks([[-1, "collectives", 3]] * count)):
                    self.assertIn("ok 3 steps", text)

    @needs_stand_in
    def test_every_collective_of_four_ranks_under_coordrun(self):
        status, text = self.run_command(program("coordrun"), "-np", str(RANKS), "--", program("gpu_ranks"), "-1",
                                        "collectives", "3", environment=self.environment(FAKE_NCCL="call_polls=2"))
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("ok 3 steps"), RANKS, text)
        for calls, rule in re.findall(r"nccl calls (\d+) broken rule \[(.*)\]", text):
            self.assertGreater(int(calls), 50, text)
            self.assertEqual(rule, "", text)
        told = text.count("travel through host memory: float8 is reduced by NCCL 2.24 and later")
        self.assertEqual(text.count("host memory"), told, text)
        self.assertEqual(told, RANKS if NCCL < 22400 else 0, text)
        self.assertEqual(len(re.findall("nccl calls", text)), RANKS, text)
        self.assert_nothing_left()

    @needs_stand_in
    def test_memory_is_registered_by_all_ranks_or_by_none(self):
        for without in ({}, {"COORDD_GPU_REGISTER": "0"}):
            ranks = self.ranks([[-1, "collectives", 2]] * RANKS, own=lambda rank: without if rank == 1 else {})  # noqa: B023
            for rank, text in enumerate(self.finish(ranks)):
                self.assertIn("ok 2 steps", text)
                self.assert_nccl_calls(text)
                self.assertEqual("not all ranks register memory" in text, bool(without), text)
              
                if rank == 1 or not without:
                    self.assertEqual("nccl registered 0" in text, bool(without), text)

    @needs_stand_in
    def test_averages_are_nccls_own_unless_a_switch_may_reduce_them(self):
        scalings = []
        for multicast in (0, 1):  # of one rank's GPU; all have to take the same way
            ranks = self.ranks([[-1, "collectives", 2]] * RANKS,
                               own=lambda rank: {"FAKE_CUDA": "multicast=1"} if multicast and rank == 1 else {})  # noqa: B023
            for text in self.finish(ranks):
                self.assertIn("ok 2 steps", text)
                self.assert_nccl_calls(text)
                multiplied = int(re.search(r"nccl multiplied (\d+)", text)[1])
                self.assertEqual(multiplied >= 4, not multicast, text)  # two of three averages, in each of two steps
                self.assertEqual("nccl name [coordd/" in text, NCCL >= 22703, text)
            scalings.append(int(re.search(r"cuda scalings (\d+)", text)[1]))  # kernels of the last rank
        self.assertGreater(scalings[1], scalings[0])  # by three in a step, and what is fused by chance

    @needs_stand_in
    def test_what_repeats_is_executed_without_asking_and_what_comes_between_is_right(self):
        steps = 160
        daemon = self.coordd()
        ranks = [self.start(processes.Process(
            [program("gpu_ranks"), "-1", "rhythms", str(steps)],
            self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=RANKS, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank)))
            for rank in range(RANKS)]
        for text in self.finish(ranks):
            self.assertIn(f"ok {steps} steps", text)
            self.assert_nccl_calls(text)  # of which one order on all ranks is the rule that matters here
        began = int(daemon.metric("coordd_events_total", kind="schedule_began", job_name="default"))
        broken = int(daemon.metric("coordd_events_total", kind="schedule_broken", job_name="default"))
        self.assertGreaterEqual(began, 2)
        self.assertGreaterEqual(broken, 1)  # by what was large
        # Of three gradients in each step most have cost no message.
        self.assertLess(int(daemon.metric("coordd_tensors_planned_total", job_name="default")), 3 * steps // 2)

    @needs_stand_in
    def test_where_a_rank_has_no_nccl_all_go_through_host_memory(self):
        # The tensors that the others submit before they know are staged after they have been planned.
        daemon = self.coordd()
        ranks = []
        for rank in range(RANKS):
            variables = {"COORDD_NCCL_LIBRARY": "/no/such/libnccl.so"} if rank == 2 else {}
            ranks.append(self.start(processes.Process(
                [program("gpu_ranks"), "-1", "collectives", "2"],
                self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=RANKS, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                                 **variables))))
        for rank, text in enumerate(self.finish(ranks)):
            self.assertIn("ok 2 steps", text)
            self.assertEqual(text.count("travel through host memory"), 1, text)
            self.assertIn("/no/such/libnccl.so", text)
            if rank != 2:
                self.assertIn("rank 2 (host ", text)

    @needs_stand_in
    def test_float8_goes_through_host_memory_where_a_rank_cannot_reduce_it(self):
        daemon = self.coordd()
        ranks = []
        for rank in range(RANKS):
            variables = {"FAKE_CUDA": "capability=8"} if rank == 1 else {}
            ranks.append(self.start(processes.Process(
                [program("gpu_ranks"), "-1", "collectives", "2"],
                self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=RANKS, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                                 **variables))))
        for text in self.finish(ranks):
            self.assertIn("ok 2 steps", text)
            self.assertEqual(text.count("float8 is reduced by NCCL 2.24 and later"), 1, text)
            self.assert_nccl_calls(text)

    @needs_stand_in
    def test_fusion_buffers_are_symmetric_windows_where_all_ranks_have_them(self):
        for without in ({}, {"FAKE_NCCL": "memory_error=1"}):
            daemon = self.coordd()
            ranks = [self.start(processes.Process(
                [program("gpu_ranks"), "-1", "collectives", "2"],
                self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=RANKS, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                                 COORDD_GPU_REGISTER="symmetric", **(without if rank == 1 else {})))) for rank in range(RANKS)]
            for rank, text in enumerate(self.finish(ranks)):
                self.assertIn("ok 2 steps", text)
                self.assert_nccl_calls(text)
                # The others have sets of their own.
                if rank == 1 or not without:
                    self.assertEqual("windows 0" not in text, not without and NCCL >= 22703, text)

    @needs_stand_in
    def test_communicators_are_direct_unless_a_rank_wants_none(self):
        for without in ({}, {"COORDD_GPU_DIRECT": "0"}):
            ranks = self.ranks([[-1, "collectives", 2]] * RANKS, own=lambda rank: without if rank == 1 else {})  # noqa: B023
            for rank, text in enumerate(self.finish(ranks)):
                self.assertIn("ok 2 steps", text)
                self.assert_nccl_calls(text)
                # The others have sets of their own.
                if rank == 1 or not without:
                    self.assertEqual("nccl split 0" not in text, not without and NCCL >= 22304, text)

    @needs_stand_in
    def test_communicators_are_configured_as_the_user_wishes(self):
        for told, direct in (("maxCTAs=16", 1), ("maxCTAs=16", 0)):
            for text in self.finish(self.ranks([[-1, "collectives", 2]] * RANKS, COORDD_NCCL_CONFIG=told, COORDD_GPU_DIRECT=direct,
                                               FAKE_NCCL="config_max_ctas=16")):
                self.assertIn("ok 2 steps", text)
                self.assert_nccl_calls(text)

    def test_a_killed_rank_is_named_and_nobody_hangs(self):
        ranks = self.ranks([[-1, "train", 30 if rank == 2 else -1] for rank in range(RANKS)])
        ranks[2].wait()
        for text in self.finish(ranks[:2] + ranks[3:]):
            self.assert_names_the_lost(text, "ABORTED", 2, ranks[2])
            self.assertIn("left", text)

    def test_survivors_of_a_killed_rank_form_anew_and_read_no_wrong_result(self):
        self.survive(RANKS, lost=2)

    def test_the_survivor_of_two_goes_on_alone_and_reads_no_wrong_result(self):
        """On one GPU it has that to itself then: with more of them the times below are of time slices."""
        self.survive(2, lost=1)

    def survive(self, count, lost):
        formed_ms, told_ms, left_ms, ended_ms = [], [], [], []
        for turn in range(KILLS):
            ranks = self.ranks([[-1, "train", 30 + turn if rank == lost else -1] for rank in range(count)],
                               COORDD_ON_FAILURE="raise", COORDD_MIN_WORKERS=count - 1, COORDD_MAX_WORKERS=count)
            ranks[lost].wait()
            for text in self.finish(ranks[:lost] + ranks[lost + 1:]):  # a hang fails here, and so does a wrong result
                self.assert_names_the_lost(text, "GENERATION_CHANGED", lost, ranks[lost])
                formed, told = re.search(
                    rf"the first result of {count - 1} ranks came (\d+) ms after the step began that was told of it after (\d+) ms", text).groups()
                formed_ms.append(int(formed))
                told_ms.append(int(told))
                # Without ncclCommRevoke (before 2.28.7) what ran ends by the abort, when the program has been told.
                ended = re.findall(r"let go of \d+ communicators within (\d+) ms", text)
                ended_ms += map(int, ended or re.findall(r"aborted \d+ communicators within (\d+) ms", text))
                left_ms += map(int, re.findall(r"kernels have left the device within (\d+) ms", text))
        self.assertTrue(ended_ms)
        if ON_GPU:
            self.print_bars(f"{KILLS} losses of one of {count} ranks", formed_ms, told_ms, left_ms, ended_ms)

    def print_bars(self, losses, formed_ms, told_ms, left_ms, ended_ms):
        def worst(times):
            return f"the worst of {len(times)}: {max(times)} ms, the median {sorted(times)[len(times) // 2]} ms"
        met = "met" if max(told_ms) <= 500 else "MISSED"
        print(f"\n# {losses}, from the begin of the step in which it was lost until the program was told, {worst(told_ms)} (bar: at most 500) {met}")
        print(f"# {losses}, until the first result of the others, {worst(formed_ms)}")
        if left_ms:
            print(f"# {losses}, from the moment it was known until NCCL's kernels had left the device, {worst(left_ms)}")
        print(f"# {losses}, until NCCL's own threads had let go, {worst(ended_ms)}")
        print(f"# {losses}, hung processes: 0, wrong results read: 0 (bar: none) met", flush=True)

    def test_collectives_in_graphs_are_right_at_each_launch(self):
        for count in (1, 2, 4) if ON_GPU else (1, RANKS):
            with self.subTest(ranks=count):
                launches = 20 if ON_GPU and count > 2 else 100  # several share one GPU in turns
                for text in self.finish(self.ranks([[-1, "graphs", launches]] * count)):
                    self.assertIn(f"ok {launches} launches", text)
                    if not ON_GPU:
                        self.assert_nccl_calls(text)

    def test_a_rank_killed_between_launches_is_named_and_the_others_capture_again(self):
        ranks = self.ranks([[-1, "train-graphs", 30 if rank == 2 else -1] for rank in range(RANKS)],
                           COORDD_ON_FAILURE="raise", COORDD_MIN_WORKERS=RANKS - 1, COORDD_MAX_WORKERS=RANKS)
        ranks[2].wait()
        for text in self.finish(ranks[:2] + ranks[3:]):  # a hang fails here, and so does a wrong result
            self.assertRegex(text, "(?m)^ended GENERATION_CHANGED .*rank 2")
            self.assertIn(f"ok captured again by {RANKS - 1} ranks", text)
            if not ON_GPU:
                self.assert_nccl_calls(text)

    def test_a_program_that_only_waits_for_its_device_gets_an_error_of_cuda(self):
        for in_a_graph in (0, 1):
            with self.subTest(in_a_graph=in_a_graph):
                ranks = self.ranks([[-1, "stuck", in_a_graph]] * 2, COORDD_GPU_GATE_LIMIT=2)
                ranks[1].wait()
                self.assertEqual(ranks[0].wait(), 3, ranks[0].text())
                self.assertIn("ok stuck no longer: cuEventQuery", ranks[0].text())

    def test_ranks_that_have_captured_other_calls_are_told_which(self):
        for text in self.finish(self.ranks([[-1, "different-graphs"]] * 3)):
            self.assertIn("ended INVALID_ARGUMENT captured call 3 is on rank 1 allreduce sum of 1 tensor: float32 999, "
                          "on rank 0 allreduce sum of 1 tensor: float32 1000", text)

    def drained(self, **variables):
        """What three ranks have printed that went on without the fourth, which an operator has sent away."""
        daemon = self.coordd("--settling-window", "10m")
        ranks = [self.start(processes.Process(
            [program("gpu_ranks"), "-1", "drain"],
            self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=RANKS, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                             COORDD_ON_FAILURE="raise", COORDD_MIN_WORKERS=1, COORDD_MAX_WORKERS=RANKS, **variables)))
            for rank in range(RANKS)]
        for rank in ranks:
            self.assertTrue(processes.wait_for(lambda text=rank.text: " of " in text()), rank.text())
        status, text = self.run_command(program("coordctl"), "drain", "1", "--job", "default", "--grace", "600", "--coordinator", daemon.listen)
        self.assertEqual(status, 0, text)
        texts = self.finish(ranks)
        left = [text for text in texts if "ok with" not in text]
        self.assertEqual(len(left), 1, texts)
        self.assert_nccl_calls(left[0])
        return [text for text in texts if "ok with" in text]

    @needs_stand_in
    def test_those_who_stay_shrink_their_communicator_when_a_rank_is_drained(self):
        shrinks = NCCL >= 22703
        for text in self.drained():
            self.assertIn(f"ok with {RANKS - 1} ranks", text)
            told = rf"the communicator of process set 0 was shrunk from {RANKS} to {RANKS - 1} ranks in \d+ ms"
            self.assertEqual(re.search(told, text) is not None, shrinks, text)
            self.assertIn(f"nccl shrunk {int(shrinks)}\n", text)
            self.assert_nccl_calls(text)

    @needs_stand_in
    def test_where_nccl_fails_to_shrink_it_those_who_stay_make_a_new_one(self):
        for text in self.drained(FAKE_NCCL="shrink_fails=6"):
            self.assertIn(f"ok with {RANKS - 1} ranks", text)
            self.assertEqual("is not shrunk but made anew: " in text, NCCL >= 22703, text)
            self.assertIn("nccl shrunk 0\n", text)
            self.assert_nccl_calls(text)

    @needs_stand_in
    def test_where_nccl_is_too_old_to_shrink_those_who_stay_make_a_new_one(self):
        old = os.path.join(processes.BUILD, "tests", "libfake_nccl_old.so")
        for text in self.drained(COORDD_NCCL_LIBRARY=old):
            self.assertIn(f"ok with {RANKS - 1} ranks", text)
            self.assertNotIn("shrunk from", text)
            self.assert_nccl_calls(text)

    def assert_names_the_lost(self, text, status, rank, lost):
        ended = re.search("^ended (.*)$", text, re.MULTILINE)
        self.assertIsNotNone(ended, text)
        self.assertIn(status, ended.group(1))
        self.assertIn(f"rank {rank}", ended.group(1))
        self.assertIn(f"pid {lost.pid}", ended.group(1))
        if not ON_GPU:
            self.assert_nccl_calls(text)

    def test_nodes_of_two_reduce_by_nccl_within_and_by_the_host_between_them(self):
        self.needs_two_gpus()
        for text in self.finish(self.ranks([[gpu_in_node(rank), "collectives", 3] for rank in range(RANKS)],
                                           own=two_per_node, COORDD_GPU_ALGORITHM="hierarchical",
                                           **({} if ON_GPU else {"FAKE_NCCL": "call_polls=2"}))):
            self.assertIn("ok 3 steps", text)
            self.assertNotIn("are flat", text)
            if not ON_GPU:
                self.assert_nccl_calls(text)

    def test_a_rank_killed_in_a_hierarchy_is_named_and_nobody_hangs(self):
        self.needs_two_gpus()
        ranks = self.ranks([[gpu_in_node(rank), "train", 30 if rank == 2 else -1] for rank in range(RANKS)],
                           own=two_per_node, COORDD_GPU_ALGORITHM="hierarchical")
        ranks[2].wait()
        for text in self.finish(ranks[:2] + ranks[3:]):
            self.assertRegex(text, "(?m)^ended ABORTED .*rank 2")
            self.assertIn("left", text)
            if not ON_GPU:
                self.assert_nccl_calls(text)

    @needs_stand_in
    def test_status_tells_the_algorithm(self):
        uses, text = self.told(self.train(RANKS, own=two_per_node, COORDD_GPU_ALGORITHM="hierarchical"), RANKS)
        for use in uses:
            self.assertEqual([(path["hierarchical"], path["why_flat"]) for path in use["paths"]], [(True, "")])
        self.assertIn("; allreduces hierarchical: between nodes by the host\n", text)

    @needs_stand_in
    def test_where_nodes_differ_allreduces_are_flat_and_status_says_why(self):
        uses, text = self.told(self.train(3, own=two_per_node, COORDD_GPU_ALGORITHM="hierarchical"), 3)
        for use in uses:
            self.assertFalse(use["paths"][0]["hierarchical"])
            self.assertRegex(use["paths"][0]["why_flat"],
                             r"^the machine of rank 0 \(host .*\) has 2 of the ranks and that of rank 2 .* has 1$")
        self.assertIn("; allreduces flat, since the machine of rank 0 ", text)

    @needs_stand_in
    def test_where_a_host_has_one_rank_the_program_runs_flat_and_its_log_says_why(self):
        for text in self.finish(self.ranks([[-1, "collectives", 1]] * 2, own=lambda rank: {"NCCL_HOSTID": f"node{rank}"},
                                           COORDD_GPU_ALGORITHM="hierarchical")):
            self.assertIn("ok 1 steps", text)
            self.assertIn("allreduces on GPUs are flat, not hierarchical, since each machine has one of the ranks", text)

    @needs_stand_in
    def test_two_algorithms_in_one_job_are_named(self):
        for text in self.finish(self.ranks([[-1, "wait", "a"]] * 2,
                                           own=lambda rank: {"COORDD_GPU_ALGORITHM": ("flat", "hierarchical")[rank]})):
            self.assertRegex(text, r"ended [A-Z_]+ .*rank 0 \(host .*\) has COORDD_GPU_ALGORITHM flat and rank 1 \(host .*\) has hierarchical")

    @needs_stand_in
    def test_a_profiler_that_listens_to_nvtx_is_told_of_each_collective(self):
        paths = [os.path.join(self.folder, f"nvtx{rank}") for rank in range(2)]
        daemon = self.coordd()
        ranks = [self.start(processes.Process(
            [program("gpu_ranks"), "-1", "collectives", "2"],
            self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=2, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                             NVTX_INJECTION64_PATH=os.path.join(processes.BUILD, "tests", "libfake_nvtx.so"),
                             FAKE_NVTX=paths[rank], FAKE_NCCL="call_polls=2"))) for rank in range(2)]
        self.finish(ranks)
        for path in paths:
            with open(path) as file:
                lines = [line.split(" ", 1) for line in file.read().splitlines()]
            text = "\n".join(line for _, line in lines)
            self.assertEqual(len({thread for thread, _ in lines}), 1, text)
            self.assertNotIn("malformed", text)
            self.assertIn("coordd category 1 [all ranks]", text)
            # One begins when the one before has ended.
            ranges = [line for _, line in lines if " category " not in line]
            self.assertTrue(all(line == "coordd pop" for line in ranges[1::2]), text)
            for line in ranges[0::2]:
                self.assertRegex(line, r"^coordd push \d+ \[[a-z]+ .*, (\d+) bytes\] \1$")
            self.assertGreater(len(ranges), 20)
            self.assertRegex(text, r"push 1 \[allreduce ")
            self.assertRegex(text, r"push 1 \[allgather ")

    @needs_stand_in
    @unittest.skipUnless(processes.is_built("coordd-bench"), "this build has no coordd-bench")
    def test_the_bench_prints_nccls_time_beside_ours_and_every_bar(self):
        status, text = self.run_command(
            program("coordd-bench"), "collectives", "--device", "cuda", "--ranks", "2", "--min", "4096", "--max", "65536",
            "--seconds", "0.001", environment=self.environment(FAKE_NCCL="blocking=1"))
        self.assertEqual(status, 0, text)
        rows = [line.split(",") for line in text.splitlines() if re.match(r"(allreduce|allgather|broadcast|reduce_scatter)", line)]
        self.assertEqual([(row[0], int(row[1]), int(row[2])) for row in rows],
                         [(name, 2, size) for name in ("allreduce", "allgather", "broadcast", "reduce_scatter")
                          for size in (4096, 16384, 65536)] + [("allreduce of 100 tensors", 2, 6553600)])
        for bar in ("host time of an allreduce", "time from submission to enqueued of an allreduce of 4096 bytes by schedule, p50",
                    "time from submission to enqueued of an allreduce of 4096 bytes by schedule, p99", "time added on the device of an allreduce", "one group of NCCL's over 100 tensors",
                    "packing, of the copy's bandwidth", "unpacking, of the copy's bandwidth"):
            self.assertRegex(text, f"(?m)^# {bar}.*(met|MISSED)$")

    @needs_stand_in
    def test_a_rank_that_dies_before_the_communicator_is_there(self):
        ranks = self.ranks([[-1, "train", 0 if rank == 3 else -1] for rank in range(RANKS)], FAKE_NCCL="init_polls=5")
        for text in self.finish(ranks[:3]):
            self.assertRegex(text, "ended ABORTED .*rank 3")

    @needs_stand_in
    def test_an_init_that_never_ends_ends_by_the_tensors_deadline(self):
        ranks = self.ranks([[-1, "wait", "late"]] * 2, FAKE_NCCL="init_never=1", COORDD_TIMEOUT=2)
        for text in self.finish(ranks):
            # On a busy machine the other rank may come later than that.
            self.assertRegex(text, "ended (ABORTED|DEADLINE_EXCEEDED) .*tensor late")
            self.assertIn("left", text)

    @needs_stand_in
    def test_an_error_that_nccl_reports_later_reaches_every_rank(self):
        daemon = self.coordd()
        ranks = [self.start(processes.Process(
            [program("gpu_ranks"), "-1", "train"],
            self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=2, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                             **({"FAKE_NCCL": "async_error=6"} if rank == 1 else {})))) for rank in range(2)]
        for text in self.finish(ranks):
            self.assertRegex(text, "ended [A-Z]+ .*Connection reset by peer.*a peer is gone")

    @needs_stand_in
    def test_an_id_of_nccls_that_serves_twice_is_a_named_error_and_the_next_generation_has_a_new_one(self):
        ranks = self.ranks([[-1, "set"]] * 3, own=lambda rank: {"FAKE_NCCL": "id_repeats=1"} if rank == 0 else {},
                           COORDD_ON_FAILURE="raise")
        for rank, text in enumerate(self.finish(ranks)):
            self.assertRegex(text, "(?m)^some ended GENERATION_CHANGED .*an id that was used twice")
            self.assertEqual(len(re.findall("(?m)^all ended OK 3$", text)), 2, text)
            self.assertEqual(len(re.findall("(?m)^some ended OK 2$", text)), 1 if rank < 2 else 0, text)
            self.assertIn(f"broken rule [{'an id that was used twice' if rank < 2 else ''}]", text)

    @needs_stand_in
    def test_two_ranks_on_one_gpu_are_told_so_by_name(self):
        for text in self.finish(self.ranks([[0, "wait", "a"], [0, "wait", "a"]])):
            self.assertRegex(text, r"ended [A-Z_]+ .*rank 0 \(host .*\) and rank 1 \(host .*\) both use GPU GPU-0010")
        # For tests: with a real NCCL that takes a NCCL_HOSTID for each.
        for text in self.finish(self.ranks([[0, "wait", "a"], [0, "wait", "a"]], COORDD_ALLOW_SHARED_GPU=1,
                                           FAKE_NCCL="shared_device=1")):
            self.assertIn("ended OK 2.0", text)

    @needs_stand_in
    def test_status_tells_each_ranks_gpu_and_what_tensors_travel_over(self):
        uses, text = self.told(self.train(2, FAKE_CUDA="nvlink=1"), 2)
        for rank, use in enumerate(uses):
            self.assertEqual(use["device"]["index"], rank)
            self.assertEqual(use["device"]["model"], "Fake GPU")
            self.assertRegex(use["device"]["uuid"], f"^GPU-0010.*0{rank}$")
            self.assertEqual(use["nccl"], NCCL_VERSION)
            self.assertEqual([(path["process_set"], path["nccl"], path["within_node"], path["between_nodes"])
                              for path in use["paths"]], [(0, True, "NVLink", "")])
        self.assertIn(f"GPUs of ranks 0-1: Fake GPU, NCCL {NCCL_VERSION}\n    tensors: by NCCL; in a node: NVLink\n", text)
        self.assertIn("1 GPU-00102030", text)

    @needs_stand_in
    def test_status_knows_it_again_after_coordd_was_started_again(self):
        store = ("--store", f"sqlite:{os.path.join(self.folder, 'state')}")
        daemon = self.train(2, store=store)
        before, _ = self.told(daemon, 2)
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        daemon = self.coordd("--heartbeat-interval", "100ms", *store, listen=daemon.listen)
        after, _ = self.told(daemon, 2)
        self.assertEqual(after, before)
        self.assertTrue(processes.wait_for(lambda: "generation 1 goes on: all" in daemon.text()), daemon.text())

    @needs_stand_in
    def test_status_takes_ranks_for_nodes_where_nccl_does(self):
        uses, _ = self.told(self.train(2, own=lambda rank: {"NCCL_HOSTID": f"host{rank}"}, NCCL_IB_DISABLE=1), 2)
        for use in uses:
            self.assertEqual([(path["within_node"], path["between_nodes"]) for path in use["paths"]], [("", "TCP sockets")])

    @needs_stand_in
    def test_status_names_the_plugin_that_nccl_has_loaded(self):
        # Any library that is in the process will do.
        daemon = self.train(2, own=lambda rank: {"NCCL_HOSTID": f"host{rank}"}, NCCL_NET_PLUGIN="libm.so.6")
        self.told(daemon, 2, until=lambda path: path["between_nodes"] == "plugin libm.so.6")

    @needs_stand_in
    def test_status_says_why_tensors_go_through_host_memory(self):
        uses, text = self.told(
            self.train(2, own=lambda rank: {"COORDD_NCCL_LIBRARY": "/no/such/libnccl.so"} if rank == 1 else {}), 2)
        self.assertEqual(uses[0]["nccl"], NCCL_VERSION)
        self.assertIn("/no/such/libnccl.so", uses[1]["no_nccl"])
        for use in uses:
            self.assertEqual(use["paths"][0]["nccl"], False)
            self.assertRegex(use["paths"][0]["why_not"], r"rank 1 \(host .*\) has no NCCL: .*/no/such/libnccl.so")
        self.assertRegex(text, "tensors: through pinned host memory, since rank 1 ")

    def test_host_and_device_memory_under_one_name_is_an_error_that_names_both(self):
        for text in self.finish(self.ranks([[-1, "host-and-device"]] * 2)):
            self.assertRegex(text, "ended INVALID_ARGUMENT .*mixed.*host.*cuda|ended INVALID_ARGUMENT .*mixed.*cuda.*host")


if __name__ == "__main__":
    processes.main()
