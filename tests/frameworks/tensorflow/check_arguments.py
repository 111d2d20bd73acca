"""What tapes, optimizers, states and callbacks refuse, each by one sentence, and numbers of NumPy's, which they take."""

import math

import keras
import numpy
import tensorflow as tf
from check_operations import expect_error

import coordd.keras
import coordd.tensorflow as hvd


def tape_with(**arguments):
    return hvd.DistributedGradientTape(tf.GradientTape(), **arguments)


def optimizer_with(**arguments):
    return coordd.keras.DistributedOptimizer(keras.optimizers.SGD(0.1), **arguments)


def old_optimizer_with(**arguments):
    return hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), **arguments)


MAKERS = (tape_with, optimizer_with, old_optimizer_with)


def check_numbers_of_groups():
    for make in MAKERS:
        for name in ("groups", "num_groups"):
            for wrong in (-1, -5, 1.5, True, "2", [keras.Variable(1.0)]):
                expect_error(ValueError, f"{name} is {wrong!r}: expected a number of groups from 0",
                             lambda: make(**{name: wrong}))  # noqa: B023
            assert make(**{name: numpy.int64(2)})._coordd_options.groups == 2
            assert make(**{name: 0})._coordd_options.groups is None


def check_gradients_of_groups():
    """They are reduced with any number of groups."""
    for groups in (None, 0, 1, numpy.int64(2), 5):
        variables = [tf.Variable(tf.ones([3])), tf.Variable(tf.ones([2]))]
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(one) for one in variables) * (hvd.rank() + 1.0)
        for found in hvd.DistributedGradientTape(tape, groups=groups).gradient(loss, variables):
            assert numpy.allclose(found, (hvd.size() + 1) / 2), (groups, found)


def check_numbers_of_passes():
    for wrong in (0, -1, 1.0, 2.5, True, "2", None):
        for make in (optimizer_with, old_optimizer_with):
            expect_error(ValueError, f"backward_passes_per_step is {wrong!r}: expected a whole number from 1",
                         lambda: make(backward_passes_per_step=wrong))  # noqa: B023
    assert optimizer_with(backward_passes_per_step=numpy.int64(2)).gradient_accumulation_steps == 2


def check_what_is_no_compression():
    for wrong in (None, "fp16", 16):
        said = f"compression is {wrong!r}: expected Compression.none, Compression.fp16"
        for make in MAKERS:
            expect_error(ValueError, said, lambda: make(compression=wrong))  # noqa: B023
        for call in (hvd.allreduce, hvd.reducescatter, coordd.keras.allreduce):
            expect_error(ValueError, said, lambda: call(tf.ones([2]), compression=wrong))  # noqa: B023
        for call in (hvd.grouped_allreduce, hvd.grouped_reducescatter):
            expect_error(ValueError, said, lambda: call([tf.ones([2])], compression=wrong))  # noqa: B023


def check_factors_of_gradients():
    for wrong in (0, 0.0, -1, math.inf, math.nan, "2", None):
        for make in MAKERS:
            expect_error(ValueError, f"gradient_predivide_factor is {wrong!r}: expected a number above 0",
                         lambda: make(gradient_predivide_factor=wrong))  # noqa: B023


def check_what_is_no_process_set():
    for wrong in (None, 0):
        said = f"process_set is {wrong!r}: expected a ProcessSet"
        for call in (*MAKERS, lambda **more: hvd.allreduce(tf.ones([1]), **more), lambda **more: hvd.allgather_object(1, **more)):
            expect_error(ValueError, said, lambda: call(process_set=wrong))  # noqa: B023


def check_what_is_no_root():
    for call in (lambda root: hvd.broadcast(tf.ones([1]), root), lambda root: hvd.broadcast_variables([], root),
                 lambda root: hvd.broadcast_object(1, root), lambda root: coordd.keras.broadcast(1.0, root),
                 coordd.keras.callbacks.BroadcastGlobalVariablesCallback):
        expect_error(ValueError, "root_rank is 'a': expected a whole number", lambda: call("a"))  # noqa: B023
        call(numpy.int64(0))


def check_what_is_no_tape_and_no_model():
    for wrong in (None, 3, keras.optimizers.SGD()):
        expect_error(ValueError, "expected a tf.GradientTape", lambda: hvd.DistributedGradientTape(wrong))  # noqa: B023
    for wrong in (None, 3):
        for kind in (coordd.keras.elastic.KerasState, hvd.elastic.TensorFlowKerasState):
            expect_error(ValueError, f"{kind.__name__}: expected a model of Keras, found {wrong!r}", lambda: kind(wrong))  # noqa: B023
