"""COORDD_ON_FAILURE=continue in Python, without a framework. This file is also the program of the ranks."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))


def wait_until(holds):
    while not holds():
        time.sleep(0.01)


def run_rank(marker):
    from coordd import _basics, elastic
    _basics.init()
    worker, heard = _basics.worker(), []
    elastic.on_members_changed(lambda place: heard.append(place.size))
    if _basics.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    # Callbacks are called by another thread, once the place can be read.
    wait_until(lambda: worker.read_place().size == 2 and heard)
    assert heard == [2], heard
    if _basics.rank() == 1:
        wait_until(lambda: os.path.exists(marker))
        os.kill(os.getpid(), signal.SIGKILL)
    # As a program does that ends by an error: the library goes on until the process is gone.
    _basics.fail()
    _basics.shutdown()
    open(marker, "w", encoding="ascii").close()
    wait_until(lambda: worker.read_place().size == 1)
    print("heard", heard, flush=True)


class GoingOn(unittest.TestCase):

    def test_nothing_of_an_interpreter_that_ends_is_called(self):
        clean = {key: value for key, value in os.environ.items()
                 if not key.startswith("COORDD_") or key == "COORDD_LIBRARY"}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [os.path.join(os.environ["COORDD_BUILD_DIR"], "bin", "coordrun"), "-np", "3", "--min-np", "1", "--on-failure",
                 "continue", "--", sys.executable, __file__, os.path.join(folder, "shut-down")],
                env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, check=False)
        self.assertIn("heard [2]\n", done.stdout)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        run_rank(sys.argv[1])
    else:
        unittest.main()
