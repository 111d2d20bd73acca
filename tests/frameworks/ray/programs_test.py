"""The example programs, as a user runs them, and Ray Train's failures."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from ray_case import PATIENCE_S, ROOT, SMALL, RayCase

EXAMPLES = os.path.join(ROOT, "client", "examples", "python")


def fails(_config):
    import numpy
    from coordd import _arrays, _basics
    _basics.init()
    if _basics.rank() == 1:
        raise ValueError("bad batch")
    _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)


class Programs(unittest.TestCase):
    def run_example(self, *command):
        with tempfile.TemporaryDirectory() as storage:
            environment = {**os.environ, "RAY_STORAGE": storage, "RAY_object_store_memory": str(SMALL), "RAY_DEDUP_LOGS": "1"}
            ended = subprocess.run([sys.executable, *command], cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, timeout=20 * PATIENCE_S)
        self.assertEqual(ended.returncode, 0, ended.stdout[-6000:])
        return ended.stdout

    def test_eight_trials_four_at_a_time_in_one_coordd(self):
        output = self.run_example("ray_sweep.py", "--epochs", "2")
        found = re.findall(r"^rate ([\d.]+): ([\d.]+) by (\d) workers$", output, re.MULTILINE)
        self.assertEqual([float(rate) for rate, _, _ in found], [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0])
        self.assertEqual({workers for _, _, workers in found}, {"2"})
        self.assertGreater(max(float(accuracy) for _, accuracy, _ in found), 0.85)
        self.assertRegex(output, r"(?m)^best: rate 0\.\d+, 0\.[89]\d+$")

    def test_ray_train_with_coordd_as_its_backend(self):
        self.assertRegex(self.run_example("ray_train_digits.py"), r"(?m)^accuracy 0\.[89]\d+ by 2 workers$")


class Train(RayCase):
    def test_an_error_of_one_worker_is_the_error_of_the_run(self):
        from ray.train import RunConfig, ScalingConfig
        from coordd.ray.train import CoorddTrainer
        with tempfile.TemporaryDirectory() as storage:
            trainer = CoorddTrainer(fails, scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
                                          run_config=RunConfig(storage_path=storage))
            with self.assertRaises(Exception) as raised:
                trainer.fit()
        self.assertRegex(str(raised.exception) + str(raised.exception.__cause__), "ValueError: bad batch")


if __name__ == "__main__":
    unittest.main()
