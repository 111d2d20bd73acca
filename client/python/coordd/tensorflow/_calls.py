"""Collectives as calls of the ops, without the names and forms that Horovod has for them. See coordd.tensorflow.mpi_ops.

Under XLA an op cannot be; a grouped allreduce is a custom call there. It blocks, so that several of them in one program run in the
order of that program: the gradients of a step go in one.
"""

from typing import List, Optional, Sequence

import tensorflow as tf

from coordd import _arguments, _factors, _library
from coordd._names import wire_name
from coordd.exceptions import InvalidArgumentError, UnsupportedError
from coordd.process_sets import ProcessSet
from coordd.tensorflow import _framework, _ops, _transforms  # noqa: F401 the last makes itself known

_MOST_BYTES = 480  # of a name: members of a group have a number behind it
_NATIVE_SUM, _NATIVE_AVERAGE = 1, 2


class Reduction:
    """How a reduction is done. `op`: coordd_op_t."""

    __slots__ = ("op", "prescale_factor", "postscale_factor", "process_set")

    def __init__(self, op: int, prescale_factor: float, postscale_factor: float, process_set: ProcessSet):
        _factors.check_factors(prescale_factor, postscale_factor)
        self.op = op
        self.prescale_factor = float(prescale_factor)
        self.postscale_factor = float(postscale_factor)
        self.process_set = _arguments.set_number(process_set)


def name_of(given: Optional[str], kind: str) -> str:
    """What the ranks agree by: equal on all of them, and the same in each step. In eager mode an op ends before the next one of its
    thread begins, so one name for each kind of op serves, and an error on one rank leaves nothing behind that would differ."""
    if given is not None:
        return given
    return f"tensorflow.{kind}" if tf.executing_eagerly() else _framework.unique_name(kind)


def _wire(name: str) -> bytes:
    return wire_name(name, _MOST_BYTES)


def not_under_xla(what: str) -> None:
    if _framework.under_xla():
        raise UnsupportedError(f"{what} cannot be compiled by XLA, only allreduce and grouped_allreduce can: use jit_compile=False",
                               "UNIMPLEMENTED")


# --- allreduce -------------------------------------------------------------------------------------------------------


@tf.autograph.experimental.do_not_convert
def allreduce(tensor, name: str, how: Reduction):
    if _framework.under_xla():
        return _xla_allreduce([tensor], name, how)[0]
    return _ops.ready().coordd_allreduce(tensor=tensor, tensor_name=_wire(name), reduce_op=how.op,
                                         prescale_factor=how.prescale_factor, postscale_factor=how.postscale_factor,
                                         process_set=how.process_set)


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(tensors: Sequence, name: str, how: Reduction) -> List:
    if _framework.under_xla():
        return _xla_allreduce(tensors, name, how)
    return list(_ops.ready().coordd_grouped_allreduce(tensors=list(tensors), tensor_name=_wire(name), reduce_op=how.op,
                                                      prescale_factor=how.prescale_factor,
                                                      postscale_factor=how.postscale_factor, process_set=how.process_set))


def _xla_allreduce(tensors: Sequence, name: str, how: Reduction) -> List:
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not _ops.has_xla():
        raise UnsupportedError(f"TensorFlow {tf.__version__} does not let programs of XLA call others: use jit_compile=False",
                               "UNIMPLEMENTED")
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        raise UnsupportedError(f"{name}: under XLA shapes have to be known, found {[t.shape.as_list() for t in tensors]}; use "
                               "jit_compile=False", "UNIMPLEMENTED")

    @tf.custom_gradient
    def reduce(*inputs):
        members = " ".join(_xla_member(one, how) for one in inputs)
        configuration = (f"{how.op} {how.prescale_factor!r} {how.postscale_factor!r} {how.process_set} {len(inputs)} {members} "
                         f"{_wire(name).decode(errors='replace')}")
        reduced = _framework.xla_custom_call(inputs, "coordd_allreduce", configuration)

        def gradient(*upstream):
            return grouped_allreduce(upstream, f"{name}.gradient", how)

        return reduced, gradient

    return list(reduce(*tensors))


def _xla_member(tensor, how: Reduction) -> str:
    dtype, elements = tensor.dtype, tensor.shape.num_elements()
    if dtype.is_complex and how.op not in (_NATIVE_SUM, _NATIVE_AVERAGE):
        raise InvalidArgumentError("Min, Max or Product of complex numbers: expected Sum or Average", "INVALID_ARGUMENT")
    if dtype.is_complex:
        dtype, elements = dtype.real_dtype, 2 * elements
    if dtype.name not in _library.DTYPES:
        raise InvalidArgumentError(f"a tensor of {dtype.name} cannot travel, expected one of {', '.join(_library.DTYPES)}",
                                   "INVALID_ARGUMENT")
    return f"{_library.DTYPES[dtype.name]} {elements}"


# --- what has no form under XLA --------------------------------------------------------------------------------------


@tf.autograph.experimental.do_not_convert
def allgather(tensor, name: str, process_set: int):
    not_under_xla("allgather")
    return _ops.ready().coordd_allgather(tensor=tensor, tensor_name=_wire(name), process_set=process_set)


@tf.autograph.experimental.do_not_convert
def grouped_allgather(tensors: Sequence, name: str, process_set: int) -> List:
    not_under_xla("grouped_allgather")
    return list(_ops.ready().coordd_grouped_allgather(tensors=list(tensors), tensor_name=_wire(name), process_set=process_set))


@tf.autograph.experimental.do_not_convert
def broadcast(tensor, root_rank: int, name: str, process_set: int):
    not_under_xla("broadcast")
    root_rank = _arguments.checked_root(root_rank)
    return _ops.ready().coordd_broadcast(tensor=tensor, root_rank=root_rank, tensor_name=_wire(name), process_set=process_set)


@tf.autograph.experimental.do_not_convert
def alltoall(tensor, splits, name: str, process_set: int):
    """(result, received splits as int32). `splits`: int64; empty: equal parts."""
    not_under_xla("alltoall")
    both = _ops.ready().coordd_alltoall(tensor=tensor, splits=splits, tensor_name=_wire(name), process_set=process_set)
    return both[0], both[1]


@tf.autograph.experimental.do_not_convert
def reducescatter(tensor, name: str, how: Reduction):
    not_under_xla("reducescatter")
    return _ops.ready().coordd_reducescatter(tensor=tensor, tensor_name=_wire(name), reduce_op=how.op,
                                             prescale_factor=how.prescale_factor, postscale_factor=how.postscale_factor,
                                             process_set=how.process_set)


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(tensors: Sequence, name: str, how: Reduction) -> List:
    not_under_xla("grouped_reducescatter")
    return list(_ops.ready().coordd_grouped_reducescatter(tensors=list(tensors), tensor_name=_wire(name), reduce_op=how.op,
                                                          prescale_factor=how.prescale_factor,
                                                          postscale_factor=how.postscale_factor,
                                                          process_set=how.process_set))


# --- gradients -------------------------------------------------------------------------------------------------------
# Of the ops, not of Python functions: so they cost nothing where nobody asks for them.


def _name(op) -> str:
    return op.get_attr("tensor_name").decode(errors="replace") + ".gradient"


class _HowOf(Reduction):
    """The reduction of a node of the graph."""

    def __init__(self, op):
        self.op = op.get_attr("reduce_op")
        self.prescale_factor = op.get_attr("prescale_factor")
        self.postscale_factor = op.get_attr("postscale_factor")
        self.process_set = op.get_attr("process_set")


class _Mean(Reduction):
    def __init__(self, process_set: int):
        self.op, self.prescale_factor, self.postscale_factor, self.process_set = _NATIVE_AVERAGE, 1.0, 1.0, process_set


@tf.RegisterGradient("CoorddAllreduce")
def _allreduce_gradient(op, gradient):
    """The gradient of a reduction is the same reduction of the gradients."""
    return allreduce(gradient, _name(op), _HowOf(op))


@tf.RegisterGradient("CoorddGroupedAllreduce")
def _grouped_allreduce_gradient(op, *gradients):
    return grouped_allreduce(gradients, _name(op), _HowOf(op))


def _own_rows(reduced, rows, name: str, process_set: int):
    """This rank's part of what was gathered; `rows`: how many it had brought."""
    counts = allgather(tf.reshape(rows, [1]), f"{name}.rows", process_set)
    first = tf.reduce_sum(counts[:_place_in(process_set, name)])
    begin = tf.concat([tf.reshape(first, [1]), tf.zeros([tf.rank(reduced) - 1], first.dtype)], 0)
    size = tf.concat([tf.reshape(rows, [1]), tf.shape(reduced, out_type=rows.dtype)[1:]], 0)
    return tf.slice(reduced, begin, size)


def _place_in(process_set: int, name: str):
    """This rank's place among the ranks of a set, when the op runs. `name`: of the op that asks; others may ask at the same time."""
    rank = _ops.ready().coordd_rank()
    if process_set == 0:
        return rank
    ranks = allgather(tf.reshape(rank, [1]), f"{name}.ranks", process_set)
    return tf.reduce_sum(tf.cast(ranks < rank, tf.int32))


@tf.RegisterGradient("CoorddAllgather")
def _allgather_gradient(op, gradient):
    """The gradient of a rank's rows is the mean, over the ranks, of the gradients of where they went."""
    name, number = _name(op), op.get_attr("process_set")
    reduced = allreduce(gradient, name, _Mean(number))
    return _own_rows(reduced, tf.shape(op.inputs[0], out_type=tf.int64)[0], name, number)


@tf.RegisterGradient("CoorddGroupedAllgather")
def _grouped_allgather_gradient(op, *gradients):
    name, number = _name(op), op.get_attr("process_set")
    reduced = grouped_allreduce(gradients, name, _Mean(number))
    return [_own_rows(one, tf.shape(given, out_type=tf.int64)[0], f"{name}.{index}", number)
            for index, (one, given) in enumerate(zip(reduced, op.inputs))]


@tf.RegisterGradient("CoorddBroadcast")
def _broadcast_gradient(op, gradient):
    """The root's gradient is the mean of all ranks' gradients; the others' is zero."""
    reduced = allreduce(gradient, _name(op), _Mean(op.get_attr("process_set")))
    is_root = tf.equal(_ops.ready().coordd_rank(), op.get_attr("root_rank"))
    return tf.where(is_root, reduced, tf.zeros_like(reduced))


@tf.RegisterGradient("CoorddAlltoall")
def _alltoall_gradient(op, gradient, _):
    """The gradient goes back to where the rows came from."""
    returned, _ = alltoall(gradient, tf.cast(op.outputs[1], tf.int64), _name(op), op.get_attr("process_set"))
    return [returned, None]


def _scattered_gradient(op, gradient):
    """What has to be gathered for the gradient: each input went into the result with this factor; as Horovod does, scaled so that it
    belongs to the sum of all ranks' losses for Sum, and to their mean for Average."""
    factor = op.get_attr("prescale_factor") * op.get_attr("postscale_factor")
    scaled = gradient if factor == 1.0 else gradient * tf.cast(factor, gradient.dtype)
    if op.get_attr("reduce_op") != _NATIVE_SUM:
        return scaled
    return scaled * tf.cast(_ops.ready().coordd_size(process_set=op.get_attr("process_set")), gradient.dtype)


@tf.RegisterGradient("CoorddReducescatter")
def _reducescatter_gradient(op, gradient):
    return allgather(_scattered_gradient(op, gradient), _name(op), op.get_attr("process_set"))


@tf.RegisterGradient("CoorddGroupedReducescatter")
def _grouped_reducescatter_gradient(op, *gradients):
    return grouped_allgather([_scattered_gradient(op, one) for one in gradients], _name(op), op.get_attr("process_set"))


for _kind in ("CoorddJoin", "CoorddBarrier", "CoorddRank", "CoorddSize", "CoorddLocalRank", "CoorddLocalSize",
              "CoorddProcessSetIncluded", "CoorddSelfCheck"):
    tf.no_gradient(_kind)
