"""Works on memory of a GPU: whoever waits for one has torch's current stream wait, and goes on."""

import math
import threading
import time
from ctypes import c_double, c_void_p
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence

import torch
import torch.distributed as dist

from coordd import _library, _native
from coordd.exceptions import CoorddError
from coordd.torch._completions import Completions
from coordd.torch._graphs import capturing
from coordd.torch._streams import OnStream, raw_stream
from coordd.torch.distributed._errors import as_backend_error
from coordd.torch.distributed._works import NOTHING, Work

_SLICE_S = 0.25  # how often a wait lets Ctrl-C through


def await_device(native: _native.Work, seconds: float = math.inf) -> bool:
    """Whether the device is through in time, or the work has failed."""
    wait, end = _library.library().blocking.coordd_work_wait, time.monotonic() + seconds
    for pointer in native.pointers:
        while _library.library().quick.coordd_work_poll(pointer) == 0:
            left = end - time.monotonic()
            if left <= 0:
                return False
            wait(c_void_p(pointer), c_double(min(left, _SLICE_S)))
    return True


class _Waiting(_native.OnDevice):
    """As torch's own NCCL backend does, it has the allocator know of a stream that waits only where that is not the one on which the
    call was made: there the program's tensors were in use already, and there ours were made."""

    __slots__ = ("_device", "_made_on", "_tensors")

    def __init__(self, device: torch.device, tensors: Sequence[Any], made_on: int):
        self._device, self._tensors, self._made_on = device, tensors, made_on

    def current_stream(self) -> int:
        current = raw_stream(self._device)
        return current if current == self._made_on else OnStream(self._device, self._tensors).current_stream()


class Enqueued(_native.Work):
    """Operations of the library on a GPU, with the tensors that they use. In order: with the streams which have waited for it."""

    __slots__ = ("_before", "device", "memories")

    def __init__(self, pointers: Sequence[Any], name: str, tensors: Sequence[Any], stream: int):
        """`tensors`: on one device. `stream`: on which the call was made, a cudaStream_t."""
        self.device: torch.device = tensors[0].device
        _native.Work.__init__(self, pointers, name, _Waiting(self.device, tensors, stream))
        self._before: Optional[int] = None  # a stream that waits for it already
        self.memories: Sequence[int] = ()  # those of the program's tensors, for who keeps it

    def wait(self) -> None:
        """Has the current stream wait for it, once it is on the device."""
        _native.Work.wait(self)
        self._before = raw_stream(self.device)

    def come_before(self, stream: int) -> None:
        """The same for `stream`, the current one. Its failure is for who waits for the work."""
        if self._before != stream:
            try:
                self.wait()
            except CoorddError:
                pass


class GpuWork(Work):
    """Operations of the library, and what makes torch's result of theirs, enqueued once, on the stream of who waits first. Complete
    when the device is through; wait() does not wait for that."""

    _after: Any = None  # an event behind what was enqueued last

    def __init__(self, native: Enqueued, result: Any, timeout_s: float, behind: Optional[List[Callable[[], Any]]] = None):
        """`timeout_s`: that of the operations, for their error."""
        Work.__init__(self, result)
        self.native, self._timeout_s, self._behind = native, timeout_s, behind
        self._device = native.device
        self._waits = threading.Lock()

    def devices(self) -> List[torch.device]:
        return [self._device]

    def wait(self, timeout=timedelta(0)):
        if timeout:
            self._await_device(timeout.total_seconds())
        with self._waits:
            self._checked()
            try:
                self.native.wait()
                if self._after is not None:
                    torch.cuda.current_stream(self._device).wait_event(self._after)
                elif self._behind:
                    self._finish_result()
            except dist.DistBackendError:  # type: ignore[attr-defined]
                raise
            except Exception as error:
                self._failure = as_backend_error(error, self._timeout_s)
        return self._checked()

    def _finish_result(self) -> None:
        with torch.no_grad(), torch.cuda.device(self._device):
            for step in self._behind or ():
                step()
            self._behind = None
            if not capturing():
                self._after = torch.cuda.Event()
                self._after.record(torch.cuda.current_stream(self._device))

    def _await_device(self, seconds: float) -> None:
        """DistBackendError: the device is not through in time; it goes on."""
        if not await_device(self.native, seconds):
            raise dist.DistBackendError(  # type: ignore[attr-defined]
                f"coordd: the timeout of {seconds:g} s of this wait is over; the work goes on [DEADLINE_EXCEEDED]")

    def is_completed(self):
        if not self.native.done():
            return False
        if self._failure is None and self._after is None:
            try:
                self.wait()
            except Exception:
                pass  # it is kept
        return self._failure is not None or self._after is None or self._after.query()

    def is_success(self):
        return self.is_completed() and self._failure is None

    def exception(self):
        return self._failure if self.is_completed() else None

    def get_future(self):
        if self.is_asked():
            return NOTHING
        promise, first, _ = self.promise()
        if first and capturing():  # a thread of ours, on a stream of its own, has no part in the capture
            promise.set_result(self._awaited())
        elif first:
            self._completions().add(self._device, self._awaited, promise)
        return promise.future

    def _completions(self) -> Completions:
        return collectives

    def _awaited(self) -> Any:
        self.wait()
        return self._result


class GpuMessage(GpuWork):
    """A send or a receive: what comes behind it may be what its peer waits for, so its future has a thread of its own."""

    def __init__(self, native: Enqueued, result: Any, timeout_s: float, behind: Optional[List[Callable[[], Any]]], source: int):
        GpuWork.__init__(self, native, result, timeout_s, behind)
        self.source = source

    def _completions(self) -> Completions:
        return Completions("coordd-c10d-message")


collectives = Completions("coordd-c10d-gpu")
