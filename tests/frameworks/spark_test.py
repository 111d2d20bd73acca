"""coordd.spark against Spark itself: skipped where it, or a Java, is not, run by tools/test-frameworks --spark."""

import os
import shutil
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "client", "python")
sys.path[:0] = [PACKAGE]
os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGE, os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

try:
    from pyspark.sql import SparkSession
except ModuleNotFoundError as missing:
    if missing.name != "pyspark":  # it is there, and lacks something
        raise
    print(f"{missing}: tools/test-frameworks --spark installs it", file=sys.stderr)
    sys.exit(77)
if shutil.which("java") is None:
    print("there is no java here", file=sys.stderr)
    sys.exit(77)

import coordd.spark  # noqa: E402


def ranks(first, more=0):
    import numpy
    from coordd import _arrays, _basics
    _basics.init()
    total = _arrays.allreduce("sum", numpy.array([first + more]), _basics.Sum).item()
    return _basics.rank(), _basics.size(), total, os.environ.get("COORDD_TIMEOUT"), os.environ["COORDD_JOB_ID"]


def fail_always():
    raise KeyError("no such column")


def fail_on(culprit):
    import numpy
    from coordd import _arrays, _basics
    _basics.init()
    if _basics.rank() == culprit:
        raise KeyError("no such column")
    _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)


def count_to(last, folder, culprit=None, how="die"):
    """Steps up to `last`, of which each is committed; the worker that is `culprit` at first ends in step 5, once. What its sizes were."""
    import signal
    import time

    import numpy
    from coordd import _arrays, _basics, elastic
    _basics.init()
    state = elastic.ObjectState(lambda value, root_rank=0: _arrays.broadcast_object(value, root_rank, "state"), _basics.rank, step=0, sizes=[])
    mark = os.path.join(folder, "ended")
    is_culprit = _basics.rank() == culprit and not os.path.exists(mark)

    def steps(state):
        while state.step < last or (culprit is not None and max(state.sizes[-1:] or [0]) < max(state.sizes or [0])):
            _arrays.allreduce("step", numpy.ones(1), _basics.Sum)
            if is_culprit and state.step == 5:
                open(mark, "w").close()
                if how == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise KeyError("no such column")
            state.step += 1
            state.sizes = state.sizes + [_basics.size()]
            state.commit()
            time.sleep(0.02)
        return state.step, state.sizes

    return elastic.run_fn(steps, _basics.change_members)(state)


class Spark(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").config("spark.driver.host", "127.0.0.1")
        made = made.config("spark.driver.bindAddress", "127.0.0.1").config("spark.stage.maxConsecutiveAttempts", "1")
        cls.session = made.getOrCreate()
        cls.session.sparkContext.setLogLevel("OFF")

    @classmethod
    def tearDownClass(cls):
        cls.session.stop()

    def test_tasks_of_a_stage_are_the_ranks_of_a_job_and_again_of_the_next(self):
        for size in (3, 2):
            found = coordd.spark.run(ranks, args=(1.0,), kwargs={"more": 2.0}, num_proc=size, env={"COORDD_TIMEOUT": "50"}, verbose=2)
            self.assertEqual([one[:4] for one in found], [(rank, size, 3.0 * size, "50") for rank in range(size)])
        self.assertEqual([one[:4] for one in coordd.spark.run(ranks, args=(1.0,))], [(rank, 3, 3.0, None) for rank in range(3)])
        [name] = {one[4] for one in coordd.spark.run(ranks, args=(1.0,), num_proc=2, job="mine")}
        self.assertRegex(name, r"^mine\.")

    def test_the_error_of_a_task_is_that_of_the_run_and_the_session_goes_on(self):
        with self.assertRaisesRegex(Exception, "no such column"):
            coordd.spark.run(fail_on, args=(1,), num_proc=2)
        self.assertEqual(len(coordd.spark.run(ranks, args=(1.0,), num_proc=3)), 3)

    def assert_goes_on(self, how):
        with tempfile.TemporaryDirectory() as folder:
            found = coordd.spark.run_elastic(count_to, args=(20, folder, 1, how), num_proc=3, min_np=2)
        self.assertEqual(len({one[0] for one in found}), 1, found)
        sizes = found[0][1]
        # Three, two without the one that was lost, and three again.
        self.assertEqual([size for at, size in enumerate(sizes) if at == 0 or sizes[at - 1] != size], [3, 2, 3])

    def test_an_elastic_job_goes_on_without_a_worker_that_is_killed_and_takes_in_another(self):
        self.assert_goes_on("die")

    def test_and_without_one_that_raises(self):
        self.assert_goes_on("raise")

    def test_an_elastic_job_in_which_all_fail_ends_with_their_error(self):
        with self.assertRaisesRegex(Exception, "no such column"):
            with self.assertLogs("coordd.spark", "WARNING") as logs:
                coordd.spark.run_elastic(fail_always, num_proc=2, min_num_proc=1)
        self.assertRegex(logs.output[0], r"worker [01] of job spark-\w+ is lost \(KeyError: 'no such column'\); another one is started")
        self.assertEqual(len(coordd.spark.run(ranks, args=(1.0,), num_proc=3)), 3)

    def test_a_limit_of_resets_is_kept(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(Exception, "no such column"):
            coordd.spark.run_elastic(count_to, args=(1000000, folder, 1, "raise"), num_proc=2, min_num_proc=1, reset_limit=0)
        self.assertEqual(len(coordd.spark.run(ranks, args=(1.0,), num_proc=3)), 3)

    def test_wrong_use_is_said(self):
        with self.assertRaises(TypeError):
            coordd.spark.run_elastic(ranks, np=2)
        with self.assertRaises(ValueError):
            coordd.spark.run_elastic(ranks, num_proc=2, min_num_proc=3)
        with self.assertRaises(TypeError):
            coordd.spark.run(ranks, np=2)
        for count in (0, -1, 1.5, "2", True):
            with self.subTest(count), self.assertRaisesRegex(ValueError, f"num_proc is {count!r}: expected a number of workers"):
                coordd.spark.run(ranks, num_proc=count)
            for name in ("num_proc", "min_num_proc", "max_num_proc", "min_np", "max_np"):
                with self.subTest(name), self.assertRaisesRegex(ValueError, f"^{name} is {count!r}: expected a number of workers"):
                    coordd.spark.run_elastic(ranks, **{name: count})


if __name__ == "__main__":
    unittest.main()
