"""Memory in which tensors take part in collectives without a copy; knows nothing of any framework."""

import ctypes
import os
import sys
from ctypes import byref, c_void_p
from typing import Any

from coordd import _library, _native


class MappedMemory:
    """Memory of coordd_alloc: all zero, in which tensors take part in collectives without a copy, as long as nobody has been
    lost. Freed when nobody refers to it or to buffer() any more; until then its worker stays."""

    def __init__(self, worker: _native.Worker, size_bytes: int):
        """HorovodInternalError: there is no such memory, or the generation has ended."""
        self._worker = worker
        self._pid = os.getpid()
        self.size_bytes = size_bytes
        self._address = c_void_p()
        status = _library.library().blocking.coordd_alloc(worker.pointer, size_bytes, byref(self._address))
        if status != 0:
            raise _native.call_error(status)

    def buffer(self):
        """Its bytes, writable; keeps the memory."""
        buffer: Any = (ctypes.c_char * self.size_bytes).from_address(self._address.value or 0)
        buffer.memory = self
        return buffer

    def is_mapped(self) -> bool:
        """Whether the other ranks of the node have it mapped."""
        return _library.library().blocking.coordd_register(self._worker.pointer, self._address, self.size_bytes) == 0

    def __del__(self, getpid=os.getpid, finalizing=sys.is_finalizing):
        if getattr(self, "_address", None) and self._pid == getpid() and not finalizing():
            _library.library().blocking.coordd_free(self._worker.pointer, self._address)
