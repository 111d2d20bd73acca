"""Process sets in Python over changes of members: a rank is killed, and comes back as a newcomer. This file is also the
program of the ranks."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))


def run_rank(marker):
    from coordd import _agreement, _basics, process_sets
    from coordd.exceptions import HorovodInternalError
    from coordd.process_sets import ProcessSet
    is_new = os.path.exists(marker)
    first = ProcessSet([0, 1, 3])
    _basics.init(process_sets=[first])
    if not is_new:
        second, third = process_sets.add_process_set([1, 2]), process_sets.add_process_set([1])
        if _basics.rank() == 1:
            open(marker, "w", encoding="ascii").close()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            process_sets.add_process_set([0])
            raise AssertionError("a request that rank 1 has not made was granted")
        except HorovodInternalError as error:
            assert error.code == "GENERATION_CHANGED", error
        _basics.await_generation()
        assert _basics.size() == 3, _basics.size()
        assert (first.process_set_id, first.ranks) == (1, [0, 2]), first
        assert second.ranks == [1] and second.included() == (_basics.rank() == 1), second
        assert third.process_set_id is None, third
        # As a program does that does not know that sets survive.
        again = process_sets.add_process_set([0, 2])
        assert again.process_set_id == 1, again
        while _agreement.agree("newcomers", _basics.newcomers()).value == 0:
            time.sleep(0.01)
        _basics.change_members()
    assert (first.process_set_id, first.ranks, _basics.size()) == (1, [0, 2], 4), first
    assert process_sets.process_set_by_id(2).ranks == [1]
    added = process_sets.add_process_set([0, 1, 2])
    print("sets", [one.process_set_id for one in process_sets.process_sets()], "added", added.process_set_id, flush=True)
    _basics.shutdown()


class SurvivingSets(unittest.TestCase):

    def test_sets_follow_their_ranks_and_newcomers_find_them(self):
        clean = {key: value for key, value in os.environ.items()
                 if not key.startswith("COORDD_") or key == "COORDD_LIBRARY"}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [os.path.join(os.environ["COORDD_BUILD_DIR"], "bin", "coordrun"), "-np", "4", "--min-np", "2",
                 "--max-restarts", "1", "--", sys.executable, __file__, os.path.join(folder, "killed")],
                env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        # 3 has ended with its only rank, and the request that failed has not taken a number.
        self.assertEqual(len(re.findall(r"sets \[0, 1, 2, 4\] added 4$", done.stdout, re.MULTILINE)), 4, done.stdout)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        run_rank(sys.argv[1])
    else:
        unittest.main()
