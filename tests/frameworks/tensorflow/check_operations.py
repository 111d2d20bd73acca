"""Every op in eager mode: each dtype and shape, groups, process sets, join, and what is refused."""

import numpy
import tensorflow as tf
from ranks import on_sizes

import coordd.tensorflow as hvd
from coordd.exceptions import HorovodInternalError, InvalidArgumentError, UnsupportedError

DTYPES = [tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64, tf.float16, tf.bfloat16, tf.float32,
          tf.float64]
FLOAT8 = [tf.as_dtype(name) for name in ("float8_e4m3fn", "float8_e5m2")]
COMPLEX = [tf.complex64, tf.complex128]
SHAPES = [(), (1,), (7,), (2, 3), (3, 0), (1, 2, 1, 2, 1, 2, 1, 2, 1, 3)]


def of(rank, shape, dtype):
    """Small whole numbers that differ between ranks and elements."""
    count = int(numpy.prod(shape))
    values = tf.range(count, dtype=tf.float64) % 3 + rank
    if dtype in FLOAT8:  # with few bits for a fraction: each sum of some ranks' numbers is one of its numbers, in whatever order
        values = tf.range(count, dtype=tf.float64) % 2 + rank % 2
    return tf.cast(tf.reshape(values, shape), dtype)


def wide(tensor):
    return tensor.numpy().astype(numpy.complex128 if tensor.dtype.is_complex else numpy.float64)


def expect(found, wanted, what=""):
    assert found.dtype == wanted.dtype, (what, found.dtype, wanted.dtype)
    found, wanted = wide(found), wide(wanted)
    assert found.shape == wanted.shape and (found == wanted).all(), (what, found, wanted)


def expect_error(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return str(error)
    else:
        raise AssertionError(f"expected {kind.__name__} with {text!r}")


def everyones(shape, dtype):
    return [of(rank, shape, dtype) for rank in range(hvd.size())]


def sum_of(shape, dtype):
    whole = numpy.asarray(sum(wide(one) for one in everyones(shape, dtype)))
    return tf.cast(tf.constant(whole), dtype)


def check_allreduce_of_every_dtype_and_shape():
    for dtype in DTYPES + FLOAT8 + COMPLEX:
        for shape in SHAPES:
            expect(hvd.allreduce(of(hvd.rank(), shape, dtype), op=hvd.Sum), sum_of(shape, dtype), (dtype, shape))


def check_the_other_operators():
    mine, all_of_them = of(hvd.rank(), (4,), tf.float64), everyones((4,), tf.float64)
    expect(hvd.allreduce(mine), sum(all_of_them) / hvd.size())
    expect(hvd.allreduce(mine, average=False), sum(all_of_them))
    expect(hvd.allreduce(mine, op=hvd.Min), of(0, (4,), tf.float64))
    expect(hvd.allreduce(mine, op=hvd.Max), of(hvd.size() - 1, (4,), tf.float64))
    expect(hvd.allreduce(mine, op=hvd.Product), tf.reduce_prod(tf.stack(all_of_them), 0))
    expect(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), 2 * sum(all_of_them))
    first = tf.constant([hvd.rank() == 0, True])
    expect(hvd.allreduce(first, op=hvd.Max), tf.constant([True, True]))
    expect(hvd.allreduce(first, op=hvd.Min), tf.constant([hvd.size() == 1, True]))


def check_the_input_stays_as_it_is():
    mine = tf.fill([1000], float(hvd.rank() + 1))
    hvd.allreduce(mine, op=hvd.Sum)
    hvd.broadcast(mine, 0)
    expect(mine, tf.fill([1000], float(hvd.rank() + 1)))


def check_groups():
    dtypes = DTYPES + COMPLEX
    mine = [of(hvd.rank(), (index, 2), dtype) for index, dtype in enumerate(dtypes)]
    for index, (found, dtype) in enumerate(zip(hvd.grouped_allreduce(mine, op=hvd.Sum), dtypes)):
        expect(found, sum(everyones((index, 2), dtype)), dtype)
    for index, (found, dtype) in enumerate(zip(hvd.grouped_allgather(mine), dtypes)):
        expect(found, tf.concat(everyones((index, 2), dtype), 0), dtype)
    for index, (found, dtype) in enumerate(zip(hvd.grouped_reducescatter(mine, op=hvd.Sum), dtypes)):
        expect(found, part_of(sum(everyones((index, 2), dtype))), dtype)
    expect_error(ValueError, "at least one", lambda: hvd.grouped_allreduce([]))


def part_of(whole, rank=None):
    """What a reducescatter leaves a rank: lower ranks get the extra row."""
    rank, size, rows = hvd.rank() if rank is None else rank, hvd.size(), whole.shape[0]
    first = rank * (rows // size) + min(rank, rows % size)
    return whole[first:first + rows // size + (1 if rank < rows % size else 0)]


def check_allgather_of_uneven_parts():
    for dtype in DTYPES + FLOAT8 + COMPLEX + [tf.bool]:
        for tail in ((), (3,), (2, 0)):
            wanted = [of(rank, (rank, *tail), dtype) for rank in range(hvd.size())]
            expect(hvd.allgather(wanted[hvd.rank()]), tf.concat(wanted, 0), (dtype, tail))
    expect_error(tf.errors.InvalidArgumentError, "dimension", lambda: hvd.allgather(tf.constant(1.0)))


def check_the_gathered_tensor_outlives_the_next_ones():
    first = hvd.allgather(tf.fill([1000], float(hvd.rank())))
    for _ in range(3):
        hvd.allgather(tf.fill([1000], -1.0))
    expect(first[-1], tf.constant(float(hvd.size() - 1)))


def check_broadcast_from_each_root():
    for root in range(hvd.size()):
        for dtype in DTYPES + FLOAT8 + COMPLEX + [tf.bool]:
            expect(hvd.broadcast(of(hvd.rank(), (2, 3), dtype), root), of(root, (2, 3), dtype), dtype)
    variables = [tf.Variable(of(hvd.rank(), (3,), dtype)) for dtype in (tf.float32, tf.int64, tf.float64)]
    for variable in hvd.broadcast_(variables, hvd.size() - 1):
        expect(variable.value(), of(hvd.size() - 1, (3,), variable.dtype))


def check_alltoall():
    size, rank = hvd.size(), hvd.rank()
    for dtype in DTYPES + FLOAT8 + COMPLEX + [tf.bool]:
        found = hvd.alltoall(of(rank, (2 * size, 3), dtype))
        expect(found, tf.concat([of(other, (2 * size, 3), dtype)[2 * rank:2 * rank + 2] for other in range(size)], 0), dtype)
    # Rank r sends r + i rows to rank i.
    found, splits = hvd.alltoall(tf.fill([sum(rank + i for i in range(size))], rank), splits=[rank + i for i in range(size)])
    expect(splits, tf.constant([other + rank for other in range(size)]))
    expect(found, tf.repeat(tf.range(size), [other + rank for other in range(size)]))
    expect_error(tf.errors.InvalidArgumentError, "splits", lambda: hvd.alltoall(tf.zeros([3]), splits=[1] * (size + 1)))


def check_reducescatter():
    for dtype in DTYPES + FLOAT8 + COMPLEX:
        for rows in (0, 1, 2 * hvd.size() + 1):
            expect(hvd.reducescatter(of(hvd.rank(), (rows, 2), dtype), op=hvd.Sum), part_of(sum_of((rows, 2), dtype)),
                   (dtype, rows))
    expect(hvd.reducescatter(tf.ones([hvd.size()])), tf.ones([1]))


def check_compression():
    found = hvd.allreduce(tf.fill([3], 1.0 + hvd.rank()), op=hvd.Sum, compression=hvd.Compression.fp16)
    expect(found, tf.fill([3], float(sum(range(1, hvd.size() + 1)))))
    narrow = hvd.grouped_allreduce([tf.fill([1], 1.001), tf.constant([3])], compression=hvd.Compression.bf16)
    expect(narrow[0], tf.cast(tf.cast(tf.fill([1], 1.001), tf.bfloat16), tf.float32))
    expect(narrow[1], tf.constant([3]))


def check_slices():
    mine = tf.IndexedSlices(tf.fill([2, 3], float(hvd.rank())), tf.constant([hvd.rank(), 9]), tf.constant([10, 3]))
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, hvd.size())):
        dense = tf.convert_to_tensor(hvd.allreduce(mine, op=op))
        expect(dense[9], tf.fill([3], sum(range(hvd.size())) / divisor))
        expect(dense[hvd.size() - 1], tf.fill([3], (hvd.size() - 1) / divisor))
    expect_error(UnsupportedError, "IndexedSlices", lambda: hvd.allreduce(mine, op=hvd.Max))
    both = hvd.grouped_allreduce([mine, tf.ones([2])], op=hvd.Sum)
    assert isinstance(both[0], tf.IndexedSlices)
    expect(both[1], tf.fill([2], float(hvd.size())))


def check_who_this_rank_is():
    expect(hvd.rank_op(), tf.constant(hvd.rank()))
    expect(hvd.size_op(), tf.constant(hvd.size()))
    expect(hvd.local_rank_op(), tf.constant(hvd.local_rank()))
    expect(hvd.local_size_op(), tf.constant(hvd.local_size()))
    expect(hvd.process_set_included_op(), tf.constant(1))


@tf.function
def _gradient_of_several_gathers(process_set):
    """Which each ask for the rank's place in the set."""
    x = tf.ones([hvd.rank() + 1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = sum(tf.reduce_sum(hvd.allgather(x * factor, process_set=process_set)) for factor in range(1, 9))
    return tape.gradient(loss, x)


@on_sizes(3, 4)
def check_process_sets():
    odd = hvd.add_process_set([rank for rank in range(hvd.size()) if rank % 2 or rank == 0])
    expect(hvd.size_op(odd.process_set_id), tf.constant(odd.size()))
    expect(hvd.process_set_included_op(odd.process_set_id), tf.constant(int(odd.included())))
    if odd.included():
        expect(hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, process_set=odd), tf.constant([float(odd.size())]))
        expect(_gradient_of_several_gathers(odd), tf.fill([hvd.rank() + 1, 2], 36.0))
        expect(hvd.allgather(tf.constant([hvd.rank()]), process_set=odd), tf.constant(odd.ranks))
        hvd.barrier(process_set=odd)
    else:
        expect_error(tf.errors.InvalidArgumentError, "process set", lambda: hvd.allreduce(tf.ones([1]), process_set=odd))
    hvd.remove_process_set(odd)
    expect_error(InvalidArgumentError, "not registered", lambda: hvd.allreduce(tf.ones([1]), process_set=odd))


def check_objects_and_variables():
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=hvd.size() - 1) == {"rank": hvd.size() - 1}
    assert hvd.broadcast_object_fn()(hvd.rank()) == 0
    assert hvd.allgather_object("x" * hvd.rank()) == ["x" * rank for rank in range(hvd.size())]
    variables = [tf.Variable(tf.fill([2, 2], float(hvd.rank()))), tf.Variable(hvd.rank(), dtype=tf.int64),
                 tf.Variable(tf.complex(float(hvd.rank()), 1.0))]
    hvd.broadcast_variables(variables, root_rank=hvd.size() - 1)
    expect(variables[0].value(), tf.fill([2, 2], float(hvd.size() - 1)))
    expect(variables[1].value(), tf.constant(hvd.size() - 1, tf.int64))
    expect(variables[2].value(), tf.complex(hvd.size() - 1.0, 1.0))
    if hvd.rank() == 0:
        expect_error(TypeError, "pickle", lambda: hvd.broadcast_object(check_objects_and_variables.__globals__["tf"].Graph()))
    elif hvd.size() > 1:
        expect_error(HorovodInternalError, "rank 0 could not pickle", lambda: hvd.broadcast_object(None))


def check_what_is_refused():
    for name in ("", 5, b"name", tf.constant("name")):
        expect_error(InvalidArgumentError, "expected a string", lambda: hvd.allreduce(tf.ones([1]), name=name))  # noqa: B023
    expect_error(tf.errors.InvalidArgumentError, "a tensor of string cannot travel", lambda: hvd.allreduce(tf.constant("a")))
    expect_error(tf.errors.InvalidArgumentError, "complex", lambda: hvd.allreduce(tf.constant(1j), op=hvd.Max))
    expect_error(ValueError, "average", lambda: hvd.allreduce(tf.ones([1]), average=True, op=hvd.Sum))
    expect_error(NotImplementedError, "Adasum", lambda: hvd.allreduce(tf.ones([1]), op=hvd.Adasum))
    expect_error(ValueError, "must not be 0", lambda: hvd.allreduce(tf.ones([1]), prescale_factor=0))
    expect_error(ValueError, "prescale_factor is 1.0, postscale_factor nan: expected numbers",
                 lambda: hvd.allreduce(tf.ones([1]), postscale_factor=float("nan")))


@on_sizes(2, 3, 4)
def check_ranks_that_disagree():
    mismatch = tf.errors.FailedPreconditionError
    expect_error(mismatch, "has shape", lambda: hvd.allreduce(tf.ones([4 + hvd.rank()]), name="shapes"))
    expect_error(mismatch, "", lambda: hvd.allreduce(tf.cast([1], (tf.int32, tf.int64)[hvd.rank() % 2]), name="dtypes"))
    expect_error(mismatch, "", lambda: hvd.broadcast(tf.ones([1]), hvd.rank() % 2, name="roots"))
    expect_error(mismatch, "", lambda: hvd.grouped_allreduce([tf.ones([1]), tf.ones([hvd.rank() + 1])], name="groups"))
    expect(hvd.allreduce(tf.ones([1]), op=hvd.Sum), tf.constant([float(hvd.size())]))


@on_sizes(2, 3, 4)
def check_join():
    for _ in range(hvd.rank()):  # rank 0 is through at once
        hvd.allreduce(tf.ones([2]), op=hvd.Sum)
    assert hvd.join() in range(hvd.size())
    hvd.barrier()
