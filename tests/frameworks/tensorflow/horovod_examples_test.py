"""Horovod's own programs for TensorFlow, as they are, through coordrun --horovod with Keras 2.

They are not part of this repository: $COORDD_HOROVOD_EXAMPLES names the folder examples/ of a checkout of Horovod;
`tools/test-frameworks --tensorflow --horovod-examples FOLDER` sets it.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = os.environ.get("COORDD_HOROVOD_EXAMPLES", "")
if not FOLDER or importlib.util.find_spec("tf_keras") is None:
    print("SKIPPED: $COORDD_HOROVOD_EXAMPLES names no folder with Horovod's examples, or there is no tf_keras", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
COORDRUN = os.path.join(os.environ.get("COORDD_BUILD_DIR", os.path.join(ROOT, "build")), "bin", "coordrun")
HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 1200.0


def worker_of(folder, rank):
    """The process of this rank whose folder for temporary files this is."""
    wanted = {f"COORDD_RANK={rank}".encode(), f"TMPDIR={folder}".encode()}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if wanted <= set(environment.read().split(b"\0")):
                    return int(pid)
        except OSError:
            pass  # it has ended
    raise AssertionError(f"no worker {rank} in {folder}")


class HorovodExamples(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="coordd-horovod-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name  # they write checkpoints where they are started
        self.environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python"), "TF_CPP_MIN_LOG_LEVEL": "3",
                            "TF_USE_LEGACY_KERAS": "1", "COORDD_TIMEOUT": "120", "TMPDIR": self.folder,
                            "PYTHONUNBUFFERED": "1"}  # what they print is here when it is printed

    def run_example(self, name, *arguments, flags=("-np", "2")):
        path = os.path.join(os.path.abspath(FOLDER), name)
        self.assertTrue(os.path.exists(path), path)
        ended = subprocess.run([COORDRUN, "--horovod", *flags, "--", sys.executable, os.path.join(HERE, "with_stub_data.py"), path,
                                *arguments], env=self.environment, cwd=self.folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout[-8000:])
        return ended.stdout

    def assert_learns(self, losses, said):
        self.assertGreater(len(losses), 2, said[-4000:])
        self.assertLess(losses[-1], 0.2 * losses[0], said[-4000:])

    def test_keras_mnist(self):
        said = self.run_example("tensorflow2/tensorflow2_keras_mnist.py")
        self.assert_learns([float(loss) for loss in re.findall(r" loss: ([\d.]+(?:e-\d+)?)", said)], said)
        self.assertIn("finished gradual learning rate warmup", said)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "checkpoint-24.h5")))

    def test_mnist(self):
        said = self.run_example("tensorflow2/tensorflow2_mnist.py")
        self.assert_learns([float(loss) for loss in re.findall(r"Step #\d+\tLoss: ([\d.]+)", said)], said)

    def test_synthetic_benchmark(self):
        for more in ((), ("--fp16-allreduce",)):
            said = self.run_example("tensorflow2/tensorflow2_synthetic_benchmark.py", "--no-cuda", "--model", "MobileNet",
                                    "--batch-size", "2", "--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2",
                                    *more)
            self.assertRegex(said, r"Total img/sec on 2 CPU\(s\): \d+\.\d \+-\d+\.\d")

    def test_keras_synthetic_benchmark(self):
        for more in ((), ("--fp16-allreduce",)):
            said = self.run_example("tensorflow2/tensorflow2_keras_synthetic_benchmark.py", "--no-cuda", "--model", "MobileNet",
                                    "--batch-size", "2", "--num-batches-per-iter", "1", "--num-iters", "3", *more)
            self.assertRegex(said, r"Total img/sec on 2 CPU\(s\): \d+\.\d \+-\d+\.\d")

    def run_and_kill(self, name, sign):
        """What an elastic example of two workers prints, whose rank 1 is killed when it has printed `sign`."""
        path = os.path.join(os.path.abspath(FOLDER), name)
        command = [COORDRUN, "--horovod", "-np", "2", "--min-np", "1", "--", sys.executable, os.path.join(HERE, "with_stub_data.py"), path]
        said, killed = [], False
        with subprocess.Popen(command, env=self.environment, cwd=self.folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as child:
            began = time.monotonic()
            for line in child.stdout:
                said.append(line)
                if time.monotonic() - began > PATIENCE_S:
                    child.kill()
                if not killed and re.search(sign, line):
                    killed = True
                    os.kill(worker_of(self.folder, rank=1), signal.SIGKILL)
        text = "".join(said)
        self.assertTrue(killed, text[-4000:])
        self.assertEqual(child.returncode, 0, text[-8000:])
        self.assertRegex(text, r"rank 1 .* was killed by SIGKILL .*1 worker goes on", text[-8000:])
        return text

    def test_elastic_keras_mnist(self):
        said = self.run_and_kill("elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py", r"^\[0\] .*Epoch 2/")
        self.assert_learns([float(loss) for loss in re.findall(r" loss: ([\d.]+(?:e-\d+)?)", said)], said)

    def test_elastic_mnist(self):
        said = self.run_and_kill("elastic/tensorflow2/tensorflow2_mnist_elastic.py", r"Step #10\t")
        steps = [int(step) for step in re.findall(r"Step #(\d+)\tLoss", said)]
        self.assertGreater(steps[-1], 50, said)  # alone it makes 100
        losses = [float(loss) for loss in re.findall(r"Step #\d+\tLoss: ([\d.]+)", said)]
        self.assertLess(losses[-1], losses[0], said)


if __name__ == "__main__":
    unittest.main()
