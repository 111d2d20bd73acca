"""coordd.dask against Dask itself: skipped where it is not, run by tools/test-frameworks --dask."""

import os
import signal
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "client", "python")
sys.path[:0] = [PACKAGE]
os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGE, os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])

try:
    from distributed import Client, LocalCluster
except ModuleNotFoundError as missing:
    if missing.name != "distributed":  # it is there, and lacks something
        raise
    print(f"{missing}: tools/test-frameworks --dask installs it", file=sys.stderr)
    sys.exit(77)

import coordd.dask  # noqa: E402
from coordd import HorovodInternalError  # noqa: E402


def ranks(first, more=0):
    import numpy
    from coordd import _arrays, _basics
    _basics.init()
    total = _arrays.allreduce("sum", numpy.array([first + more]), _basics.Sum).item()
    return _basics.rank(), _basics.size(), total, os.environ.get("COORDD_TIMEOUT")


def end_on(culprit, how):
    import numpy
    from coordd import _arrays, _basics
    _basics.init()
    if _basics.rank() == culprit:
        if how == "raise":
            raise KeyError("no such column")
        os.kill(os.getpid(), signal.SIGKILL)
    _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)


class Dask(unittest.TestCase):
    def setUp(self):
        cluster = LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1")
        self.addCleanup(cluster.close)
        self.client = Client(cluster)
        self.addCleanup(self.client.close)

    def test_workers_are_the_ranks_of_a_job_and_again_of_the_next(self):
        for size in (3, 2):
            found = coordd.dask.run(ranks, args=(1.0,), kwargs={"more": 2.0}, num_proc=size, env={"COORDD_TIMEOUT": "50"})
            self.assertEqual(found, [(rank, size, 3.0 * size, "50") for rank in range(size)])
        self.assertEqual(coordd.dask.run(ranks, args=(1.0,), client=self.client), [(rank, 3, 3.0, None) for rank in range(3)])

    def test_the_error_of_the_one_that_failed_is_raised_and_the_workers_go_on(self):
        with self.assertRaisesRegex(KeyError, "no such column"):
            coordd.dask.run(end_on, args=(1, "raise"))
        self.assertEqual(len(coordd.dask.run(ranks, args=(1.0,))), 3)

    def test_a_worker_that_is_lost_ends_the_run(self):
        with self.assertRaisesRegex(HorovodInternalError, "lost"):
            coordd.dask.run(end_on, args=(1, "kill"))

    def test_a_function_that_exits_ends_no_worker(self):
        with self.assertRaisesRegex(RuntimeError, r"called sys.exit\(3\)"):
            coordd.dask.run(sys.exit, args=(3,))
        self.assertEqual(coordd.dask.run(sys.exit, args=(0,)), [None] * 3)
        self.assertEqual(len(coordd.dask.run(ranks, args=(1.0,))), 3)

    def test_wrong_use_is_said(self):
        with self.assertRaisesRegex(HorovodInternalError, "4 workers are needed, and the cluster has 3"):
            coordd.dask.run(ranks, num_proc=4)
        for count in (0, -1, 1.5, "2", True):
            with self.subTest(count), self.assertRaisesRegex(ValueError, f"num_proc is {count!r}: expected a number of workers"):
                coordd.dask.run(ranks, num_proc=count)


if __name__ == "__main__":
    unittest.main()
