"""Tapes, optimizers and layers: what several ranks compute is what one process would."""

import functools

import keras
import numpy
import tensorflow as tf
from check_operations import expect, expect_error
from ranks import on_sizes

import coordd.keras
import coordd.tensorflow as hvd


def mean(function):
    """Of function(rank) over the ranks."""
    return sum(function(rank) for rank in range(hvd.size())) / hvd.size()


def check_a_tape():
    w, other, unused = tf.Variable(tf.ones([3])), tf.Variable(tf.ones([2])), tf.Variable(0.0)

    def gradients(**arguments):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w) * (hvd.rank() + 1.0) + tf.reduce_sum(other) * float(hvd.rank())
        tape = hvd.DistributedGradientTape(tape, **arguments)
        return tape.gradient(loss, [w, [other], unused])

    for wrap in (lambda call: call, tf.function, lambda call: tf.function(call, jit_compile=True)):
        for arguments in ({}, {"groups": 2}, {"groups": [[w, other]]}, {"gradient_predivide_factor": 2.0},
                          {"compression": hvd.Compression.fp16}):
            first, (second,), third = wrap(functools.partial(gradients, **arguments))()
            expect(first, tf.fill([3], 2.0 * mean(lambda rank: rank + 1.0)), arguments)
            expect(second, tf.fill([2], mean(float)), arguments)
            assert third is None
    summed, _, _ = gradients(op=hvd.Sum)
    expect(summed, tf.fill([3], 2.0 * hvd.size() * mean(lambda rank: rank + 1.0)))


def check_a_partial_tape():
    layer, local = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    layer.build([None, 2])
    local.build([None, 2])
    x = tf.fill([1, 2], hvd.rank() + 1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x)) + tf.reduce_sum(local(x))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=[local])
    shared, own = tape.gradient(loss, [layer.kernel.value, local.kernel.value])
    expect(shared, tf.fill([2, 1], mean(lambda rank: rank + 1.0)))
    assert numpy.allclose(own, (hvd.rank() + 1.0) / hvd.size())


def check_slices_of_an_embedding():
    table = tf.Variable(tf.zeros([8, 2]))

    def gradient(sparse_as_dense):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 7]))
        found = hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense).gradient(loss, table)
        assert isinstance(found, tf.IndexedSlices) != sparse_as_dense
        return tf.convert_to_tensor(found)

    for sparse_as_dense in (False, True):
        found = gradient(sparse_as_dense)
        expect(found[7], tf.ones([2]))
        assert numpy.allclose(found[0], 1.0 / hvd.size())


def check_an_optimizer_of_tensorflow_1():
    variable = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    pairs = optimizer.compute_gradients(lambda: variable * (hvd.rank() + 1.0), [variable])
    optimizer.apply_gradients(pairs)
    expect(variable.value(), tf.constant([1.0 - mean(lambda rank: rank + 1.0)]))


def trained(make, jit, accumulate=None, steps=4, **arguments):
    """Weights after some steps of the optimizer that `make` makes; each rank's gradient is its number and the step's."""
    variables = [keras.Variable(numpy.ones((2, 2)), dtype="float32"), keras.Variable(numpy.ones(3), dtype="float32")]
    more = {} if accumulate is None else {"gradient_accumulation_steps": accumulate}
    optimizer = hvd.DistributedOptimizer(make(**more), **arguments)
    optimizer.build(variables)

    def step(number):
        gradient = (number + 1.0) * (hvd.rank() + 1.0)
        optimizer.apply([tf.fill([2, 2], gradient), tf.fill([3], 2 * gradient)], variables)

    call = step if jit == "eager" else tf.function(step, jit_compile=jit)
    for number in range(steps):
        call(tf.constant(float(number)))
    alone = [keras.Variable(numpy.ones((2, 2)), dtype="float32"), keras.Variable(numpy.ones(3), dtype="float32")]
    reference = make(**more)
    for number in range(steps):
        gradient = (number + 1.0) * mean(lambda rank: rank + 1.0)
        reference.apply([tf.fill([2, 2], gradient), tf.fill([3], 2 * gradient)], alone)
    for one, other in zip(variables, alone):
        assert numpy.allclose(one, other, atol=1e-6), (jit, one, other)


def check_optimizers_of_keras():
    for make in (keras.optimizers.Adam, lambda **more: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5, **more)):
        for jit in ("eager", False, True):
            trained(make, jit)
            trained(make, jit, accumulate=2)
    trained(keras.optimizers.Adam, False, groups=1)
    trained(keras.optimizers.Adam, False, compression=hvd.Compression.fp16)


def check_ranks_that_have_made_other_numbers_of_optimizers():
    for _ in range(hvd.rank() + 1):
        keras.optimizers.SGD()
    for jit in ("eager", False):
        trained(keras.optimizers.SGD, jit, steps=1)


def check_accumulation_reduces_once_per_update():
    calls = []
    reduce = coordd.keras._reduce.reduce_gradients
    coordd.keras._reduce.reduce_gradients = lambda *arguments: calls.append(1) or reduce(*arguments)
    try:
        trained(keras.optimizers.SGD, "eager", accumulate=2, steps=4)
    finally:
        coordd.keras._reduce.reduce_gradients = reduce
    assert len(calls) == 2, calls


def check_the_optimizer_stays_the_same():
    optimizer = keras.optimizers.Adam(0.5)
    variable = keras.Variable(numpy.ones(2, "float32"))
    optimizer.apply([tf.ones([2])], [variable])
    distributed = hvd.DistributedOptimizer(optimizer)
    assert distributed is optimizer and isinstance(distributed, keras.optimizers.Adam) and int(optimizer.iterations) == 1
    expect_error(ValueError, "already", lambda: hvd.DistributedOptimizer(distributed))
    expect_error(ValueError, "expected an optimizer", lambda: hvd.DistributedOptimizer(3))
    expect_error(ValueError, "expected Average or Sum", lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Max))


def check_local_variables_and_sums():
    variables = [keras.Variable(numpy.zeros(1, "float32")), keras.Variable(numpy.zeros(1, "float32"))]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.register_local_var(variables[1])
    optimizer.apply([tf.ones([1]), tf.ones([1])], variables)
    assert numpy.allclose(variables[0], -hvd.size()) and numpy.allclose(variables[1], -1.0 / hvd.size())
    summed = keras.Variable(numpy.zeros(1, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    optimizer.build([summed])
    for _ in range(2):
        optimizer.apply([tf.ones([1])], [summed])
    assert numpy.allclose(summed, -2.0), summed


def check_synchronised_batch_normalisation():
    """Forward, backward and running statistics over batches of other sizes are those of one process with all of them."""
    def batch(rank):
        return tf.cast(tf.reshape(tf.range((rank + 2) * 3), [rank + 2, 3]) % 5 + rank, tf.float32)

    def run(layer, x, shares):
        layer.build(x.shape)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(layer(x, training=True)))
        gradients = tape.gradient(loss, [x, layer.gamma.value])
        return gradients[0], hvd.allreduce(gradients[1], op=hvd.Sum) if shares else gradients[1]

    layer, alone = hvd.SyncBatchNormalization(momentum=0.5), keras.layers.BatchNormalization(momentum=0.5)
    whole = tf.concat([batch(rank) for rank in range(hvd.size())], 0)
    own, gamma = run(layer, batch(hvd.rank()), True)
    expected, expected_gamma = run(alone, whole, False)
    first = sum(rank + 2 for rank in range(hvd.rank()))
    assert numpy.allclose(own, expected[first:first + hvd.rank() + 2], atol=1e-5)
    assert numpy.allclose(gamma, expected_gamma, atol=1e-4)
    assert numpy.allclose(layer.moving_mean, alone.moving_mean) and numpy.allclose(layer.moving_variance, alone.moving_variance)


def check_synchronous_batches_of_two_towers():
    """One layer, called twice in a step: none of the two waits for the other."""
    layer = hvd.SyncBatchNormalization()

    @tf.function
    def step(one, other):
        return layer(one, training=True), layer(other, training=True)

    rank, count = float(hvd.rank()), hvd.size()
    for _ in range(10):
        first, second = step(tf.fill([2, 3], rank), tf.fill([2, 3], 2 * rank))
    middle, spread = (count - 1) / 2, (count * count - 1) / 12
    assert numpy.allclose(first, (rank - middle) / numpy.sqrt(spread + layer.epsilon), atol=1e-4), first
    assert numpy.allclose(second, 2 * (rank - middle) / numpy.sqrt(4 * spread + layer.epsilon), atol=1e-4), second


@on_sizes(2)
def check_an_infinity_on_one_rank():
    """With the policy mixed_float16 a rank whose gradients are not finite makes no step: all do not."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
        x = numpy.ones((8, 4), "float32")
        if hvd.rank() == 1:
            x[3] = 60000.0
        model.set_weights([numpy.full_like(one, 0.5) for one in model.get_weights()])
        model.fit(x, numpy.ones((8, 1)), batch_size=8, epochs=2, verbose=0)
        assert all((one == 0.5).all() for one in model.get_weights()), model.get_weights()
        naive = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD())).inner_optimizer)
        assert not isinstance(naive.inner_optimizer, coordd.keras.optimizer.Distributed)
    finally:
        keras.config.set_dtype_policy(before)
