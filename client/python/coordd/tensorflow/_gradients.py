"""Gradients of a step become those of all ranks: for tapes and optimizers."""

from typing import Any, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from coordd import _arguments, _basics
from coordd._arguments import check_optimizer, checked_groups
from coordd._names import without
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet
from coordd.tensorflow import _calls, _framework, mpi_ops

_SCALED_OPS = (_basics.Average, _basics.Sum)


class Options(NamedTuple):
    """How gradients travel; made by checked_options()."""
    compression: Any
    sparse_as_dense: bool
    op: int
    gradient_predivide_factor: float
    groups: Any
    process_set: ProcessSet
    scale_local_gradients: bool


def checked_options(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
                    scale_local_gradients) -> Options:
    """ValueError: an argument does not fit."""
    check_optimizer(op, _SCALED_OPS, gradient_predivide_factor, process_set, compression)
    return Options(compression, bool(sparse_as_dense), op, float(gradient_predivide_factor), checked_groups(groups, num_groups),
                   process_set, bool(scale_local_gradients))


def key_of(variable) -> int:
    """The same for a variable of Keras 3 and the one of TensorFlow inside of it."""
    return id(getattr(variable, "_value", variable) if hasattr(variable, "_value") else variable)


def _partition(places: Sequence[int], variables, groups) -> Optional[List[List[int]]]:
    """Places of gradients that travel together; None: each by itself."""
    if groups is None:
        return None
    if isinstance(groups, int):
        count = min(groups, len(places))
        return [list(places[index * len(places) // count:(index + 1) * len(places) // count])
                for index in range(count)] if count else None
    if variables is None:
        raise InvalidArgumentError("groups is a list of lists of variables: expected a number of groups here, where the gradients' "
                                   "variables are not known", "INVALID_ARGUMENT")
    group_of = {key_of(variable): index for index, group in enumerate(groups) for variable in group}
    lists: List[List[int]] = [[] for _ in groups]
    rest = []
    for place in places:
        group = group_of.get(key_of(variables[place]))
        if group is None:
            rest.append([place])
        else:
            lists[group].append(place)
    return [one for one in lists if one] + rest


def reduce_gradients(gradients: Sequence, options: Options, name: str, variables: Optional[Sequence] = None,
                     local: Sequence[int] = (), factor: float = 1.0) -> List:
    """The gradients of all ranks; None stays None. `variables`: whose they are, as far as groups ask. `local`: places of those that
    stay this rank's own. `factor`: multiplied in.

    In a graph each travels by itself, as soon as it is there; in eager mode, where an op waits, and under XLA, where a call does, all of
    them in one go."""
    results = [tf.convert_to_tensor(one) if options.sparse_as_dense and isinstance(one, tf.IndexedSlices) else one
               for one in gradients]
    places = [index for index, one in enumerate(results) if one is not None and index not in local]
    if not tf.executing_eagerly():
        name = _framework.unique_name(name)
    how = _calls.Reduction(_basics.native_op(options.op), 1.0 / options.gradient_predivide_factor,
                           options.gradient_predivide_factor * factor, options.process_set)
    parts = _partition(places, variables, options.groups)
    if parts is None and places and (tf.executing_eagerly() or _framework.under_xla()):
        parts = [places]
    if parts is None:
        for place in places:
            _reduce_part(results, [place], f"{name}.{place}", options, how)
    else:
        absent = [index for index in range(len(results)) if index not in places]
        for number, part in enumerate(parts):
            _reduce_part(results, part, without(f"{name}.{number}", absent), options, how)
    _scale_local(results, local, options, factor)
    return results


def _reduce_part(results: List, part: List[int], name: str, options: Options, how) -> None:
    dense = [place for place in part if not isinstance(results[place], tf.IndexedSlices)]
    for place in part:
        if place not in dense:
            results[place] = mpi_ops.allreduce(results[place], op=options.op, name=f"{name}.{place}",
                                               compression=options.compression, prescale_factor=how.prescale_factor,
                                               postscale_factor=how.postscale_factor, process_set=options.process_set)
    if not dense:
        return
    pairs = [options.compression.compress(tf.convert_to_tensor(results[place])) for place in dense]
    if len(pairs) == 1:
        reduced = [_calls.allreduce(pairs[0][0], name, how)]
    else:
        reduced = _calls.grouped_allreduce([tensor for tensor, _ in pairs], name, how)
    for place, one, (_, context) in zip(dense, reduced, pairs):
        results[place] = options.compression.decompress(one, context)


def _size_of(process_set: ProcessSet, dtype):
    """When the function runs, which may be when there are other ranks than when it was traced; under XLA there is no op for that."""
    if tf.executing_eagerly() or _framework.under_xla():
        return process_set.size() or 1
    return tf.cast(mpi_ops.size_op(_arguments.set_number(process_set)), dtype)


def _scale_local(results: List, local: Sequence[int], options: Options, factor: float) -> None:
    """Local gradients beside averaged ones are a sum over as many times the batches: divided by the number of ranks, as Horovod does."""
    for place in local:
        one = results[place]
        if one is None:
            continue
        scale = factor / _size_of(options.process_set, one.dtype) if options.scale_local_gradients else factor
        if isinstance(one, tf.IndexedSlices):
            results[place] = tf.IndexedSlices(one.values * tf.cast(scale, one.dtype), one.indices, one.dense_shape)
        elif not isinstance(scale, float) or scale != 1.0:
            results[place] = one * tf.cast(scale, one.dtype)
