"""Symmetric windows of programs' memory: four processes over the stand-ins of CUDA's driver and NCCL, which check the rules."""

import re
import unittest

from tests.support import processes
from tests.support.gpu_jobs import GpuCase, NCCL, NCCL_VERSION, RANKS, needs_stand_in, two_per_node

HAS_WINDOWS = NCCL >= 22703
FUSION_BUFFER = 1  # is one, too
OF_PROGRAM = 3


@unittest.skipIf(NCCL < 21901, "there is no memory of NCCL's before 2.19")
@needs_stand_in
class GpuWindowsTest(GpuCase):
    def windows(self, texts):
        """Made on each rank."""
        for text in texts:
            self.assertIn("ok windows", text)
            self.assert_nccl_calls(text)
        return [int(re.search(r"broken rule \[\] windows (\d+)", text)[1]) for text in texts]

    def run_ranks(self, *arguments, own=lambda rank: {}, **variables):
        return self.finish(self.ranks([[-1, "windows", *arguments]] * RANKS, own, COORDD_GPU_REGISTER="symmetric", **variables))

    def test_memory_of_all_ranks_is_a_window_of_each(self):
        texts = self.run_ranks()
        self.assertEqual(self.windows(texts), [FUSION_BUFFER + OF_PROGRAM if HAS_WINDOWS else 0] * RANKS)
        for text in texts:
            self.assertNotIn("no symmetric window,", text)
            self.assertEqual(f"no symmetric windows: NCCL is {NCCL_VERSION}" in text, not HAS_WINDOWS, text)
            registered = int(re.search(r"nccl registered (\d+)", text)[1])
            self.assertEqual(registered >= OF_PROGRAM, not HAS_WINDOWS, text)

    @unittest.skipUnless(HAS_WINDOWS, "no windows before 2.27")
    def test_a_rank_with_another_size_leaves_all_with_the_ordinary_way(self):
        texts = self.run_ranks(4096)
        self.assertEqual(self.windows(texts), [FUSION_BUFFER + OF_PROGRAM - 1] * RANKS)
        for text in texts:
            self.assertEqual(text.count("rank 1 gave 69632 of 69632 bytes of coordd_alloc_device, "
                                        "rank 0 65536 of 65536 bytes of coordd_alloc_device"), 1, text)

    @unittest.skipUnless(HAS_WINDOWS, "no windows before 2.27")
    def test_a_rank_that_still_has_another_window_leaves_all_with_the_ordinary_way(self):
        texts = self.run_ranks(-2)
        self.assertEqual(self.windows(texts), [FUSION_BUFFER + OF_PROGRAM - 1] * RANKS)
        for text in texts:
            self.assertEqual(text.count("rank 1 has other windows registered than rank 0"), 1, text)

    def test_registrations_of_two_threads_go_one_behind_the_other(self):
        self.windows(self.run_ranks(-3))

    def test_what_one_rank_is_refused_leaves_all_in_step_and_what_is_registered_is_not_freed(self):
        texts = self.run_ranks(-4)
        self.assertEqual(self.windows(texts), [FUSION_BUFFER + OF_PROGRAM - 1 if HAS_WINDOWS else 0] * RANKS)
        for rank, text in enumerate(texts):
            self.assertIn("overlaps with" if rank == 0 else "rank 0 has not come to this registration of memory (number 2 in process set 0)", text)

    def left_out(self, calls, *arguments, **variables):
        texts = self.run_ranks(*arguments, **variables)
        self.assertEqual(self.windows(texts), [FUSION_BUFFER + OF_PROGRAM if HAS_WINDOWS else 0] * RANKS)
        # One of the others may still have been on its way when the first was told, or have given up before.
        sentence = (r"left out: DEADLINE_EXCEEDED rank 2 has not come to this registration of memory \(number 2 in process set 0\)"
                    r"(, ranks? [013, ]+ (has|have) been there and given up)?: all ranks of the set have to call it; the next one that all of "
                    r"them call is in step again")
        for rank, text in enumerate(texts):
            self.assertEqual(text.count("left out:"), 0 if rank == 2 else calls, text)
            self.assertTrue(rank == 2 or re.search(sentence, text), text)

    def test_a_rank_that_leaves_a_call_out_is_named_and_the_next_one_of_all_is_in_step(self):
        self.left_out(2, -5)

    def test_so_it_is_where_the_call_has_no_limit_of_its_own(self):
        self.left_out(1, -6, COORDD_TIMEOUT=5)

    @unittest.skipUnless(HAS_WINDOWS, "no windows before 2.27")
    def test_where_a_rank_has_none_nothing_is_one(self):
        texts = self.run_ranks(own=lambda rank: {"COORDD_GPU_REGISTER": "1"} if rank == 1 else {})
        self.assertEqual(self.windows(texts), [0] * RANKS)

    @unittest.skipUnless(HAS_WINDOWS, "no windows before 2.27")
    def test_without_symmetric_memory_between_the_gpus_it_is_registered(self):
        texts = self.run_ranks(FAKE_NCCL="no_windows=1")
        self.assertEqual(self.windows(texts), [0] * RANKS)
        for text in texts:
            self.assertGreaterEqual(int(re.search(r"nccl registered (\d+)", text)[1]), OF_PROGRAM, text)

    @unittest.skipUnless(HAS_WINDOWS, "no windows before 2.27")
    def test_a_communicator_of_a_node_registers_what_that_of_all_has_as_a_window(self):
        texts = self.run_ranks(own=two_per_node, COORDD_GPU_ALGORITHM="hierarchical")
        self.assertEqual(self.windows(texts), [FUSION_BUFFER + OF_PROGRAM] * RANKS)
        for text in texts:
            self.assertGreaterEqual(int(re.search(r"nccl registered (\d+)", text)[1]), OF_PROGRAM, text)


if __name__ == "__main__":
    processes.main()
