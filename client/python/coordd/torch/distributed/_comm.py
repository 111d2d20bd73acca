"""A comm of the library: collectives in one order, which run on the thread that calls them, or are started and go on by themselves."""

import collections
import threading
import time
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any, Deque, Dict, List, Optional, Tuple

from coordd import _library, _native
from coordd.torch.distributed._errors import backend_error

_CALLS: Dict[str, List[Any]] = {
    "allreduce": [c_void_p, c_void_p, c_int64, c_int32, c_int32],
    "reducescatter": [c_void_p, c_void_p, c_int64, c_int32, c_int32],
    "broadcast": [c_void_p, c_int64, c_int32, c_int32],
    "allgather": [c_void_p, c_void_p, c_int64, c_int32],
    "alltoall": [c_void_p, c_void_p, c_int64, c_int32],
    "barrier": []}
_SLICE_S = 0.25  # how often a wait lets Ctrl-C through
_SLICE = c_double(_SLICE_S)
_DEADLINE_EXCEEDED = _library.STATUS["DEADLINE_EXCEEDED"]


def _declared():
    """Functions of comms, with their prototypes. The interpreter's lock is released in those that wait."""
    library = _library.library()
    create = library.function("coordd_comm_create")
    create.argtypes = [c_void_p, c_int32, c_char_p, c_double, POINTER(c_void_p)]
    free = library.function("coordd_comm_free")
    free.argtypes, free.restype = [c_void_p], None
    runs, starts = {}, {}
    for name, arguments in _CALLS.items():
        runs[name] = library.function(f"coordd_comm_{name}_for")
        runs[name].argtypes = [c_void_p, *arguments, c_double, c_void_p]
        starts[name] = getattr(library.quick, f"coordd_comm_{name}_async")
        starts[name].argtypes = [c_void_p, *arguments, c_void_p]
    return create, free, runs, starts


def await_status(work: _native.Work) -> int:
    """Waits for a work of a comm: what it has ended with. Can be interrupted by Ctrl-C; the work then goes on."""
    library, pointer = _library.library(), work.pointers[0]
    wait, poll, argument = library.blocking.coordd_work_wait, library.quick.coordd_work_poll, c_void_p(pointer)
    while True:
        complete = poll(pointer) != 0  # looked at before: it may end between the two, and its status is what counts
        status = wait(argument, _SLICE)
        if status != _DEADLINE_EXCEEDED or complete:
            return status


class Comm:
    """One thread at a time makes calls, which run in that order. `kept`: what the library reads and writes. DistBackendError:
    coordd's sentence."""

    def __init__(self, worker: _native.Worker, process_set: int, timeout_s: float):
        """Collective: all members of the set. CoorddError: coordd's."""
        self.timeout_s = timeout_s
        self._pointer = c_void_p()
        create, self._free, self._runs, self._starts = _declared()
        self._running = c_void_p()  # of a call that has come back before its end
        self._running_reference = byref(self._running)
        self._started: Deque[Tuple[_native.Work, Any]] = collections.deque()
        self._letting_go = threading.Lock()
        self._poll = _library.library().quick.coordd_work_poll
        status = create(worker.pointer, process_set, b"torch", timeout_s, byref(self._pointer))
        if status != 0:
            raise _native.call_error(status)
        self.allreduce = self._in_place_allreduce()

    def run(self, name: str, kept: Any, *arguments: Any) -> None:
        """The call `name` with coordd's arguments. Can be interrupted by Ctrl-C; it then goes on."""
        try:
            status = self._runs[name](self._pointer, *arguments, _SLICE_S, self._running_reference)
        except BaseException:  # of a signal's handler
            self._keep_running(kept)
            raise
        if status != 0:
            self._end(status, kept)

    def _in_place_allreduce(self):
        """The same for the call that is made most often."""
        call, comm, reference = self._runs["allreduce"], self._pointer, self._running_reference

        def allreduce(kept: Any, address: int, count: int, dtype: int, op: int) -> None:
            try:
                status = call(comm, address, address, count, dtype, op, _SLICE_S, reference)
            except BaseException:
                self._keep_running(kept)
                raise
            if status != 0:
                self._end(status, kept)

        return allreduce

    def _end(self, status: int, kept: Any) -> None:
        """Of a call that has failed, or goes on."""
        work = self._taken()
        if work is None:
            raise backend_error(status, self.timeout_s)
        try:
            status = await_status(work)
        except BaseException:
            _native.keep_until_done(work, kept)
            raise
        if status != 0:
            raise backend_error(status, self.timeout_s)

    def _taken(self) -> Optional[_native.Work]:
        address, self._running.value = self._running.value, None
        return None if not address else _native.Work((address,), "torch")

    def _keep_running(self, kept: Any) -> None:
        work = self._taken()
        if work is not None:
            _native.keep_until_done(work, kept)

    def start(self, name: str, kept: Any, *arguments: Any) -> _native.Work:
        """The same without waiting. `kept` is kept until it has ended."""
        pointer = c_void_p()
        status = self._starts[name](self._pointer, *arguments, byref(pointer))
        if status != 0:
            raise backend_error(status, self.timeout_s)
        work = _native.Work((pointer.value,), "torch")
        started = self._started
        if started and self._poll(started[0][0].pointers[0]) == 1:
            self.let_go()
        started.append((work, kept))
        return work

    def let_go(self) -> None:
        """Of what has ended and is kept. Thread-safe."""
        if self._letting_go.acquire(False):
            started, poll = self._started, self._poll
            try:
                while started and poll(started[0][0].pointers[0]) == 1:
                    started.popleft()
            finally:
                self._letting_go.release()

    def finish(self, seconds: float) -> bool:
        """Waits for what was started; whether all of it has ended in time."""
        end = time.monotonic() + seconds
        wait = _library.library().blocking.coordd_work_wait
        for work, _ in list(self._started):
            while not work.done():
                if time.monotonic() > end:
                    return False
                wait(c_void_p(work.pointers[0]), c_double(min(seconds, _SLICE_S)))
        self.let_go()
        return True

    def free(self) -> None:
        """Ends what has not begun, and waits for what has."""
        pointer = c_void_p(self._pointer.value)
        self._pointer.value = None  # for whoever calls it all the same
        self._free(pointer)

    def abandon(self) -> None:
        """Instead of free(): somebody is in a call, or something goes on whose end is not waited for."""
        self._pointer.value = None
        _abandoned.append(self)


_abandoned: List[Comm] = []  # with the memory that the library may use
