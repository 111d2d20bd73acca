"""A comm of the library: collectives in one order, which run on the thread that calls them, or are started and go on by themselves."""

import collections
import math
import os
import queue
import re
import threading
import time
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from coordd import _library, _native
from coordd.torch.distributed._errors import backend_error

_CALLS: Dict[str, List[Any]] = {
    "allreduce": [c_void_p, c_void_p, c_int64, c_int32, c_int32],
    "reducescatter": [c_void_p, c_void_p, c_int64, c_int32, c_int32],
    "broadcast": [c_void_p, c_int64, c_int32, c_int32],
    "allgather": [c_void_p, c_void_p, c_int64, c_int32],
    "alltoallv": [c_void_p, c_void_p, c_void_p, c_void_p, c_int32],
    "barrier": []}
_SLICE_S = 0.25  # how often a wait lets Ctrl-C through
_SLICE = c_double(_SLICE_S)
CANCELLED, DEADLINE_EXCEEDED = _library.STATUS["CANCELLED"], _library.STATUS["DEADLINE_EXCEEDED"]


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
    messages = {}
    for name in ("send", "receive"):
        messages[name] = getattr(library.quick, f"coordd_comm_{name}_async")
        messages[name].argtypes = [c_void_p, c_void_p, c_int64, c_int32, c_int32, c_int64, c_void_p]
    messages["withdraw"] = library.quick.coordd_comm_withdraw
    messages["withdraw"].argtypes = [c_void_p, c_void_p]
    return create, free, runs, starts, messages


def _slice_until(deadline: float) -> c_double:
    return _SLICE if deadline == math.inf else c_double(min(_SLICE_S, max(deadline - time.monotonic(), 0.0)))


def await_status(work: _native.Work, deadline: float = math.inf) -> int:
    """Waits for a work of a comm: what it has ended with, or DEADLINE_EXCEEDED. Can be interrupted by Ctrl-C; the work then goes on."""
    library, pointer = _library.library(), work.pointers[0]
    wait, poll, argument = library.blocking.coordd_work_wait, library.quick.coordd_work_poll, c_void_p(pointer)
    status = wait(argument, _slice_until(deadline))
    if status != DEADLINE_EXCEEDED:
        return status
    while True:
        complete = poll(pointer) != 0  # looked at before: it may end between the two, and its status is what counts
        status = wait(argument, _slice_until(deadline))
        if status != DEADLINE_EXCEEDED or complete or time.monotonic() > deadline:
            return status


class Comm:
    """One thread at a time makes calls, which run in that order. `kept`: what the library reads and writes. DistBackendError:
    coordd's sentence."""

    def __init__(self, worker: _native.Worker, process_set: int, timeout_s: float):
        """Collective: all members of the set. CoorddError: coordd's."""
        self.timeout_s = timeout_s
        self.order: Optional[List[int]] = None  # members as the program counts them, if it counts them otherwise
        self._pointer = c_void_p()
        create, self._free, self._runs, self._starts, self._messages = _declared()
        self._running = c_void_p()  # of a call that has come back before its end
        self._running_reference = byref(self._running)
        self._started: Deque[Tuple[_native.Work, Any]] = collections.deque()
        self._letting_go, self._freeing = threading.Lock(), threading.Lock()
        self._poll = _library.library().quick.coordd_work_poll

        def make() -> None:
            status = create(worker.pointer, process_set, b"torch", timeout_s, byref(self._pointer))
            if status != 0:
                raise _native.call_error(status)

        interruptible(make)
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
            raise self.error(status)
        try:
            status = await_status(work)
        except BaseException:
            _native.keep_until_done(work, kept)
            raise
        if status != 0:
            raise self.error(status)

    def error(self, status: int) -> Exception:
        """For a call of this thread that has just failed. Its sentence counts the members as the program does."""
        error, order = backend_error(status, self.timeout_s), self.order
        if order is None:
            return error
        return type(error)(re.sub(r"\bmember (\d+)\b", lambda found: f"member {order[int(found[1])]}", str(error)))

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
            raise self.error(status)
        work = _native.Work((pointer.value,), "torch")
        started = self._started
        if started and self._poll(started[0][0].pointers[0]) == 1:
            self.let_go()
        started.append((work, kept))
        return work

    def message(self, function: str, address: int, count: int, dtype: int, peer: int, tag: int) -> _native.Work:
        """Thread-safe. `peer` counts the members."""
        pointer = c_void_p()
        status = self._messages[function](self._pointer, address or 64, count, dtype, peer, tag, byref(pointer))
        if status != 0:
            raise backend_error(status, self.timeout_s)
        return _native.Work((pointer.value,), "torch")

    def withdraw(self, receive: _native.Work) -> bool:
        """Of one that is not waited for any longer. True: it has ended with CANCELLED, or ends as it would have, since its message is
        there. False: the comm is over. Thread-safe."""
        with self._freeing:
            if self._pointer.value is None:
                return False
            self._messages["withdraw"](self._pointer, receive.pointers[0])
            return True

    def let_go(self) -> None:
        """Of what has ended and is kept. Thread-safe."""
        if self._letting_go.acquire(False):
            started, poll = self._started, self._poll
            try:
                while started and poll(started[0][0].pointers[0]) == 1:
                    started.popleft()
            finally:
                self._letting_go.release()

    def finish(self, seconds: float, in_vain: Callable[[], bool] = lambda: False) -> bool:
        """Waits for what was started; whether all of it has ended in time, and before that is in vain."""
        end = time.monotonic() + seconds
        wait = _library.library().blocking.coordd_work_wait
        for work, _ in list(self._started):
            while not work.done():
                if time.monotonic() > end or in_vain():
                    return False
                wait(c_void_p(work.pointers[0]), c_double(min(seconds, _SLICE_S)))
        self.let_go()
        return True

    def free(self) -> None:
        """Ends what has not begun, and waits for what has."""
        with self._freeing:  # another thread's wait for a message may be over just now
            pointer = c_void_p(self._pointer.value)
            self._pointer.value = None  # for whoever calls it all the same
        self._free(pointer)

    def abandon(self) -> None:
        """Instead of free(): somebody is in a call, or something goes on whose end is not waited for."""
        self._pointer.value = None
        _abandoned.append(self)


class _Maker:
    """A thread for calls that wait for others and which Ctrl-C does not end."""

    def __init__(self) -> None:
        self.queue: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="coordd-c10d-make", daemon=True).start()

    def _loop(self) -> None:
        while True:
            self.queue.get()()


_makers: List[_Maker] = []  # that are free


def interruptible(call: Callable[[], None]) -> None:
    """Makes it; Ctrl-C ends the wait for it, and it goes on."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    maker = _makers.pop() if _makers else _Maker()
    over, failure = threading.Event(), []  # type: threading.Event, List[BaseException]

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failure.append(error)
        finally:
            _makers.append(maker)
            over.set()

    maker.queue.put(run)
    over.wait()
    if failure:
        raise failure[0]


os.register_at_fork(after_in_child=_makers.clear)
_abandoned: List[Comm] = []  # with the memory that the library may use
