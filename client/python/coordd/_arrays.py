"""Collectives on NumPy's arrays, and on any objects, over the C interface: for what a framework does once in a while, outside of its
own programs. Objects travel as a pickle, between ranks of one job, which trust each other."""

import ctypes
import io
import math
import pickle
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy

from coordd import _arguments, _basics, _library, _native
from coordd.exceptions import HorovodInternalError, InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set

try:
    import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError:
    cloudpickle = None


def _dtype_of(array: numpy.ndarray, name: str) -> int:
    try:
        return _library.DTYPES[array.dtype.name]
    except KeyError:
        raise InvalidArgumentError(f"{name}: an array of {array.dtype.name} cannot travel, expected one of "
                                   f"{', '.join(_library.DTYPES)}", "INVALID_ARGUMENT") from None


def _submit(function: str, name: str, array: numpy.ndarray, output: Optional[numpy.ndarray], extra: Tuple,
            process_set: ProcessSet, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> _native.Work:
    prepared = _native.Prepared(name, array.shape, _dtype_of(array, name))
    prepared.structure.input = array.ctypes.data
    prepared.structure.output = output.ctypes.data if output is not None else None
    options = _native.call_options(_arguments.set_number(process_set), prescale_factor, postscale_factor)
    status = _library.library().function(function)(_basics.worker().pointer, prepared.reference, *extra, options,
                                                   prepared.work_reference)
    if status != 0:
        raise _native.call_error(status, name)
    return _native.Work((prepared.work.value,), name)


def allreduce(name: str, array: numpy.ndarray, op: int, process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0) -> numpy.ndarray:
    """A new array with the reduction of all ranks' arrays. `op` as Horovod's."""
    native = _basics.native_op(op)
    if array.dtype.kind == "c" and native not in (_basics.native_op(_basics.Sum), _basics.native_op(_basics.Average)):
        raise InvalidArgumentError(f"{name}: Min, Max or Product of complex numbers: expected Sum or Average", "INVALID_ARGUMENT")
    array = numpy.asarray(array, order="C")
    output = numpy.empty_like(array)
    work = _submit("coordd_allreduce_async", name, _as_sent(array), output, (ctypes.c_int32(native),), process_set,
                   float(prescale_factor), float(postscale_factor))
    _native.wait_or_keep(work, (array, output))
    return output


_MOST_DIMENSIONS = 8  # that coordd takes


def _as_sent(array: numpy.ndarray) -> numpy.ndarray:
    """The same memory in a shape that coordd takes, with as many rows; a complex number has one more dimension, for its two parts."""
    if array.ndim == 0:
        array = array.reshape(1)
    is_complex = array.dtype.kind == "c"
    if array.ndim + is_complex > _MOST_DIMENSIONS:
        array = array.reshape(array.shape[0], math.prod(array.shape[1:]))
    return array.reshape(*array.shape, 1).view(array.real.dtype) if is_complex else array


def broadcast(named: Sequence[Tuple[str, numpy.ndarray]], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Fills all of the arrays, which are contiguous and writable, with the root's; all at once."""
    root_rank = _arguments.checked_root(root_rank)
    if len(named) == 0:
        return
    works = [(_submit("coordd_broadcast_async", name, _as_sent(array), array, (ctypes.c_int32(root_rank),), process_set), array)
             for name, array in named]
    failure = None
    for work, array in works:
        try:
            _native.wait_or_keep(work, array)
        except HorovodInternalError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def allgather(name: str, array: numpy.ndarray, process_set: ProcessSet = global_process_set) -> numpy.ndarray:
    """All ranks' arrays, of at least one dimension, one behind the other."""
    array = numpy.asarray(array, order="C")
    work = _submit("coordd_allgather_async", name, _as_sent(array), None, (), process_set)
    _native.wait_or_keep(work, array)
    result = work.result()
    shape = (result.shape[0], *array.shape[1:])
    if result.size_bytes == 0:
        return numpy.empty(shape, array.dtype)
    return numpy.frombuffer(result.buffer(), dtype=array.dtype).reshape(shape).copy()


class _NotPickled(NamedTuple):
    """Travels in the place of an object that a rank cannot pickle: the others wait, and are to hear why."""
    rank: int
    kind: str
    why: str


class _Packed(NamedTuple):
    data: numpy.ndarray
    error: Optional[BaseException]


def _pack(value: Any) -> _Packed:
    error: Optional[BaseException] = None
    try:
        data = (cloudpickle or pickle).dumps(value)
    except BaseException as found:  # pickle raises what it likes, and so do the objects' own methods; or it is Ctrl-C
        error = found
        data = pickle.dumps(_NotPickled(_basics.rank(), type(value).__name__, f"{type(found).__name__}: {found}"))
    return _Packed(numpy.frombuffer(data, dtype=numpy.uint8), error)


def _refuse(found: Any, name: str) -> None:
    if isinstance(found, _NotPickled):
        raise HorovodInternalError(f"rank {found.rank} could not pickle its {found.kind} that was to travel as {name}: {found.why}",
                                   "INVALID_ARGUMENT", rank=found.rank)


def broadcast_object(obj: Any, root_rank: int, name: Optional[str], process_set: ProcessSet = global_process_set) -> Any:
    """The root's object. What the root cannot pickle is its error there, and HorovodInternalError on the others."""
    name, is_root = name or "object", _basics.rank() == _arguments.checked_root(root_rank)
    packed = _pack(obj) if is_root else None
    size = numpy.array([0 if packed is None else packed.data.size], dtype=numpy.int64)
    broadcast([(f"{name}.size", size)], root_rank, process_set)
    data = numpy.empty(int(size[0]), dtype=numpy.uint8) if packed is None else packed.data.copy()
    broadcast([(f"{name}.bytes", data)], root_rank, process_set)
    if packed is None:
        found = pickle.loads(data.tobytes())
        _refuse(found, name)
        return found
    if packed.error is not None:
        raise packed.error
    return obj


def allgather_object(obj: Any, name: Optional[str], process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in rank order."""
    packed, name = _pack(obj), name or "object"
    everything = allgather(f"{name}.bytes", packed.data, process_set).tobytes()
    if packed.error is not None:
        raise packed.error
    pickles, objects = io.BytesIO(everything), []
    while pickles.tell() < len(everything):  # a pickle says where it ends
        objects.append(pickle.load(pickles))
    for found in objects:
        _refuse(found, name)
    return objects
