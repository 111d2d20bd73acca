"""Real Open MPI and MPICH: mpirun that starts our workers by itself, and coordrun that uses it."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.launchers.launcher_case import MpichCase, OpenMpiCase, lines_of, workers_find_themselves
from tests.support import processes
from tests.support.processes import program

SMALL_RUN = ("allreduce", "--iterations", "5", "--tensors", "3", "--elements", "1000")


class MpiCases:
    """The same for both libraries."""

    def check_places(self, text):
        places = [json.loads(line[line.index("{"):]) for line in text.splitlines() if '"wrong"' in line]
        self.assertEqual(sorted(place["rank"] for place in places), [0, 1, 2, 3], text)
        self.assertEqual([(place["size"], place["wrong"]) for place in places], [(4, 0)] * 4)

    def test_mpirun_starts_workers_of_a_coordd(self):
        coordd = self.coordd()
        self.environment["COORDD_ADDR"] = coordd.listen
        status, text = self.run_command("mpirun", "-np", "4", program("coordd-worker"), *SMALL_RUN,
                                        environment=self.environment)
        self.assertEqual(status, 0, text)
        self.check_places(text)

    @unittest.skipUnless(workers_find_themselves(), "this coordd-worker has no --launcher")
    def test_workers_under_mpirun_start_their_own_coordd(self):
        self.environment["HOME"] = self.folder  # where they meet
        status, text = self.run_command("mpirun", "-np", "4", program("coordd-worker"), *SMALL_RUN,
                                        environment=self.environment)
        self.assertEqual(status, 0, text)
        self.check_places(text)
        self.assert_nothing_left()

    def test_coordrun_uses_mpirun(self):
        status, text = self.coordrun("-np", "4", "--launcher", "mpirun", "--", program("coordd-worker"), *SMALL_RUN)
        self.assertEqual(status, 0, text)
        self.check_places(text)
        self.assertTrue(all(lines_of(text, rank) for rank in range(4)), text)
        self.assertRegex(text, r"4 workers, .* reduced per rank in \d+ batch.*all workers exited with status 0")
        self.assert_clean()

    def test_a_failure_under_mpirun_is_the_runs(self):
        status, text = self.coordrun("-np", "2", "--launcher", "mpirun", "-x", "COLOUR=blue", "--", "bash", "-c",
                                     "echo $COLOUR; exit 3")
        self.assertEqual(status, 3, text)
        self.assertIn("blue", text)
        self.assert_clean()


class OpenMpiTest(MpiCases, OpenMpiCase):
    def test_lines_that_are_written_in_pieces_have_no_labels_inside(self):
        # Each piece is read by mpirun before the next is written: a label of its own.
        pieces = "for piece in 'a ' 'b ' 'c\nd' 'e\n'; do printf \"$piece\"; sleep 0.3; done"
        status, text = self.coordrun("-np", "2", "--launcher", "mpirun", "--", "bash", "-c", pieces)
        self.assertEqual(status, 0, text)
        self.assertNotIn("<stdout>", text)
        for rank in range(2):
            said = "".join(line.split(" ", 1)[1] for line in text.splitlines() if line.startswith(f"[{rank}] "))
            self.assertEqual(said.replace(" ", ""), "abcde", text)


class MpichTest(MpiCases, MpichCase):
    pass


if __name__ == "__main__":
    processes.main()
