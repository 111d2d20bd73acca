"""Works: the futures that torch.distributed's calls return.

C++ asks a Work that is defined in Python for wait() and get_future() only (PyWork). torch 2.14 and later hand a holder around instead of
the object itself, which forwards these two: is_completed(), result() and the like, called on the holder, would answer for the
holder, which never completes. answer_for_holders() has them ask the object.
"""

import contextlib
import ctypes
import itertools
import threading
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from coordd import _library, _native
from coordd.exceptions import CoorddError
from coordd.torch._futures import Promise
from coordd.torch.distributed._comm import Comm, await_status
from coordd.torch.distributed._errors import as_backend_error, backend_error

_asking = threading.local()
_Lock, _RLock = threading.Lock, threading.RLock
NOTHING: "Future[Any]" = Future()
NOTHING.set_result(None)


class Work(c10d.Work):
    """What all works have in common. Complete: finish() has been called. One is made for each call, so what most of them never
    change stands in the class."""

    source = -1
    _failure: Optional[BaseException] = None
    _complete = False
    _promise: Optional[Promise] = None
    _event: Optional[threading.Event] = None

    def __init__(self, result: Any):
        c10d.Work.__init__(self)
        self._result = result
        self._state = _Lock()

    def finish(self, failure: Optional[BaseException] = None) -> None:
        """Once, by whoever has executed it. Callbacks of the future run in it."""
        tell = self.settle(failure)
        if tell is not None:
            tell()

    def settle(self, failure: Optional[BaseException] = None) -> Optional[Callable[[], None]]:
        """The same without callbacks, which the returned function calls, if there are any: for who holds a lock that they may want."""
        with self._state:
            self._failure, self._complete = failure, True
            promise, event = self._promise, self._event
        if event is not None:
            event.set()
        return None if promise is None else (lambda: self._keep(promise))

    def _keep(self, promise: Promise) -> None:
        if self._failure is not None:
            promise.set_exception(self._failure)
        else:
            promise.set_result(self._result)

    def is_asked(self) -> bool:
        """By _behind_holder(), which object it is; nobody wants a future."""
        if getattr(_asking, "active", False):
            _asking.found = self
            return True
        return False

    def get_future(self):
        if self.is_asked():
            return NOTHING
        promise, first, complete = self.promise()
        if first and complete:
            self._keep(promise)
        return promise.future

    def promise(self) -> Tuple[Promise, bool, bool]:
        """The one that there is, whether this call has made it, and whether the work was complete then."""
        with self._state:
            first = self._promise is None
            if self._promise is None:
                self._promise = Promise(self.devices() or None)
            return self._promise, first, self._complete

    def devices(self) -> List[torch.device]:
        """GPUs on which the result is made."""
        return []

    def _wait_for_event(self, timeout: timedelta) -> None:
        """For others to complete it. DistBackendError: not in time; it goes on."""
        with self._state:
            if self._event is None:
                self._event = threading.Event()
                if self._complete:
                    self._event.set()
        if not self._event.wait(timeout.total_seconds()):
            raise dist.DistBackendError(  # type: ignore[attr-defined]
                f"coordd: the timeout of {timeout.total_seconds():g} s of this wait is over; the work goes on [DEADLINE_EXCEEDED]")

    def _checked(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return True

    def is_completed(self):
        return self._complete

    def is_success(self):
        return self.is_completed() and self._failure is None

    def exception(self):
        return self._failure

    def result(self):
        self.wait()
        return self._result

    def synchronize(self):
        self.wait()

    def wait(self, timeout=timedelta(0)):
        raise NotImplementedError

    def _source_rank(self):
        return self.source

    source_rank = _source_rank


class Done(Work):
    """Of a call that has blocked."""

    def __init__(self, result: Any = None):
        super().__init__(result)
        self._complete = True

    def wait(self, timeout=timedelta(0)):
        return True


class Several(Work):
    """Works that are waited for together."""

    def __init__(self, works: List[Work]):
        super().__init__([])
        self._works = works

    def wait(self, timeout=timedelta(0)):
        failure = None
        for work in self._works:
            try:
                work.wait(timeout)
            except Exception as error:
                failure = failure or error
        if not self._complete:
            self.finish(failure)
        return self._checked()

    def is_completed(self):
        return self._complete or all(work.is_completed() for work in self._works)

    def devices(self):
        return list({device: None for work in self._works for device in work.devices()})

    def get_future(self):
        if not getattr(_asking, "active", False) and not self._complete:
            threading.Thread(target=self._wait_quietly, name="coordd-c10d-several", daemon=True).start()
        return super().get_future()

    def _wait_quietly(self):
        with contextlib.ExitStack() as streams:  # the future carries on what they wait for
            for device in self.devices():
                streams.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
            try:
                self.wait()
            except Exception:
                pass  # the future has it


_told: Dict[int, "Native"] = {}  # of whose end the library will tell; nobody else may hold them: DDP keeps the future alone
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)  # coordd_done_t
def _ended(number, _status, _message):
    try:
        _told.pop(number).wait()
    except Exception:
        pass  # the future has it


class Native(Work):
    """A work of the library, which progresses by itself."""

    _is_told = False  # whether the library will tell of its end

    def __init__(self, native: _native.Work, result: Any, timeout_s: float):
        """`timeout_s`: that of the operation, for its error."""
        Work.__init__(self, result)
        self._native, self._timeout_s = native, timeout_s
        self._ends = _RLock()  # whoever waits may execute it, and so run its callback

    def _await(self) -> None:
        """Until it has ended. DistBackendError: it has failed."""
        raise NotImplementedError

    def wait(self, timeout=timedelta(0)):
        if timeout and not self._complete and not self._native.done():
            self.get_future()
            self._wait_for_event(timeout)
        if not self._complete:
            self._end()
        return self._checked()

    def _end(self) -> None:
        with self._ends:
            if self._complete:
                return
            failure: Optional[Exception] = None
            try:
                self._await()
            except dist.DistBackendError as error:  # type: ignore[attr-defined]
                failure = error
            except Exception as error:
                failure = as_backend_error(error, self._timeout_s)
            if not self._complete:  # by the callback
                self.finish(failure)

    def is_completed(self):
        if not self._complete and self._native.done():
            self._end()
        return self._complete

    def get_future(self):
        future = super().get_future()
        if future is not NOTHING and not self._complete and not self._is_told:
            self._is_told = True
            number = next(_numbers)
            _told[number] = self
            _library.library().function("coordd_work_on_complete")(ctypes.c_void_p(self._native.pointers[0]), _ended, ctypes.c_void_p(number))
        return future


class Started(Native):
    """A call of a comm."""

    def __init__(self, native: _native.Work, result: Any, comm: Comm):
        Native.__init__(self, native, result, comm.timeout_s)
        self._comm = comm

    def _await(self) -> None:
        status = await_status(self._native)
        self._comm.let_go()
        if status != 0:
            raise self._comm.error(status)


class Named(Native):
    """A named operation of the library: a send or a receive."""

    def __init__(self, native: _native.Work, result: Any, timeout_s: float, source: int = -1,
                 behind: Optional[Callable[[], Any]] = None):
        super().__init__(native, result, timeout_s)
        self.source = source
        self._behind = behind

    def _await(self) -> None:
        try:
            self._native.wait()
        except CoorddError as error:
            raise as_backend_error(error, self._timeout_s) from None
        if self._behind is not None:
            with torch.no_grad():
                self._behind()

    def result_to(self, result: Any, behind: Callable[[], Any]) -> None:
        """For a receive that was begun before it was known where to."""
        with self._ends:
            self._result, self._behind = result, behind


# --- torch's holder of a work ----------------------------------------------------------------------------------------


def _behind_holder(holder) -> Optional[Work]:
    """Our object behind a holder of torch's; None: it is a work of another backend."""
    _asking.active, _asking.found = True, None
    try:
        holder.get_future()
    except Exception:
        return None  # of a backend without futures
    finally:
        _asking.active = False
    return _asking.found


def answer_for_holders() -> None:
    """Has the methods that a holder does not forward ask our object, on works that are ours; those of others answer as before."""
    if getattr(c10d.Work, "_coordd_answers", False):
        return
    for name in ("is_completed", "is_success", "exception", "result", "synchronize", "source_rank", "_source_rank"):
        before = getattr(c10d.Work, name, None)
        if before is None:
            continue

        def ask(self, *, _name=name, _before=before):
            own = _behind_holder(self) if type(self) is c10d.Work else None
            return _before(self) if own is None else getattr(own, _name)()

        setattr(c10d.Work, name, ask)
    c10d.Work._coordd_answers = True  # type: ignore[attr-defined]
