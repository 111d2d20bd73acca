"""Ranks that differ from each other, and functions that were traced when there were other ranks."""

import importlib.util
import unittest

from programs_test import ProgramTest

# Each rank trains another head, of the same shape: their gradients are not to be added up.
OTHER_HEADS = """
import sys
import keras
import tensorflow as tf
import coordd.keras
import coordd.tensorflow as hvd

hvd.init()
inputs = keras.Input((2,))
heads = [keras.layers.Dense(1, use_bias=False, name=name)(inputs) for name in ("shared", "first", "second")]
model = keras.Model(inputs, heads)
optimizer = coordd.keras.DistributedOptimizer(keras.optimizers.SGD(1.0))
optimizer.build(model.trainable_variables)


def step(x):
    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        found = model(x)
        loss = tf.reduce_sum(found[0] + found[1 + hvd.rank()])
    if sys.argv[2] == "tape":
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)
    return optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)


try:
    (tf.function(step) if sys.argv[1] == "graph" else step)(tf.ones([1, 2]))
    print("went through", flush=True)
except tf.errors.OpError as error:
    print("rank", hvd.rank(), "ended with", " ".join(str(error).split()), flush=True)
hvd.shutdown()
"""

# Traced by a rank that is alone, and run by two.
TRACED_ALONE = """
import os
import tensorflow as tf
import coordd.tensorflow as hvd

own = int(os.environ["COORDD_RANK"])
layer = hvd.SyncBatchNormalization()
layer.build((None, 1))
weight = tf.Variable(1.0)


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = 6.0 * weight
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(weight)
    return layer(x, training=True), tape.gradient(loss, weight)


for members in ([own], [0, 1]):
    hvd.init(comm=members)
    normal, gradient = step(tf.fill([4, 1], float(own)))
    size = hvd.size()
    hvd.shutdown()
assert abs(float(normal[0, 0]) - (2 * own - 1)) < 0.01, normal
assert float(gradient) == 3.0, gradient
print("right with", size, "ranks", flush=True)
"""

# Compiled by other ranks than those that run it.
JAX_OTHER_RANKS = """
import os
import jax
import jax.numpy as jnp
import coordd.jax as hvd

own = int(os.environ["COORDD_RANK"])
gather = jax.jit(lambda x: hvd.allgather(x, name="gather"))
gradient = jax.jit(jax.grad(lambda x: hvd.broadcast(x, 0, name="broadcast").sum()))
for members in ([0, 1], [1, 0], [own]):
    hvd.init(comm=members)
    assert gradient(jnp.ones(2)).tolist() == [float(hvd.rank() == 0)] * 2, (hvd.rank(), members)
    try:
        assert gather(jnp.ones(1) * hvd.rank()).tolist() == [0.0, 1.0] and hvd.size() == 2
    except jax.errors.JaxRuntimeError as error:
        assert hvd.size() == 1 and "has 4 bytes, but the program of XLA is for 8" in str(error), error
    hvd.shutdown()
print("ended", flush=True)
"""


class OtherRanks(ProgramTest):

    def test_gradients_of_other_variables_are_not_added_up(self):
        names = {"eager": (r"gradients\.0\.without\.2", r"gradients\.0\.without\.1"), "graph": (r"gradients\.1", r"gradients\.2")}
        for mode, whose in (("eager", "tape"), ("eager", "optimizer"), ("graph", "tape"), ("graph", "optimizer")):
            with self.subTest(mode=mode, whose=whose):
                _, said = self.run_program(["-np", "2"], OTHER_HEADS, mode, whose, COORDD_TIMEOUT="5")
                self.assertNotIn("went through", said)
                first, second = names[mode]
                self.assertRegex(said, f"rank 0 ended with .*{first}|rank 1 ended with .*{second}")

    def test_what_one_rank_has_traced_is_right_with_two(self):
        status, said = self.run_program(["-np", "2"], TRACED_ALONE)
        self.assertEqual((status, said.count("right with 2 ranks")), (0, 2), said)

    @unittest.skipIf(importlib.util.find_spec("jax") is None, "no jax here")
    def test_jax_programs_see_that_the_ranks_are_others(self):
        status, said = self.run_program(["-np", "2"], JAX_OTHER_RANKS)
        self.assertEqual((status, said.count("ended")), (0, 2), said)


if __name__ == "__main__":
    unittest.main()
