"""Small values that the members of a job leave for each other at coordd."""

import ctypes
import time
from ctypes import byref, c_char_p, c_double, c_int32, c_int64, c_size_t
from typing import Sequence

from coordd import _library, _native

_WAIT_SLICE_S = 0.25  # how often a wait lets Ctrl-C through
_MOST_BYTES = 1024
_MOST_KEYS = 1024  # that coordd is asked for at a time


def put(worker: "_native.Worker", key: str, value: bytes, timeout_seconds: float) -> None:
    """CoorddError: coordd cannot be reached."""
    status = _library.library().blocking.coordd_store_set(worker.pointer, key.encode(), value, len(value), timeout_seconds)
    if status != 0:
        raise _native.call_error(status)


def get(worker: "_native.Worker", key: str, timeout_seconds: float, most_bytes: int = _MOST_BYTES) -> bytes:
    """Waits until somebody has put it there. CoorddError: nobody did, the generation has ended, or coordd cannot be
    reached."""
    buffer, size, end = ctypes.create_string_buffer(most_bytes), c_size_t(), time.monotonic() + timeout_seconds
    deadline_exceeded = _library.STATUS["DEADLINE_EXCEEDED"]
    while True:
        status = _library.library().blocking.coordd_store_get(worker.pointer, key.encode(), buffer, len(buffer), byref(size),
                                                              _WAIT_SLICE_S)
        if status != deadline_exceeded or time.monotonic() > end:
            break
        worker.check()
    if status != 0:
        raise _native.call_error(status)
    return buffer.raw[:size.value]


def are_there(worker: "_native.Worker", keys: Sequence[str], timeout_seconds: float) -> bool:
    """Whether all of them are there now. CoorddError: coordd cannot be reached."""
    there, at = c_int32(1), 0
    while there.value != 0 and at < len(keys):
        some = [key.encode() for key in keys[at:at + _MOST_KEYS]]
        status = _library.library().function("coordd_store_check")(worker.pointer, (c_char_p * len(some))(*some), c_size_t(len(some)),
                                                                   byref(there), c_double(timeout_seconds))
        if status != 0:
            raise _native.call_error(status)
        at += len(some)
    return there.value != 0


def add(worker: "_native.Worker", key: str, number: int, timeout_seconds: float) -> int:
    """Adds to the number there, 0 at first; what it is then. CoorddError: coordd cannot be reached."""
    total = c_int64()
    status = _library.library().function("coordd_store_add")(worker.pointer, key.encode(), c_int64(number), byref(total),
                                                             c_double(timeout_seconds))
    if status != 0:
        raise _native.call_error(status)
    return total.value


def delete(worker: "_native.Worker", key: str, timeout_seconds: float) -> bool:
    """Whether there was something. CoorddError: coordd cannot be reached."""
    deleted = c_int32()
    status = _library.library().function("coordd_store_delete")(worker.pointer, key.encode(), byref(deleted), c_double(timeout_seconds))
    if status != 0:
        raise _native.call_error(status)
    return deleted.value != 0
