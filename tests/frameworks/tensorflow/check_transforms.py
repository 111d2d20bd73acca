"""Loops that TensorFlow vectorises, Jacobians, and forward mode: through collectives as through anything else."""

import numpy
import tensorflow as tf

import coordd.tensorflow as hvd


def collectives():
    """Each of a vector of as many elements as there are ranks."""
    return {
        "allreduce": lambda x: hvd.allreduce(x, name="j.reduce", op=hvd.Sum),
        "unnamed": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "fp16": lambda x: hvd.allreduce(x, name="j.fp16", compression=hvd.Compression.fp16),
        "group": lambda x: sum(hvd.grouped_allreduce([x, 2 * x], name="j.group")),
        "gather": lambda x: hvd.allgather(x, name="j.gather"),
        "gathers": lambda x: hvd.grouped_allgather([x, x[:1]], name="j.gathers")[1],
        "broadcast": lambda x: hvd.broadcast(x, hvd.size() - 1, name="j.broadcast"),
        "alltoall": lambda x: hvd.alltoall(x, name="j.alltoall"),
        "scatter": lambda x: hvd.reducescatter(x, name="j.scatter", op=hvd.Sum),
        "scatters": lambda x: hvd.grouped_reducescatter([x, x], name="j.scatters")[0],
    }


def own():
    return tf.range(1.0, hvd.size() + 1.0) * (hvd.rank() + 1.0)


def expect(found, wanted, what):
    assert numpy.allclose(found, wanted, rtol=1e-3), (what, found, wanted)


def check_vectorised_loops():
    batch = tf.stack([own(), 2 * own(), 3 * own()])
    for what, call in collectives().items():
        wanted = tf.map_fn(lambda x: call(x * x), batch, parallel_iterations=1)  # noqa: B023
        expect(tf.vectorized_map(lambda x: call(x * x), batch), wanted, what)  # noqa: B023
        same = tf.vectorized_map(lambda x: call(own()) + 0 * tf.reduce_sum(x), batch)  # noqa: B023
        expect(same, tf.stack(3 * [call(own())]), what)


def jacobian(call, x, **arguments):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        result = call(x * x)
    return tape.jacobian(result, x, **arguments)


def check_jacobians():
    for what, call in collectives().items():
        wanted = jacobian(call, own(), experimental_use_pfor=False, parallel_iterations=1)
        expect(jacobian(call, own()), wanted, what)
        expect(tf.function(lambda x: jacobian(call, x))(own()), wanted, what)  # noqa: B023


def check_jacobians_of_a_distributed_tape():
    x = tf.fill([2, 1], hvd.rank() + 1.0)
    for name in ("jacobian", "batch_jacobian"):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            result = x * x
        local = getattr(tape, name)(result, x)
        expect(getattr(hvd.DistributedGradientTape(tape), name)(result, x), hvd.allreduce(local, name="j.tape"), name)


def check_forward_mode():
    def forward(call, x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            result = call(x * x)
        return accumulator.jvp(result)

    for what, call in collectives().items():
        wanted = call(2 * own())  # all of them are linear
        expect(forward(call, own()), wanted, what)
        expect(tf.function(lambda x: forward(call, x))(own()), wanted, what)  # noqa: B023
