"""coordd.spark against Spark itself: skipped where it, or a Java, is not, run by tools/test-frameworks --spark."""

import os
import shutil
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "client", "python")
sys.path[:0] = [PACKAGE]
os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGE, os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

try:
    from pyspark.sql import SparkSession
except ImportError as missing:
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


def fail_on(culprit):
    import numpy
    from coordd import _arrays, _basics
    _basics.init()
    if _basics.rank() == culprit:
        raise KeyError("no such column")
    _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)


class Spark(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
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

    def test_wrong_use_is_said(self):
        with self.assertRaises(TypeError):
            coordd.spark.run(ranks, np=2)
        with self.assertRaises(ValueError):
            coordd.spark.run(ranks, num_proc=0)


if __name__ == "__main__":
    unittest.main()
