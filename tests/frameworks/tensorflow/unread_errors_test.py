"""A rank is lost while JAX computes what nobody reads: programs learn of it all the same, and only once."""

import importlib.util
import os
import re
import sys
import unittest

from programs_test import ROOT, ProgramTest

if importlib.util.find_spec("jax") is None:
    print(f"SKIPPED: {sys.executable} has no jax; tools/test-frameworks --tensorflow makes an environment that has it", file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, os.path.join(ROOT, "client", "python"))
import jax  # noqa: E402

from coordd import _ends  # noqa: E402

# The product keeps JAX busy, so that step() returns before coordd has been called.
UNREAD = """
import os
import signal
import sys
import jax
import coordd.jax as hvd

hvd.init()
step = jax.jit(lambda x: hvd.allreduce(jax.numpy.tanh(x @ x), name="step"))
x = step(jax.numpy.ones((1000, 1000))).block_until_ready()
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
x = step(x)
if sys.argv[1] == "shutdown":
    hvd.shutdown()
if sys.argv[1] == "seen":
    try:
        x.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        print("saw", error, flush=True)
if sys.argv[1] == "uncaught":
    x.block_until_ready()
print("came to its end", flush=True)
if sys.argv[1] == "status":
    sys.exit(3)
"""

# The last step's error is in the weights alone: Keras reads the loss, which was there before, and swallows what it meets.
UNREAD_FIT = """
import os
import signal
import keras
import numpy
import coordd.keras as hvd

hvd.init()
model = keras.Sequential([keras.layers.Input((400,)), keras.layers.Dense(400), keras.layers.Dense(400)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
x = numpy.ones((64, 400), "float32")


class Kill(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if hvd.rank() == 1 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)


model.fit(x, x, batch_size=16, verbose=0, callbacks=[Kill()])
print("came to its end", flush=True)
"""

# Keras's filter of tracebacks stands between the program and coordd.
OWN_LINE = """
import keras
import coordd.keras as hvd

hvd.init()
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")


def train():
    model.fit(keras.ops.ones((2, 2)), keras.ops.ones((2, 1)), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(5)])


train()
"""

SENTENCE = r"a collective has failed whose result the program did not ask for: .*generation 1 ended: rank 1 .* was lost"


class UnreadErrors(ProgramTest):

    def run_survivor(self, text, *arguments, **variables):
        """What rank 0 has printed, and its status."""
        _, said = self.run_program(["-np", "2", "--min-np", "1"], text, *arguments, **variables)  # otherwise it may be ended by SIGTERM
        ends = re.findall(r"rank 0 (?:\(pid \d+\) )?exited with status (\d+)", said)
        self.assertEqual(len(ends), 1, said)
        return "\n".join(line for line in said.splitlines() if line.startswith("[0]")), int(ends[0])

    def test_a_program_that_ends_without_asking_fails(self):
        for how, wanted in (("exit", 1), ("status", 3)):
            with self.subTest(how=how):
                said, status = self.run_survivor(UNREAD, how)
                self.assertEqual(status, wanted, said)
                self.assertRegex(said, r"(?m)^\[0\] coordd: " + SENTENCE)
                self.assertIn("came to its end", said)
                self.assertNotIn("Traceback", said)

    def test_shutdown_raises_it(self):
        said, status = self.run_survivor(UNREAD, "shutdown")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"coordd\.exceptions\.HorovodInternalError: " + SENTENCE)
        self.assertNotIn("came to its end", said)

    def test_what_the_program_has_seen_is_not_told_again(self):
        said, status = self.run_survivor(UNREAD, "seen")
        self.assertEqual(status, 0, said)
        self.assertEqual((said.count("was lost"), said.count("came to its end")), (1, 1), said)
        said, status = self.run_survivor(UNREAD, "uncaught")
        self.assertEqual((status, said.count("Traceback"), said.count("was lost")), (1, 1, 1), said)

    def test_what_has_waited_for_it_is_not_told_one_by_one(self):
        text = "INTERNAL: " + 9 * "Error dispatching computation: " + "tensor a: a: a: lost"
        kind = jax.errors.JaxRuntimeError
        self.assertTrue(_ends.describe(kind, kind(text), None).endswith(": INTERNAL: Error dispatching computation: tensor a: a: a: lost"))
        self.assertEqual(_ends.describe(RuntimeError, RuntimeError(text), None), "RuntimeError: " + text)  # no error of JAX

    def test_the_programs_own_line_is_told(self):
        _, said = self.run_program(["-np", "2"], OWN_LINE, KERAS_BACKEND="jax")
        self.assertRegex(said, r"root rank 5, expected 0 to 1 \(program\.py, line 11, in train\)")

    def test_fit_raises_it(self):
        said, status = self.run_survivor(UNREAD_FIT, KERAS_BACKEND="jax")
        self.assertEqual((status, said.count("Traceback"), said.count("was lost")), (1, 1, 1), said)
        self.assertNotIn("came to its end", said)


if __name__ == "__main__":
    unittest.main()
