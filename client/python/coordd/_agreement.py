"""What ranks agree on without any framework.

These are collectives that a job with COORDD_ON_FAILURE=continue executes again when it loses a member, among those who are left: one call
each, since the ranks may be others in the next.
"""

import ctypes
from typing import List, NamedTuple, Tuple

from coordd import _basics, _library, _native

_MAX = 4  # coordd_op_t
_LENGTH = ctypes.c_int64


class Agreed(NamedTuple):
    value: int
    generation: int  # of those who have agreed: the same on all of them


def largest(name: str, value: int) -> int:
    """Collective: the largest of all ranks' values. `name` as of any tensor."""
    return agree(name, value).value


def agree(name: str, value: int) -> Agreed:
    """largest(), and by whom."""
    number = ctypes.c_int64(value)
    tensor = _tensor(name, "int64")
    tensor.input = tensor.output = ctypes.addressof(number)
    work = _submit("coordd_allreduce_async", tensor, ctypes.c_int32(_MAX))
    _native.wait_or_keep(work, number)
    return Agreed(number.value, work.result().generation)


def gather(name: str, part: bytes) -> Tuple[List[bytes], int]:
    """Collective: the parts of all ranks, each of any size, in the order of their ranks; and the generation that they are of."""
    framed = bytes(_LENGTH(len(part))) + part
    shape = (ctypes.c_int64 * 1)(len(framed))
    tensor = _tensor(name, "uint8")
    tensor.input = ctypes.cast(ctypes.c_char_p(framed), ctypes.c_void_p)
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    tensor.ndim = 1
    work = _submit("coordd_allgather_async", tensor)
    _native.wait_or_keep(work, framed)
    result = work.result()
    everything = memoryview(result.buffer()).cast("B")
    parts, at = [], 0
    while at < len(everything):
        begin = at + ctypes.sizeof(_LENGTH)
        at = begin + _LENGTH.from_buffer_copy(everything[at:begin]).value
        parts.append(bytes(everything[begin:at]))
    return parts, result.generation


def _tensor(name: str, dtype: str):
    tensor = _library.initialised(_library.Tensor())
    tensor.name = name.encode()
    tensor.dtype = _library.DTYPES[dtype]
    return tensor


def _submit(function: str, tensor, *extra) -> _native.Work:
    pointer = ctypes.c_void_p()
    call = _library.library().function(function)
    status = call(_basics.worker().pointer, ctypes.byref(tensor), *extra, None, ctypes.byref(pointer))
    name = tensor.name.decode()
    if status != 0:
        raise _native.call_error(status, name)
    return _native.Work((pointer.value,), name)
