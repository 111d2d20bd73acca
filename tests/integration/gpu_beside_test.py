"""coordd's calls beside NCCL groups of the program's own on the same GPU, as FSDP and tensor parallelism have them with torch's
"nccl" backend: which order goes well, and what coordd says where there is none. Four processes over the stand-ins of CUDA's driver
and NCCL; what needs no fault of theirs also on four GPUs."""

import itertools
import os
import re
import signal
import unittest

from tests.support import processes
from tests.support.gpu_jobs import ON_GPU, RANKS, GpuCase, needs_stand_in
from tests.support.processes import program, wait_for

ROOM_FOR_ONE = {"FAKE_CUDA": "collectives=1"}  # a collective's kernel keeps others off the device until all its ranks have come
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
TIMES = 5
LOST = 3  # the rank that is killed to get the others out


def waited(order):
    """Each is waited for before the next one is called."""
    return [word for call in order for word in (call, call.upper())]


@unittest.skipIf(ON_GPU and not os.path.exists("/dev/nvidia3"), "groups of the program's own need a GPU for each rank")
class GpuBesideTest(GpuCase):
    def start_ranks(self, daemon, words, one_buffer=False, times=1, **variables):
        """`words`: of each rank (gpu_beside.h)."""
        return [self.start(processes.Process(
            [program("gpu_ranks"), "-1", "beside", str(times), str(int(one_buffer)), *words[rank]],
            self.environment(COORDD_ADDR=daemon.listen, COORDD_SIZE=RANKS, COORDD_RANK=rank, COORDD_LOCAL_RANK=rank,
                             COORDD_JOIN_TIMEOUT=processes.PATIENCE_S, FAKE_NCCL="blocking=1", **variables)))
            for rank in range(RANKS)]

    def run_ranks(self, words, **more):
        for text in self.finish(self.start_ranks(self.coordd(), words, **more)):
            self.assertIn("ok beside", text)
            if not ON_GPU:
                self.assert_nccl_calls(text)

    def test_where_each_is_waited_for_before_the_next_is_called_every_order_goes_well(self):
        # Also on a device that has no room for two kernels, and where all streams share a queue.
        words = [word for order in itertools.permutations("cft") for word in waited(order)]
        for device in ({},) if ON_GPU else (ROOM_FOR_ONE, ONE_QUEUE):
            with self.subTest(**device):
                self.run_ranks([words] * RANKS, times=TIMES, one_buffer=True, **device)

    def test_calls_that_are_under_way_together_in_one_order_on_all_ranks_go_well_where_there_is_room(self):
        # Gradients whose calls are under way while the program gathers parameters, and sums over its neighbour.
        self.run_ranks([["c", "e", *"fFtTfFtT", "C", "E"]] * RANKS, times=TIMES)

    def test_where_there_is_room_ranks_may_launch_in_different_orders(self):
        orders = list(itertools.permutations("ceft"))
        words = [[word for start in range(0, len(orders), 5)
                  for word in (*orders[(start + 7 * rank) % len(orders)], "T", "C", "F", "E")] for rank in range(RANKS)]
        self.run_ranks(words, times=TIMES)

    def stands(self, words, sentence, **device):
        """Ranks whose devices wait for each other: what coordd says of it."""
        # All begin together, however late one comes; without the lost one the others go on at once.
        daemon = self.coordd("--stall-warning", "3s", "--heartbeat-interval", "200ms", "--settling-window", "10m")
        ranks = self.start_ranks(daemon, words, COORDD_ON_FAILURE="raise", COORDD_MIN_WORKERS=1, **device)
        texts = lambda: daemon.text() + "".join(rank.text() for rank in ranks)  # noqa: E731
        self.assertTrue(wait_for(lambda: re.search(rf"allreduce grad/c stands on the device for [^:]+: {sentence}", daemon.text()),
                                 processes.PATIENCE_S), texts())
        _, status = self.run_command(program("coordctl"), "status", "--coordinator", daemon.listen)
        self.assertRegex(status, rf"allreduce grad/c on the device: {sentence}")
        return ranks

    def stands_until_a_loss(self, words, sentence, **device):
        """The same; a loss gets the others out, with the right results."""
        ranks = self.stands(words, sentence, **device)
        ranks[LOST].signal(signal.SIGKILL)
        for text in self.finish(ranks[:LOST]):
            self.assertRegex(text, f"(?m)^ended GENERATION_CHANGED .*rank {LOST}")
            self.assertRegex(text, "(?m)^ended OK")
            self.assertIn("ok beside", text)
            self.assert_nccl_calls(text)

    AGAIN = ("end:C", "done", "own", "c", "C", "end:C")  # the program hears of the loss, and goes on
    OTHERS = [["c", "C", *AGAIN], ["c", "C", "hear:never"]]

    @needs_stand_in
    def test_programs_that_call_the_two_in_different_orders_stand_and_the_rank_is_named(self):
        words = [["t", "T", "c", "C", *self.AGAIN], ["c", "C", "t", "T", *self.AGAIN], *self.OTHERS]
        self.stands_until_a_loss(words, r"started on ranks 1, 2, 3, enqueued behind the program's own work on rank 0 \(GPU-[0-9a-f-]+, host [^)]+\)")

    # One program on all ranks. On rank 0 the neighbours' sum comes to the device first, on rank 1 coordd's call does. Rank 0's stream
    # waits for that sum before the others are told: in a queue that all streams share this wait stands in front of coordd's kernel.
    UNORDERED = [["c", "t", "busy", "T", "say:called", "C", *AGAIN],
                 ["hear:called", "c", "on:C", "busy", "t", "T", "C", *AGAIN],
                 *[["hear:called", *words] for words in OTHERS]]
    # coordd's is the first of its stream everywhere; what keeps it from the device is not coordd's to see.
    STARTED = "started on ranks 0, 1, 2 and 1 more"

    @needs_stand_in
    def test_calls_without_an_order_stand_where_there_is_no_room_for_both(self):
        self.stands_until_a_loss(self.UNORDERED, self.STARTED, **ROOM_FOR_ONE)

    @needs_stand_in
    def test_calls_without_an_order_stand_where_all_streams_share_a_queue(self):
        self.stands_until_a_loss(self.UNORDERED, self.STARTED, **ONE_QUEUE)

    @needs_stand_in
    def test_memory_given_back_while_calls_of_both_are_under_way_stands_where_coordd_cannot_launch(self):
        # Rank 1 waits with the driver's lock for its neighbour's sum, which rank 0 calls when it has given memory back, too.
        words = [["hear:frees", "c", "on:C", "free", "freed", "t", "T"], ["t", "c", "free", "say:frees", "end:C"],
                 *[["c", "C", "end:C"]] * 2]
        place = r"\(GPU-[0-9a-f-]+, host [^)]+\)"
        self.stands(words, rf"started on ranks 2, 3, enqueued on rank 0 {place}, being launched on rank 1 {place}")

    @needs_stand_in
    def test_calls_without_an_order_go_well_where_there_is_room(self):
        words = [of_rank[:of_rank.index("C") + 1] for of_rank in self.UNORDERED]
        self.run_ranks([[word for word in of_rank if word != "busy"] for of_rank in words])

    @needs_stand_in
    def test_a_wait_that_has_a_limit_gets_the_program_out(self):
        words = [[*of_rank[:of_rank.index("C") + 1], "end:C", "leave"] for of_rank in self.UNORDERED]
        for text in self.finish(self.start_ranks(self.coordd(), words, COORDD_TIMEOUT=3, **ROOM_FOR_ONE)):
            self.assertRegex(text, "(?m)^ended (DEADLINE_EXCEEDED|ABORTED) .*tensor grad/c")
            self.assertIn("left", text)


if __name__ == "__main__":
    processes.main()
