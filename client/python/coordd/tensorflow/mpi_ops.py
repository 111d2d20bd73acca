"""Every operation of coordd.tensorflow, with Horovod's names, arguments and defaults; MPI is not involved.

Each takes tensors, variables or what tf.convert_to_tensor() takes, in eager mode, in a tf.function, and (allreduce only) under XLA,
and returns new tensors. All but join and barrier are differentiable.

Names. Ranks agree by name. Without one, an op in eager mode is named after its kind, and an op in a tf.function after the function and
its place in it, so that all ranks trace the same calls. Ops of one function may run in any order, and in other orders on other ranks;
under XLA they run in the order of the program, which has to be the same on all ranks: one grouped_allreduce() is the way there.
What runs one op several times at once, such as Dataset.map() with num_parallel_calls, ends with AlreadyExistsError, since all have its
name. In tf.vectorized_map() and GradientTape.jacobian() the turns of the loop travel together, as one more dimension; all ranks make as
many. In forward mode (tf.autodiff.ForwardAccumulator) outside of a tf.function that has an allgather or a broadcast in it, their tangents
are divided by the number of ranks, as gradients of their gradients are: put the accumulator into the function. In eager mode
TensorFlow keeps about 35 KB for each name for ever: use as many names as there are tensors, not as there are steps.

Errors. tf.errors.FailedPreconditionError: the ranks' arguments disagree, or coordd is not initialised. InvalidArgumentError: a wrong
argument here. AbortedError: a rank was lost (coordd.tensorflow.elastic goes on). DeadlineExceededError: who did not come. XLA makes
InternalError of all of them; the text is the same. ValueError: an argument that is found wrong before anything is submitted.
"""

from typing import List, Optional

import tensorflow as tf

from coordd import _arguments, _basics
from coordd._basics import Average, Sum
from coordd.exceptions import InvalidArgumentError, UnsupportedError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.tensorflow import _calls, _ops
from coordd.tensorflow._calls import Reduction, name_of
from coordd.tensorflow.compression import Compression

__all__ = ["allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast", "broadcast_", "alltoall",
           "reducescatter", "grouped_reducescatter", "join", "barrier", "rank_op", "size_op", "local_rank_op", "local_size_op",
           "process_set_included_op"]


def _group(tensors, what: str) -> List:
    tensors = list(tensors)
    if not tensors:
        raise InvalidArgumentError(f"{what}: a group needs at least one tensor", "INVALID_ARGUMENT")
    return tensors


def _compressed(tensors, compression):
    _arguments.check_compression(compression)
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


# --- reductions ------------------------------------------------------------------------------------------------------


@tf.autograph.experimental.do_not_convert
def allreduce(tensor, average: Optional[bool] = None, device_dense: str = "", device_sparse: str = "",
              compression=Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, name: Optional[str] = None, process_set: ProcessSet = global_process_set,
              ignore_name_scope: bool = False):
    """Reduces a tensor element by element over all ranks.

    tensor:          integers, bool, floating-point numbers (also bfloat16 and float8) and complex ones (Sum, Average), equal in shape
                     and dtype on all ranks; a tf.IndexedSlices (Sum, Average): the slices of all ranks, gathered.
    op:              Average (default; integers truncate toward zero), Sum, Min, Max or Product. `average` is its old name.
    compression:     how the tensor travels: Compression.none, .fp16 or .bf16.
    prescale_factor, postscale_factor: multiplied in before and after the reduction; equal on all ranks; not 0.
    device_dense, device_sparse, ignore_name_scope: there for Horovod's sake, without an effect.
    """
    native = _basics.native_op(op, average)  # type: ignore[arg-type]
    how = Reduction(native, prescale_factor, postscale_factor, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices(tensor, native, name_of(name, "allreduce"), how, compression)
    if compression is Compression.none:
        return _calls.allreduce(tensor, name_of(name, "allreduce"), how)
    (compressed,), (context,) = _compressed([tensor], compression)
    return compression.decompress(_calls.allreduce(compressed, name_of(name, "allreduce"), how), context)


def _allreduce_slices(slices, native: int, name: str, how: Reduction, compression):
    if native not in (_basics.native_op(Average), _basics.native_op(Sum)):
        raise UnsupportedError("tf.IndexedSlices can be summed and averaged, found another op; tf.convert_to_tensor() makes a dense "
                               "tensor of them", "UNIMPLEMENTED")
    (values,), (context,) = _compressed([slices.values], compression)
    gathered = compression.decompress(_calls.allgather(values, f"{name}.values", how.process_set), context)
    indices = _calls.allgather(slices.indices, f"{name}.indices", how.process_set)
    factor = how.prescale_factor * how.postscale_factor
    if factor != 1.0:
        gathered *= tf.cast(factor, gathered.dtype)
    if native == _basics.native_op(Average):
        gathered /= tf.cast(_ops.ready().coordd_size(process_set=how.process_set), gathered.dtype)
    return tf.IndexedSlices(gathered, indices, dense_shape=slices.dense_shape)


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(tensors, average: Optional[bool] = None, device_dense: str = "", device_sparse: str = "",
                      compression=Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
                      ignore_name_scope: bool = False, name: Optional[str] = None) -> List:
    """allreduce() of several tensors, of any dtypes, as one operation: in one generation, or not at all. Under XLA one call.
    tf.IndexedSlices travel one by one."""
    tensors = _group(tensors, "grouped_allreduce")
    base = name_of(name, "grouped_allreduce")
    how = Reduction(_basics.native_op(op, average), prescale_factor, postscale_factor, process_set)  # type: ignore[arg-type]
    results = list(tensors)
    dense = [index for index, one in enumerate(tensors) if not isinstance(one, tf.IndexedSlices)]
    if dense:
        compressed, contexts = _compressed([tensors[index] for index in dense], compression)
        for index, one, context in zip(dense, _calls.grouped_allreduce(compressed, base, how), contexts):
            results[index] = compression.decompress(one, context)
    for index, one in enumerate(tensors):
        if isinstance(one, tf.IndexedSlices):
            results[index] = _allreduce_slices(one, how.op, f"{base}.{index}", how, compression)
    return results


@tf.autograph.experimental.do_not_convert
def reducescatter(tensor, device_dense: str = "", compression=Compression.none, op: int = Average, name: Optional[str] = None,
                  process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0):
    """Reduces a tensor over all ranks and returns this rank's part of the first dimension, which is split evenly; lower ranks get the
    extra row."""
    how = Reduction(_basics.native_op(op), prescale_factor, postscale_factor, process_set)
    (compressed,), (context,) = _compressed([tensor], compression)
    return compression.decompress(_calls.reducescatter(compressed, name_of(name, "reducescatter"), how), context)


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(tensors, device_dense: str = "", compression=Compression.none, op: int = Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0, name: Optional[str] = None) -> List:
    """reducescatter() of several tensors as one operation."""
    how = Reduction(_basics.native_op(op), prescale_factor, postscale_factor, process_set)
    compressed, contexts = _compressed(_group(tensors, "grouped_reducescatter"), compression)
    parts = _calls.grouped_reducescatter(compressed, name_of(name, "grouped_reducescatter"), how)
    return [compression.decompress(part, context) for part, context in zip(parts, contexts)]


# --- exchanges -------------------------------------------------------------------------------------------------------


@tf.autograph.experimental.do_not_convert
def allgather(tensor, name: Optional[str] = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set):
    """Concatenates all ranks' tensors along the first dimension, in rank order. The first dimension may differ between ranks and may
    be 0. The result lies in memory of the library, without a copy."""
    return _calls.allgather(tensor, name_of(name, "allgather"), _arguments.set_number(process_set))


@tf.autograph.experimental.do_not_convert
def grouped_allgather(tensors, name: Optional[str] = None, ignore_name_scope: bool = False,
                      process_set: ProcessSet = global_process_set) -> List:
    """allgather() of several tensors as one operation."""
    tensors = _group(tensors, "grouped_allgather")
    return _calls.grouped_allgather(tensors, name_of(name, "grouped_allgather"), _arguments.set_number(process_set))


@tf.autograph.experimental.do_not_convert
def broadcast(tensor, root_rank: int, name: Optional[str] = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set):
    """The root's tensor; on the others only shape and dtype matter, which are equal on all ranks. `root_rank`: a rank in the job, also
    inside a process set."""
    return _calls.broadcast(tensor, root_rank, name_of(name, "broadcast"), _arguments.set_number(process_set))


@tf.autograph.experimental.do_not_convert
def broadcast_(variables, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List:
    """Gives the variables the root's values, and returns them."""
    base, number = name_of(name, "broadcast_"), _arguments.set_number(process_set)
    for index, variable in enumerate(variables):
        variable.assign(_calls.broadcast(tf.convert_to_tensor(variable), root_rank, f"{base}.{index}", number))
    return list(variables)


@tf.autograph.experimental.do_not_convert
def alltoall(tensor, splits=None, name: Optional[str] = None, ignore_name_scope: bool = False,
             process_set: ProcessSet = global_process_set):
    """Sends rows of the first dimension to each rank and returns what the others have sent, in rank order. `splits`: how many rows go
    to each rank; the result is then (tensor, received splits). None: equal parts, and the tensor alone."""
    given = tf.zeros([0], tf.int64) if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int64)
    received, received_splits = _calls.alltoall(tensor, given, name_of(name, "alltoall"), _arguments.set_number(process_set))
    return received if splits is None else (received, received_splits)


# --- without a tensor ------------------------------------------------------------------------------------------------


def _outside_of_xla(what: str):
    _calls.not_under_xla(what)
    return _ops.ready()


@tf.autograph.experimental.do_not_convert
def join():
    """This rank has no more data: it takes part in what the others do, with nothing, until all have joined. The rank that joined
    last."""
    last = _outside_of_xla("join").coordd_join()
    return int(last) if tf.executing_eagerly() else last


@tf.autograph.experimental.do_not_convert
def barrier(process_set: ProcessSet = global_process_set, name: Optional[str] = None):
    """Comes to an end when all ranks have called it. In a tf.function it keeps its place among ops with effects, but not among other
    collectives."""
    return _outside_of_xla("barrier").coordd_barrier(tensor_name=name or "", process_set=_arguments.set_number(process_set))


# Who this rank is when the op runs, not when it was traced.


@tf.autograph.experimental.do_not_convert
def rank_op(name: Optional[str] = None):
    """This rank, as an int32."""
    return _outside_of_xla("rank_op").coordd_rank(name=name)


@tf.autograph.experimental.do_not_convert
def size_op(process_set_id: int = 0, name: Optional[str] = None):
    """Number of ranks of a process set."""
    return _outside_of_xla("size_op").coordd_size(process_set=process_set_id, name=name)


@tf.autograph.experimental.do_not_convert
def local_rank_op(name: Optional[str] = None):
    """This rank on its node."""
    return _outside_of_xla("local_rank_op").coordd_local_rank(name=name)


@tf.autograph.experimental.do_not_convert
def local_size_op(name: Optional[str] = None):
    """Number of ranks on this node."""
    return _outside_of_xla("local_size_op").coordd_local_size(name=name)


@tf.autograph.experimental.do_not_convert
def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None):
    """1 if this rank is in the process set, else 0."""
    return _outside_of_xla("process_set_included_op").coordd_process_set_included(process_set=process_set_id, name=name)
