"""Ops in a tf.function: orders, shapes that are not known, gradients, XLA, SavedModel, tf.data."""

import tempfile

import numpy
import tensorflow as tf
from check_operations import expect, expect_error, part_of
from ranks import on_sizes

import coordd.tensorflow as hvd
from coordd.exceptions import UnsupportedError


def total():
    return float(sum(range(1, hvd.size() + 1)))


def own():
    return float(hvd.rank() + 1)


def check_other_orders_on_each_rank():
    order = [(i * 13 + 7 * hvd.rank()) % 64 for i in range(64)]

    @tf.function
    def step(x):
        done = {i: hvd.allreduce(x * float(i), name=f"o{i}", op=hvd.Sum) for i in order}
        return [done[i] for i in range(64)]

    for _ in range(5):
        results = step(tf.ones([1000]))
    for i, result in enumerate(results):
        expect(result, tf.fill([1000], float(i * hvd.size())))


def check_shapes_that_are_not_known():
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def step(x):
        found = (hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x), hvd.reducescatter(x, op=hvd.Sum), hvd.broadcast(x, 0),
                 hvd.alltoall(x, splits=tf.one_hot(0, hvd.size(), on_value=tf.shape(x)[0], off_value=0))[0])
        assert [one.shape.as_list() for one in found] == [[None, 2]] * 5
        return found

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def without_rank(x):
        found = hvd.allreduce(x, op=hvd.Sum)
        assert found.shape.rank is None
        return found

    for rows in (7, 3):
        reduced, gathered, part, rooted, sent = step(tf.fill([rows, 2], own()))
        expect(reduced, tf.fill([rows, 2], total()))
        assert gathered.shape == (rows * hvd.size(), 2)
        expect(part, part_of(tf.fill([rows, 2], total())))
        expect(rooted, tf.fill([rows, 2], 1.0))
        assert sent.shape[0] == (rows * hvd.size() if hvd.rank() == 0 else 0)
        expect(without_rank(tf.fill([rows] * 3, own())), tf.fill([rows] * 3, total()))


def check_shapes_that_are_known_stay_known():
    @tf.function
    def step(x):
        assert hvd.allreduce(x).shape.as_list() == [4, 3]
        assert hvd.allgather(x).shape.as_list() == [None, 3]
        assert hvd.rank_op().shape.as_list() == []
        try:
            hvd.allgather(tf.constant(1.0))
        except ValueError as error:
            assert "rank" in str(error)
        else:
            raise AssertionError("an allgather of a scalar was traced")
        return x

    step(tf.ones([4, 3]))


def gradients_of(function, x):
    """In eager mode and in a graph; the same."""
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    eager, graph = gradient(x), tf.function(gradient)(x)
    expect(eager, graph)
    return eager


def check_gradients():
    size, rank, x = hvd.size(), hvd.rank(), tf.fill([4], own())
    expect(gradients_of(lambda x: hvd.allreduce(x * x, op=hvd.Sum), x), tf.fill([4], 2 * own() * size))
    expect(gradients_of(lambda x: hvd.allreduce(x * x), x), tf.fill([4], 2 * own()))
    expect(gradients_of(lambda x: hvd.grouped_allreduce([x, 3 * x], op=hvd.Sum), x), tf.fill([4], 4.0 * size))
    # Each rank's loss weighs a rank's rows by that rank's number: the mean over the ranks that have such a loss.
    weights = lambda gathered: tf.cast(tf.range(tf.shape(gathered)[0]), tf.float32)  # noqa: E731
    rows = tf.fill([rank + 1], own())
    first = float(sum(range(1, rank + 1)))
    expect(gradients_of(lambda x: hvd.allgather(x) * weights(hvd.allgather(tf.stop_gradient(x))), rows),
           tf.range(first, first + rank + 1))
    expect(gradients_of(lambda x: hvd.grouped_allgather([x, 2 * x]), rows), tf.fill([rank + 1], 3.0))
    expect(gradients_of(lambda x: hvd.broadcast(x * x, size - 1), x),
           tf.fill([4], 2 * own()) if rank == size - 1 else tf.zeros([4]))
    expect(gradients_of(lambda x: own() * hvd.alltoall(x), tf.ones([size])), tf.range(1.0, size + 1.0))
    expect(gradients_of(lambda x: own() * hvd.reducescatter(x, op=hvd.Average), tf.ones([size])), tf.range(1.0, size + 1.0))
    expect(gradients_of(lambda x: hvd.grouped_reducescatter([x, x], op=hvd.Sum), tf.ones([size])), tf.fill([size], 2.0 * size))


def check_several_without_names_in_branches_and_loops():
    @tf.function
    def step(x):
        a, b = hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(2 * x, op=hvd.Sum)
        if tf.reduce_sum(x) > 0:
            b = hvd.allreduce(b)
        for _ in tf.range(4):
            a = hvd.allreduce(a)
        return a + b

    expect(step(tf.fill([2], own())), tf.fill([2], 3 * total()))


def check_a_function_that_one_rank_traces_twice():
    """Since it makes a variable there. What is inside of it counts for itself."""
    made = []

    @tf.function
    def inner(x):
        if hvd.rank() == 0 and not made:
            made.append(tf.Variable(1.0))
        return hvd.allreduce(x, op=hvd.Sum) + (made[0] - made[0] if made else 0.0)

    @tf.function
    def step(x):
        return inner(x) + hvd.allreduce(x, op=hvd.Sum) + inner(tf.tile(2 * x, [3]))[:2]

    expect(step(tf.fill([2], own())), tf.fill([2], 4 * total()))


def check_the_rank_is_asked_when_the_function_runs():
    @tf.function
    def step():
        return hvd.rank_op() + 10 * hvd.size_op()

    expect(step(), tf.constant(hvd.rank() + 10 * hvd.size()))


def check_an_error_in_a_graph():
    @tf.function
    def step(x):
        return hvd.allreduce(x, name="graph.error")

    if hvd.size() > 1:
        expect_error(tf.errors.FailedPreconditionError, "rank", lambda: step(tf.ones([2 + hvd.rank()])))
    expect(step(tf.ones([2])), tf.ones([2]))


def check_xla():
    @tf.function(jit_compile=True)
    def step(x, y):
        a, b, c = hvd.grouped_allreduce([2 * x, tf.matmul(y, y), tf.cast(x, tf.float16)], op=hvd.Sum)
        return a + 1, b, c

    a, b, c = step(tf.fill([3], own()), tf.ones([4, 4]))
    expect(a, tf.fill([3], 2 * total() + 1))
    expect(b, tf.fill([4, 4], 4.0 * hvd.size()))
    expect(c, tf.cast(tf.fill([3], total()), tf.float16))

    @tf.function(jit_compile=True)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x * x, op=hvd.Sum, prescale_factor=0.5, name="xla.one")
        return tape.gradient(y, x)

    expect(gradient(tf.fill([3], own())), tf.fill([3], own() * hvd.size()))
    expect(tf.function(lambda z: hvd.allreduce(z, op=hvd.Sum), jit_compile=True)(tf.constant([1 + 2j])),
           tf.constant([hvd.size() * (1 + 2j)]))


def check_questions_under_xla():
    for ask in (hvd.rank_op, hvd.size_op, hvd.local_rank_op, hvd.local_size_op, hvd.process_set_included_op, hvd.barrier, hvd.join):
        expect_error(UnsupportedError, f"{ask.__name__} cannot be compiled by XLA",
                     tf.function(lambda: ask(), jit_compile=True, autograph=False))  # noqa: B023


def check_what_xla_cannot():
    for call in (hvd.allgather, hvd.reducescatter, hvd.alltoall, lambda x: hvd.broadcast(x, 0)):
        compiled = tf.function(call, jit_compile=True, autograph=False)  # which would give the error another class
        expect_error(UnsupportedError, "jit_compile=False", lambda: compiled(tf.ones([4])))
    if hvd.size() > 1:
        wrong = tf.function(lambda x: hvd.allreduce(x, name="xla.error"), jit_compile=True)
        expect_error(tf.errors.InternalError, "has shape", lambda: wrong(tf.ones([1 + hvd.rank()])))


def check_a_saved_model():
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def __call__(self, x):
            return hvd.allreduce(x, name="saved", op=hvd.Sum)

    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(Model(), folder)
        expect(tf.saved_model.load(folder)(tf.fill([3], own())), tf.fill([3], total()))


def check_tf_data():
    """An op within a pipeline, which runs it on threads of its own, and ops beside a pipeline that is busy."""
    data = tf.data.Dataset.range(8).map(lambda i: tf.cast(i, tf.float32) + own(), num_parallel_calls=4).batch(2).prefetch(2)

    @tf.function
    def step(batch):
        return hvd.allreduce(batch, op=hvd.Sum)

    found = numpy.concatenate([step(batch) for batch in data])
    assert (found == numpy.arange(8) * hvd.size() + total()).all(), found
    inside = data.unbatch().map(lambda x: hvd.allreduce(x, op=hvd.Sum, name="data"), num_parallel_calls=1)
    assert (numpy.array(list(inside.as_numpy_iterator())) == found).all()


@on_sizes(2, 3, 4)
def check_a_barrier_in_a_function():
    @tf.function
    def step(x):
        hvd.barrier()
        return hvd.allreduce(x, op=hvd.Sum)

    expect(step(tf.ones([1])), tf.constant([float(hvd.size())]))
