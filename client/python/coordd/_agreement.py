"""What ranks agree on without any framework."""

import ctypes

from coordd import _basics, _library, _native

_MAX = 4  # coordd_op_t


def largest(name: str, value: int) -> int:
    """Collective: the largest of all ranks' values. `name` as of any tensor."""
    number = ctypes.c_int64(value)
    tensor = _library.initialised(_library.Tensor())
    tensor.name = name.encode()
    tensor.input = tensor.output = ctypes.addressof(number)
    tensor.dtype = _library.DTYPES["int64"]
    pointer = ctypes.c_void_p()
    function = _library.library().function("coordd_allreduce_async")
    status = function(_basics.worker().pointer, ctypes.byref(tensor), ctypes.c_int32(_MAX), None, ctypes.byref(pointer))
    if status != 0:
        raise _native.call_error(status, name)
    _native.wait_or_keep(_native.Work((pointer.value,), name), number)
    return number.value
