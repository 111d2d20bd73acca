"""Scalars for TensorBoard: what they are with a writer that only remembers, of a real job, and in the files that TensorBoard reads."""

import importlib.util
import json
import os
import sys
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "client", "python")
# This folder has one named tensorflow, which TensorBoard would take for TensorFlow.
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != os.path.dirname(os.path.abspath(__file__))]
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
sys.path.insert(0, PACKAGE)

import processes  # noqa: E402
from coordd import _native, _running, tensorboard  # noqa: E402
from coordd.exceptions import InvalidArgumentError  # noqa: E402

METRICS = """# TYPE coordd_worker_payload_bytes_total counter
coordd_worker_payload_bytes_total{{kind="allreduce",backend="host"}} {bytes}
coordd_worker_payload_bytes_total{{kind="allgather",backend="host"}} 100
coordd_worker_execution_seconds_bucket{{le="+Inf"}} 12
coordd_worker_execution_seconds_sum {seconds}
coordd_worker_arrival_lag_seconds 0.25
"""

# 21 steps of one allreduce of 400 bytes; a process that only remembers what it is told, and says it at the end.
JOB = """
import json, sys, torch
import coordd.torch as hvd, coordd.tensorboard

class Remembers:
    said = []
    def add_scalar(self, name, value, step):
        self.said.append((name, float(value), step))

hvd.init()
real = sys.argv[1:]
scalars = coordd.tensorboard.Scalars(log_dir=real[0]) if real else coordd.tensorboard.Scalars(Remembers())
for step in range(21):
    hvd.allreduce(torch.ones(100), name="gradient")
    scalars.step()
scalars.close()
if hvd.rank() == 1:
    print("said", json.dumps(Remembers.said))
"""


class Remembers:
    def __init__(self):
        self.said = []

    def add_scalar(self, name, value, step):
        self.said.append((name, value, step))


def member(size=4):
    place = _native.Place(**{**{name: 0 for name in _native.Place._fields}, "rank": 0, "size": size})
    return unittest.mock.patch.object(_running.state, "place", place)


class Scalars(unittest.TestCase):
    """Without a job: time and metrics are given."""

    def made(self, texts, **options):
        writer = Remembers()
        scalars = tensorboard.Scalars(writer, **options)
        scalars._clock = iter(float(second) for second in range(100)).__next__
        scalars._read = iter([tensorboard._sums(text) for text in texts]).__next__
        return writer, scalars

    def test_a_point_is_the_mean_of_its_steps(self):
        writer, scalars = self.made([METRICS.format(bytes=1000, seconds=2), METRICS.format(bytes=5000, seconds=4)], every=2)
        with member():
            for _ in range(3):
                scalars.step()
        self.assertEqual(writer.said, [("coordd/step_seconds", 0.5, 2), ("coordd/collective_seconds", 1.0, 2),
                                       ("coordd/payload_bytes", 2000.0, 2), ("coordd/arrival_lag_seconds", 0.25, 2),
                                       ("coordd/size", 4, 2)])

    def test_steps_may_have_numbers_of_the_program(self):
        writer, scalars = self.made([""] * 3, every=1, prefix="")
        with member():
            for number in (70, 71, 80):
                scalars.step(number)
        self.assertEqual([(name, step) for name, _, step in writer.said],
                         [("step_seconds", 71), ("size", 71), ("step_seconds", 80), ("size", 80)])

    def test_a_new_worker_counts_from_nothing(self):
        writer, scalars = self.made([METRICS.format(bytes=9000, seconds=9), METRICS.format(bytes=300, seconds=1)], every=1)
        with member():
            scalars.step()
            scalars.step()
        self.assertIn(("coordd/payload_bytes", 400.0, 1), writer.said)
        self.assertIn(("coordd/collective_seconds", 1.0, 1), writer.said)

    def test_metrics_that_do_not_answer_end_nothing(self):
        worker = unittest.mock.Mock()
        worker.metrics_address.return_value = "127.0.0.1:1"
        with unittest.mock.patch.object(_running.state, "worker", worker):
            self.assertEqual(tensorboard._read_own_metrics(), {})

    def test_mistakes_have_a_sentence(self):
        with self.assertRaisesRegex(InvalidArgumentError, "every is 0"):
            tensorboard.Scalars(Remembers(), every=0)
        with self.assertRaisesRegex(InvalidArgumentError, "a str without add_scalar"):
            tensorboard.Scalars("runs")
        with self.assertRaisesRegex(ValueError, "not initialised"):
            tensorboard.Scalars(Remembers()).step()

    def test_without_a_library_it_says_what_to_install(self):
        absent = {"torch.utils.tensorboard": None, "tensorboardX": None}
        with member(), unittest.mock.patch.dict(sys.modules, absent), self.assertRaisesRegex(ImportError, "pip install tensorboard"):
            tensorboard.Scalars()


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no torch here")
class OfAJob(processes.TestCase):

    def run_job(self, *arguments):
        environment = processes.clean_environment(COORDD_LIBRARY=os.path.join(processes.BUILD, "lib", "libcoordd.so"),
                                                  PYTHONPATH=os.pathsep.join([PACKAGE, os.environ.get("PYTHONPATH", "")]),
                                                  OMP_NUM_THREADS="1", http_proxy="http://127.0.0.1:1")
        status, said = self.run_command(processes.program("coordrun"), "-np", "2", "--", sys.executable, "-c", JOB, *arguments,
                                        environment=environment)
        self.assertEqual(status, 0, said)
        return said

    def test_the_figures_are_those_of_the_rank(self):
        said = self.run_job()
        points = json.loads(said[said.index("said ") + 5:].splitlines()[0])
        self.assertEqual(sorted({step for _, _, step in points}), [10, 20])
        at_end = {name: value for name, value, step in points if step == 20}
        self.assertEqual(at_end["coordd/payload_bytes"], 400)
        self.assertEqual(at_end["coordd/size"], 2)
        self.assertGreater(at_end["coordd/collective_seconds"], 0)
        self.assertGreater(at_end["coordd/step_seconds"], 0)
        self.assertIn("coordd/arrival_lag_seconds", at_end)

    @unittest.skipIf(importlib.util.find_spec("tensorboard") is None, "no tensorboard here")
    def test_tensorboard_reads_what_each_rank_has_written(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        folder = os.path.join(self.folder, "runs")
        self.run_job(folder)
        for rank in ("rank0", "rank1"):
            events = EventAccumulator(os.path.join(folder, rank))
            events.Reload()
            self.assertEqual([(point.step, point.value) for point in events.Scalars("coordd/size")], [(10, 2.0), (20, 2.0)])
            self.assertEqual(events.Scalars("coordd/payload_bytes")[-1].value, 400.0)


if __name__ == "__main__":
    unittest.main()
