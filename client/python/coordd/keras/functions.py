"""Variables, values and models, in eager mode, on every backend: through NumPy, which all of them take and give."""

from typing import Any, Optional

import numpy

from coordd import _arrays, _basics
from coordd._arguments import check_compression
from coordd._basics import Average
from coordd.exceptions import HorovodInternalError, InvalidArgumentError, UnsupportedError
from coordd.keras._reduce import Compression
from coordd.keras._which import BACKEND, LEGACY, keras
from coordd.keras.optimizer import Distributed, DistributedOptimizer
from coordd.process_sets import ProcessSet, global_process_set

__all__ = ["allgather", "allgather_object", "allreduce", "broadcast", "broadcast_global_variables", "broadcast_object",
           "broadcast_variables", "load_model", "reducescatter"]


def to_array(value: Any) -> numpy.ndarray:
    """A contiguous copy, of a variable, a tensor, an array or a number."""
    if LEGACY or BACKEND == "tensorflow":
        value = value.numpy() if hasattr(value, "numpy") else value
    else:
        value = keras.ops.convert_to_numpy(value)
    return numpy.array(value, order="C")


def _to_tensor(array: numpy.ndarray) -> Any:
    """Of the backend, of the same dtype where it has that."""
    if LEGACY or BACKEND == "tensorflow":
        import tensorflow as tf
        return tf.convert_to_tensor(array)
    return keras.ops.convert_to_tensor(array, dtype=array.dtype.name)


def variables_of(optimizer) -> list:
    """Of Keras 3, and of both kinds of optimizers of Keras 2."""
    return list(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)


def broadcast_variables(variables, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Gives all ranks the root's values; the same variables in the same order on all of them."""
    variables = list(variables)
    named = [(f"keras.variable.{index}", to_array(variable)) for index, variable in enumerate(variables)]
    try:
        _arrays.broadcast(named, root_rank, process_set)
    except HorovodInternalError as error:
        own = {name: getattr(variable, "path", None) or variable.name for (name, _), variable in zip(named, variables)}
        if error.code != "INVALID_ARGUMENT" or error.tensor not in own:
            raise
        # Names of Keras's differ between ranks that have made other models before, so they cannot travel as the tensor's.
        raise HorovodInternalError(f"{error}; it is {own[error.tensor]} on this rank: all ranks need the same model and optimizer",
                                   error.code, error.rank, error.tensor, error.generation) from None
    for variable, (_, array) in zip(variables, named):
        variable.assign(array)


def broadcast_global_variables(root_rank: int) -> None:
    """Refused, as by Horovod in eager mode: there is no list of all variables."""
    raise UnsupportedError("broadcast_global_variables() needs a graph of TensorFlow 1: use callbacks."
                           "BroadcastGlobalVariablesCallback(root_rank), or broadcast_variables(model.variables, root_rank)",
                           "UNIMPLEMENTED")


def allreduce(value, name: Optional[str] = None, average: Optional[bool] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, op: Optional[int] = None, compression=Compression.none) -> numpy.ndarray:
    """The reduction of all ranks' values, as an array of the same shape and dtype; whole numbers stay whole with factors, too. `average`
    is the old name of op."""
    if average is not None and op is not None:
        raise InvalidArgumentError("give op or average, not both: average is the old name of op", "INVALID_ARGUMENT")
    op = (Average if average in (None, True) else _basics.Sum) if op is None else op
    check_compression(compression)

    def reduced(array: numpy.ndarray) -> numpy.ndarray:
        return _arrays.allreduce(name or "keras.allreduce", array, op, global_process_set, prescale_factor, postscale_factor)

    array = to_array(value)
    if compression is Compression.none:
        return reduced(array)
    tensor, context = compression.compress(_to_tensor(array))  # compressors are for the backend's tensors
    return to_array(compression.decompress(_to_tensor(reduced(to_array(tensor))), context)).astype(array.dtype, copy=False)


def _at_least_one_dimension(what: str, value) -> numpy.ndarray:
    array = to_array(value)
    if array.ndim == 0:
        raise InvalidArgumentError(f"{what}: expected a value of at least one dimension, found a scalar", "INVALID_ARGUMENT")
    return array


def allgather(value, name: Optional[str] = None) -> numpy.ndarray:
    """All ranks' values, one behind the other along the first dimension."""
    return _arrays.allgather(name or "keras.allgather", _at_least_one_dimension("allgather", value))


def broadcast(value, root_rank: int, name: Optional[str] = None) -> numpy.ndarray:
    """The root's value."""
    array = to_array(value)
    _arrays.broadcast([(name or "keras.broadcast", array)], root_rank)
    return array


def reducescatter(value, name: Optional[str] = None, op: int = Average) -> numpy.ndarray:
    """This rank's part, along the first dimension, of the reduction of all ranks' values."""
    array = _at_least_one_dimension("reducescatter", value)
    whole = allreduce(array, name or "keras.reducescatter", op=op)
    return numpy.array_split(whole, _basics.size())[_basics.rank()]


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """The root's object."""
    return _arrays.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> list:
    """The objects of all ranks."""
    return _arrays.allgather_object(obj, name, process_set)


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts: bool = False):
    """keras.models.load_model(), and the optimizer of the model is a DistributedOptimizer, with the slots and iterations that were
    saved. `custom_optimizers`: classes that Keras does not know by itself."""
    if legacy_opts:
        raise UnsupportedError("legacy_opts: Keras 3 has no legacy optimizers", "UNIMPLEMENTED")
    known = {one.__name__: one for one in custom_optimizers or ()}
    if BACKEND == "tensorflow":
        from coordd.tensorflow import sync_batch_norm  # noqa: F401 makes its layer known
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not isinstance(optimizer, Distributed):
        model.optimizer = DistributedOptimizer(optimizer, compression=compression)
    return model
