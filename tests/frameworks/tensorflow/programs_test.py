"""Whole programs: Keras on each of its backends, scripts that are written for Horovod, and ranks that are killed or interrupted."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

if importlib.util.find_spec("tensorflow") is None:
    print(f"SKIPPED: {sys.executable} has no tensorflow; tools/test-frameworks --tensorflow makes an environment that has it",
          file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
COORDRUN = os.path.join(os.environ.get("COORDD_BUILD_DIR", os.path.join(ROOT, "build")), "bin", "coordrun")
HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = max(300.0, float(os.environ.get("COORDD_TEST_PATIENCE_S", "0")) / 2)

# As of horovod's tensorflow2_keras_mnist.py and tensorflow2_synthetic_benchmark.py: what they import and call.
HOROVOD_KERAS = """
import numpy
import tensorflow as tf
import horovod.tensorflow.keras as hvd
from horovod.tensorflow.keras.callbacks import MetricAverageCallback

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")
images = numpy.random.default_rng(hvd.rank()).normal(size=(64, 8, 8, 1)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images, (images.mean((1, 2, 3)) > 0).astype("int64"))).repeat().batch(16)
model = tf.keras.Sequential([tf.keras.layers.Conv2D(4, [3, 3], activation="relu"), tf.keras.layers.Flatten(),
                             tf.keras.layers.Dense(2, activation="softmax")])
scaled_lr = 0.001 * hvd.size()
opt = hvd.DistributedOptimizer(tf.optimizers.Adam(scaled_lr), backward_passes_per_step=1, average_aggregated_gradients=True)
legacy = {"experimental_run_tf_function": False} if hasattr(tf.keras.Model, "_get_compile_args") else {}
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"], **legacy)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), MetricAverageCallback(),
             hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1)]
model.fit(dataset, steps_per_epoch=4, callbacks=callbacks, epochs=4, verbose=0)
weights = [hvd.allgather(w[None], name="w") for w in model.get_weights()]
assert all((numpy.asarray(one) == numpy.asarray(one)[0]).all() for one in weights)
print("same weights on", hvd.size(), "ranks", hvd.rank(), tf.keras.Model.__module__)
"""

HOROVOD_TAPE = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
data = tf.random.uniform([8, 16])
target = tf.random.uniform([8, 1], minval=0, maxval=9, dtype=tf.int64)
model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
opt = tf.optimizers.SGD(0.01)
compression = hvd.Compression.fp16


@tf.function
def benchmark_step(first_batch):
    with tf.GradientTape() as tape:
        probs = model(data, training=True)
        loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)(target, probs)
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(gradients, model.trainable_variables))


model.build((8, 16))
opt.build(model.trainable_variables)
for index in range(4):
    benchmark_step(first_batch=index == 0)
    if index == 0:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables() if callable(opt.variables) else opt.variables, root_rank=0)
same = hvd.allgather(model.trainable_variables[0][None] if isinstance(model.trainable_variables[0], tf.Variable)
                     else model.trainable_variables[0].value[None])
assert (same == same[:1]).numpy().all()
print("same weights on", hvd.size(), "ranks", hvd.rank(), tf.keras.Model.__module__)
"""

# Of Keras 2: gradients of two steps for one update, summed as by Horovod and averaged, in each way in which fit() calls an optimizer.
ACCUMULATION = """
import numpy
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
for mode in ("eager", "graph", "xla"):
    for average in (False, True):
        for make in (tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD):
            opt = hvd.DistributedOptimizer(make(0.5), backward_passes_per_step=2, average_aggregated_gradients=average)
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(1,))])
            # The gradient of a batch is that of minus the weight times the rank's number, from 1.
            model.compile(opt, lambda wanted, found: -tf.reduce_mean(found) * (hvd.rank() + 1.0), run_eagerly=mode == "eager",
                          jit_compile=mode == "xla")
            model.fit(numpy.ones((5, 1)), numpy.ones((5, 1)), batch_size=1, epochs=1, verbose=0)
            step = 0.5 * sum(range(1, hvd.size() + 1)) / hvd.size()
            found = float(model.get_weights()[0][0, 0])
            assert abs(found - 2 * step * (1 if average else 2)) < 1e-6, (mode, average, make, found)
            assert int(opt.iterations) == 5
print("accumulated on", hvd.size(), "ranks", hvd.rank())
"""

# A rank is killed in the middle: the others go on in the same traced function, or in the next fit().
LOSS = """
import os
import signal
import sys
import tensorflow as tf
import coordd.tensorflow as hvd

hvd.init()
traced = []
mode = sys.argv[1]


def plain(x):
    traced.append(1)
    return hvd.allreduce(x, name="step", op=hvd.Sum)


step = plain if mode == "eager" else tf.function(plain, jit_compile=mode == "xla")
state = hvd.elastic.TensorFlowState([tf.Variable(0.0)], batch=0)


@hvd.elastic.run
def train(state):
    while state.batch < 30:
        if state.batch == 10 and hvd.size() == 3 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total = float(step(tf.ones([4]))[0])
        assert total == hvd.size(), total
        state.variables[0].assign_add(total)
        state.batch += 1
        state.commit()
    return total


total = train(state)
assert mode == "eager" or len(traced) == 1, traced
assert float(state.variables[0]) == 10 * 3 + 20 * 2, state.variables
print("went on with", int(total), "ranks", hvd.rank())
"""

LOSS_IN_FIT = """
import os
import signal
import sys
import keras
import numpy
import coordd.keras as hvd

hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", run_eagerly=sys.argv[1] == "eager",
              jit_compile=sys.argv[1] == "xla")
state = hvd.elastic.KerasState(model, epoch=0, batch=0)
x = numpy.random.default_rng(hvd.rank()).normal(size=(64, 4)).astype("float32")


class Kill(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if hvd.size() == 3 and hvd.rank() == 1 and state.epoch == 1 and batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)


@hvd.elastic.run
def train(state):
    model.fit(x, x[:, :2], batch_size=16, initial_epoch=state.epoch, epochs=4, verbose=0, callbacks=[
        hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2), Kill()])


train(state)
weights = hvd.allgather_object(model.get_weights())
assert all((one == other).all() for mine in weights for one, other in zip(mine, weights[0]))
print("went on with", hvd.size(), "ranks", hvd.rank(), state.epoch)
"""

JAX_DISTRIBUTED = """
import jax
import coordd.jax as hvd

hvd.initialize(local_device_ids=[0])
from jax.experimental import multihost_utils
found = multihost_utils.process_allgather(jax.numpy.array([hvd.rank() + 1.0])).ravel().tolist()
print("gathered", found, "of", len(jax.devices()), "devices", flush=True)
jax.distributed.shutdown()
hvd.shutdown()
"""

# Rank 1 asks for no result: JAX may not have computed anything when it calls shutdown(), or ends without.
JAX_IN_A_HURRY = """
import sys
import jax
import coordd.jax as hvd

hvd.init()
step = jax.jit(lambda x: hvd.allreduce(jax.numpy.tanh(x @ x), name="step"))
x = jax.numpy.ones((400, 400))
for _ in range(30):
    x = step(x)
if hvd.rank() == 0:
    x.block_until_ready()
if sys.argv[1] == "shutdown":
    hvd.shutdown()
print("ended", flush=True)
"""

# Calls of an XLA program wait one after the other: these two wait for each other.
XLA_ORDERS = """
import tensorflow as tf
import coordd.tensorflow as hvd

hvd.init()
names = ["first", "second"] if hvd.rank() == 0 else ["second", "first"]


@tf.function(jit_compile=True)
def step(x):
    for name in names:
        x = x + hvd.allreduce(x, name=name, op=hvd.Sum)
    return x


try:
    step(tf.ones([4]))
except tf.errors.InternalError as error:
    print("rank", hvd.rank(), "ended with", error, flush=True)
hvd.shutdown()
"""

# The same of JAX: what XLA executes one after the other is whatever it chooses.
JAX_ORDERS = """
import jax
import coordd.jax as hvd

hvd.init()
names = ["first", "second"] if hvd.rank() == 0 else ["second", "first"]
try:
    jax.block_until_ready(jax.jit(lambda x: [hvd.allreduce(x, name=name) for name in names])(jax.numpy.ones(4)))
except Exception as error:
    print("rank", hvd.rank(), "ended with", error, flush=True)
hvd.shutdown()
"""

ENDLESS_FIT = """
import keras
import numpy
import coordd.keras as hvd

hvd.init()
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
x = numpy.ones((64, 4))
model.fit(x, x[:, :2], batch_size=16, epochs=1, verbose=0)
print("steps are made", flush=True)
model.fit(x, x[:, :2], batch_size=16, epochs=10 ** 6, verbose=0)
"""

# Rank 1 ends the epoch three batches before the other, as a callback of Keras's that looks at this rank's loss does.
ONE_STOPS = """
import time

import keras
import numpy
import coordd.keras as hvd


class Stop(keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = hvd.rank() == 1
        time.sleep(2 * (hvd.rank() == 0))  # so that the other waits first


hvd.init()
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
x = numpy.ones((64, 4))
model.fit(x, x[:, :2], batch_size=16, verbose=0, callbacks=[Stop(), hvd.callbacks.MetricAverageCallback()])
"""


class ProgramTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="coordd-tensorflow-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python"), "TF_CPP_MIN_LOG_LEVEL": "3",
                            "COORDD_TIMEOUT": "60", "TMPDIR": self.folder}

    def command(self, flags, text, *arguments):
        path = os.path.join(self.folder, "program.py")
        with open(path, "w", encoding="utf-8") as program:
            program.write(text)
        return [COORDRUN, *flags, "--", sys.executable, path, *arguments]

    def run_program(self, flags, text, *arguments, **variables):
        return self.ended(self.command(flags, text, *arguments), **variables)

    def ended(self, command, **variables):
        """(exit status, what it printed)"""
        done = subprocess.run(command, env={**self.environment, **variables}, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False)
        return done.returncode, done.stdout


class Programs(ProgramTest):

    def test_scripts_for_horovod(self):
        for text in (HOROVOD_KERAS, HOROVOD_TAPE):
            status, said = self.run_program(["--horovod", "-np", "2"], text)
            self.assertEqual((status, said.count("same weights on 2 ranks")), (0, 2), said)

    @unittest.skipIf(importlib.util.find_spec("tf_keras") is None, "no tf_keras here")
    def test_scripts_for_horovod_with_keras_2(self):
        for text in (HOROVOD_KERAS, HOROVOD_TAPE):
            status, said = self.run_program(["--horovod", "-np", "2"], text, TF_USE_LEGACY_KERAS="1")
            self.assertEqual((status, said.count("same weights on 2 ranks")), (0, 2), said)
            self.assertNotIn("weights differ", said)
        lacks = HOROVOD_KERAS.replace("hvd.callbacks.BroadcastGlobalVariablesCallback(0), ", "")
        _, said = self.run_program(["--horovod", "-np", "2"], lacks, TF_USE_LEGACY_KERAS="1")
        self.assertEqual(said.count("coordd: after epoch 1 the ranks' weights differ"), 1, said)

    def test_what_only_keras_2_takes_is_told(self):
        text = HOROVOD_KERAS.replace("model.compile(", "model.compile(experimental_run_tf_function=False, ")
        status, said = self.run_program(["--horovod", "-np", "2"], text)
        self.assertEqual(status, 1, said)
        self.assertIn("coordrun: Keras 3 does not know this argument of Keras 2's", said)

    def test_a_rank_that_ends_an_epoch_before_the_others_says_what_they_need(self):
        status, said = self.run_program(["--coordd-arg=--stall-abort=10", "-np", "2"], ONE_STOPS)
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"coordrun: .*tensor keras.metrics: submitted by rank 1, but not by rank 0 within 10s.*; this rank has ended "
                               r"an epoch that another has not: all ranks need as many batches")

    @unittest.skipIf(importlib.util.find_spec("tf_keras") is None, "no tf_keras here")
    def test_keras_2_accumulates_gradients(self):
        status, said = self.run_program(["--horovod", "-np", "2"], ACCUMULATION, TF_USE_LEGACY_KERAS="1")
        self.assertEqual((status, said.count("accumulated on 2 ranks")), (0, 2), said)

    def test_the_example_goes_on_when_a_worker_dies(self):
        with open(os.path.join(ROOT, "client", "examples", "python", "keras_digits.py"), encoding="utf-8") as program:
            text = program.read().replace("os.path.dirname(os.path.abspath(__file__))",
                                          repr(os.path.join(ROOT, "client", "examples", "python")))
        status, said = self.run_program(["-np", "3", "--min-np", "2"], text, "--elastic", "--crash", "2:3", "--epochs", "6")
        self.assertEqual(status, 0, said)
        self.assertGreater(float(re.findall(r"test accuracy (\S+) with 2 worker", said)[0]), 0.8, said)
        self.assertNotIn("weights differ", said)

    def test_the_benchmark_says_images_per_second(self):
        with open(os.path.join(ROOT, "client", "examples", "python", "tensorflow_synthetic_benchmark.py"), encoding="utf-8") as program:
            status, said = self.run_program(["-np", "2"], program.read(), "--model", "MobileNetV2", "--image-size", "32", "--batch-size",
                                            "2", "--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2")
        self.assertRegex(said, r"Total img/sec on 2 worker\(s\): \d+\.\d \+-\d+\.\d")
        self.assertEqual(status, 0, said)

    @unittest.skipIf(importlib.util.find_spec("jax") is None, "no jax here")
    def test_jax_has_the_devices_of_all_ranks(self):
        status, said = self.run_program(["-np", "2"], JAX_DISTRIBUTED, JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo")
        self.assertEqual((status, said.count("gathered [1.0, 2.0] of 2 devices")), (0, 2), said)

    @unittest.skipIf(importlib.util.find_spec("jax") is None, "no jax here")
    def test_the_example_of_jax_gives_the_weights_of_one_process(self):
        path = os.path.join(ROOT, "client", "examples", "python", "jax_digits.py")
        files = [os.path.join(self.folder, f"{ranks}.npz") for ranks in (1, 2)]
        for ranks, file in zip("12", files):
            status, said = self.ended([COORDRUN, "-np", ranks, "--", sys.executable, path, "--epochs", "4", "--save", file])
            self.assertEqual(status, 0, said)
            self.assertGreater(float(re.findall(rf"test accuracy (\S+) with {ranks} worker", said)[0]), 0.9, said)
        status, said = self.ended([sys.executable, path, "--compare", *files])
        self.assertEqual(status, 0, said)
        self.assertLess(float(said.splitlines()[-1]), 1e-4)

    @unittest.skipIf(importlib.util.find_spec("jax") is None, "no jax here")
    def test_jax_computes_what_it_was_given_before_the_goodbye(self):
        for how in ("shutdown", "exit"):
            with self.subTest(how=how):
                status, said = self.run_program(["-np", "2"], JAX_IN_A_HURRY, how)
                self.assertEqual((status, said.count("ended")), (0, 2), said)

    def test_xla_programs_of_other_orders_say_which(self):
        _, said = self.run_program(["-np", "2"], XLA_ORDERS, COORDD_TIMEOUT="5")
        self.assertRegex(said, r"rank 0 ended with .*tensor first: (.|\n)*rank 1 waits for tensor second, which rank 0 has not submitted|"
                               r"rank 1 ended with .*tensor second: (.|\n)*rank 0 waits for tensor first, which rank 1 has not submitted")

    @unittest.skipIf(importlib.util.find_spec("jax") is None, "no jax here")
    def test_jax_programs_of_other_orders_say_which(self):
        _, said = self.run_program(["-np", "2"], JAX_ORDERS, COORDD_TIMEOUT="5")
        self.assertRegex(said, r"rank 0 ended with .*tensor first: (.|\n)*rank 1 waits for tensor second, which rank 0 has not submitted|"
                               r"rank 1 ended with .*tensor second: (.|\n)*rank 0 waits for tensor first, which rank 1 has not submitted")

    def test_fit_on_two_ranks_is_that_of_one_process(self):
        cases = [("tensorflow", "auto"), ("tensorflow", "true"), ("tensorflow", "eager"), ("jax", "auto"), ("torch", "auto"),
                 ("torch", "auto", "float64")]
        for backend, *mode in cases:
            if importlib.util.find_spec(backend) is None:
                continue
            with self.subTest(backend=backend, mode=mode):
                with open(os.path.join(HERE, "fit.py"), encoding="utf-8") as program:
                    status, said = self.run_program(["-np", "2"], program.read(), *mode, KERAS_BACKEND=backend)
                self.assertEqual((status, said.count("the same as one process")), (0, 2), said)


class Losses(ProgramTest):

    def test_a_rank_is_killed(self):
        for mode in ("eager", "graph", "xla"):
            with self.subTest(mode=mode):
                status, said = self.run_program(["-np", "3", "--min-np", "2"], LOSS, mode)
                self.assertEqual((status, said.count("went on with 2 ranks")), (0, 2), said)

    def test_a_rank_is_killed_in_fit(self):
        for mode in ("graph", "eager", "xla"):
            with self.subTest(mode=mode):
                status, said = self.run_program(["-np", "3", "--min-np", "2"], LOSS_IN_FIT, mode)
                self.assertEqual((status, said.count("went on with 2 ranks")), (0, 2), said)

    def test_a_rank_is_killed_in_fit_on_other_backends(self):
        for backend in ("jax", "torch"):
            if importlib.util.find_spec(backend) is None:
                continue
            for flags in ([], ["--on-failure", "continue"]):
                with self.subTest(backend=backend, flags=flags):
                    status, said = self.run_program(["-np", "3", "--min-np", "2", *flags], LOSS_IN_FIT, "graph", KERAS_BACKEND=backend)
                    self.assertEqual((status, said.count("went on with 2 ranks")), (0, 2), said)

    def test_a_rank_is_killed_and_nothing_is_taken_back(self):
        status, said = self.run_program(["-np", "3", "--min-np", "2", "--on-failure", "continue"], LOSS_IN_FIT, "graph")
        self.assertEqual((status, said.count("went on with 2 ranks")), (0, 2), said)

    def test_ctrl_c_ends_fit(self):
        with tempfile.NamedTemporaryFile("w+") as output:
            child = subprocess.Popen(self.command(["-np", "2"], ENDLESS_FIT), env=self.environment, stdout=output,
                                     stderr=subprocess.STDOUT, start_new_session=True)
            try:
                end = time.monotonic() + PATIENCE_S
                while len(re.findall("steps are made", said_in(output))) < 2:
                    self.assertLess(time.monotonic(), end, said_in(output))
                    self.assertIsNone(child.poll(), said_in(output))
                    time.sleep(0.1)
                os.killpg(child.pid, signal.SIGINT)
                status = child.wait(PATIENCE_S)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            self.assertEqual(status, 130, said_in(output))


def said_in(file):
    with open(file.name, encoding="utf-8", errors="replace") as said:
        return said.read()


if __name__ == "__main__":
    unittest.main()
