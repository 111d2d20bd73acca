"""What TensorFlow makes of an op when it vectorises a loop (tf.vectorized_map, GradientTape.jacobian) and in forward mode
(tf.autodiff.ForwardAccumulator). Both have tables of their own, which are private: where one is missing, a loop ends with
AlreadyExistsError, since its turns are under way at the same time under one name.

The turns of a loop travel together, as one more dimension; all ranks make as many. In forward mode TensorFlow applies the gradient of the
gradient, which is right for what is linear with its own transpose; the gradients of allgather and broadcast are means, as Horovod's, so
that they need their own.
"""

import contextlib
from typing import Any, List, Sequence

import tensorflow as tf

from coordd.tensorflow import _ops


def _attributes(loop: Any, *names: str) -> dict:
    """With a name of its own: TensorFlow runs the loop's body itself once more, beside what it makes of it."""
    found = {name: loop.get_attr(name) for name in names}
    if "tensor_name" in found:
        found["tensor_name"] = _longer(found["tensor_name"], b".turns")
    return found


def _longer(name: Any, by: bytes) -> bytes:
    return (name if isinstance(name, bytes) else name.encode()) + by


_REDUCTION = ("tensor_name", "reduce_op", "prescale_factor", "postscale_factor", "process_set")


def _swapped(tensor):
    """The first two dimensions in the other order: rows before turns, or back. Of a scalar there are no rows: the body refuses it."""
    if tensor.shape.rank == 1:
        return tf.expand_dims(tensor, 0)
    return tf.transpose(tensor, tf.concat([[1, 0], tf.range(2, tf.rank(tensor))], 0))


def _stacked_inputs(loop: Any, count: int) -> List:
    """Of all turns; one that is the same in each is repeated if another one is not."""
    loop.stack_inputs(list(range(count)))
    return [loop.stacked_input(index) for index in range(count)]


def _is_the_same_in_each_turn(loop: Any, count: int) -> bool:
    return not any(loop.input(index).is_stacked for index in range(count))


def _element_by_element(op, *names: str):
    def convert(loop, wrap):
        attributes = _attributes(loop, *names)
        if _is_the_same_in_each_turn(loop, 1):
            return wrap(op(tensor=loop.unstacked_input(0), **attributes), False)
        return wrap(op(tensor=_stacked_inputs(loop, 1)[0], **attributes), True)
    return convert


def _by_rows(op, *names: str):
    def convert(loop, wrap):
        attributes = _attributes(loop, *names)
        if _is_the_same_in_each_turn(loop, 1):
            return wrap(op(tensor=loop.unstacked_input(0), **attributes), False)
        return wrap(_swapped(op(tensor=_swapped(_stacked_inputs(loop, 1)[0]), **attributes)), True)
    return convert


def _alltoall(loop, wrap):
    attributes, op = _attributes(loop, "tensor_name", "process_set"), _ops.raw.coordd_alltoall
    splits = loop.unstacked_input(1)
    if not loop.input(0).is_stacked:
        both = op(tensor=loop.unstacked_input(0), splits=splits, **attributes)
        return [wrap(both[0], False), wrap(both[1], False)]
    both = op(tensor=_swapped(loop.stacked_input(0)), splits=splits, **attributes)
    return [wrap(_swapped(both[0]), True), wrap(both[1], False)]


def _group(op, change, *names: str):
    """`change`: of each member, before and behind it."""
    def convert(loop, wrap):
        attributes, count = _attributes(loop, *names), loop.num_inputs
        if _is_the_same_in_each_turn(loop, count):
            return [wrap(one, False) for one in op(tensors=[loop.unstacked_input(index) for index in range(count)], **attributes)]
        done = op(tensors=[change(one) for one in _stacked_inputs(loop, count)], **attributes)
        return [wrap(change(one), True) for one in done]
    return convert


def _question(op, *names: str):
    """What no turn changes, such as the rank."""
    return lambda loop, wrap: wrap(op(**_attributes(loop, *names)), False)


def _vectorise() -> None:
    from tensorflow.python.ops.parallel_for import pfor
    raw = _ops.raw
    for kind, convert in (
            ("CoorddAllreduce", _element_by_element(raw.coordd_allreduce, *_REDUCTION)),
            ("CoorddBroadcast", _element_by_element(raw.coordd_broadcast, "root_rank", "tensor_name", "process_set")),
            ("CoorddAllgather", _by_rows(raw.coordd_allgather, "tensor_name", "process_set")),
            ("CoorddReducescatter", _by_rows(raw.coordd_reducescatter, *_REDUCTION)),
            ("CoorddAlltoall", _alltoall),
            ("CoorddGroupedAllreduce", _group(raw.coordd_grouped_allreduce, lambda one: one, *_REDUCTION)),
            ("CoorddGroupedAllgather", _group(raw.coordd_grouped_allgather, _swapped, "tensor_name", "process_set")),
            ("CoorddGroupedReducescatter", _group(raw.coordd_grouped_reducescatter, _swapped, *_REDUCTION)),
            ("CoorddRank", _question(raw.coordd_rank)),
            ("CoorddSize", _question(raw.coordd_size, "process_set"))):
        pfor.RegisterPFor(kind)(lambda loop, convert=convert: convert(loop, pfor.wrap))


def _run_forward() -> None:
    from tensorflow.python.eager import forwardprop
    raw, cases = _ops.raw, forwardprop._SPECIAL_CASES

    def attributes(pairs: Sequence) -> dict:
        found = {name: value for name, value in zip(pairs[::2], pairs[1::2]) if not name.startswith("T")}
        return {**found, "tensor_name": _longer(found["tensor_name"], b".tangent")}

    cases["CoorddAllgather"] = lambda pairs, inputs, outputs, tangents: [
        raw.coordd_allgather(tensor=tangents[0], **attributes(pairs))]
    cases["CoorddBroadcast"] = lambda pairs, inputs, outputs, tangents: [
        raw.coordd_broadcast(tensor=tangents[0], **attributes(pairs))]
    cases["CoorddGroupedAllgather"] = lambda pairs, inputs, outputs, tangents: list(
        raw.coordd_grouped_allgather(tensors=list(tangents), **attributes(pairs)))


for _register in (_vectorise, _run_forward):
    with contextlib.suppress(ImportError, AttributeError):
        _register()
