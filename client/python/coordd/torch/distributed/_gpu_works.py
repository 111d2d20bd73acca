"""Works on memory of a GPU: whoever waits for one has torch's current stream wait, and goes on."""

import math
import threading
import time
from ctypes import c_double, c_void_p
from datetime import timedelta
from typing import Any, Callable, List, Sequence

import torch
import torch.distributed as dist

from coordd import _library, _native
from coordd.torch._completions import Completions
from coordd.torch._graphs import capturing
from coordd.torch._streams import OnStream
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


class GpuWork(Work):
    """Operations of the library, and what makes torch's result of theirs, enqueued once, on the stream of who waits first. Complete
    when the device is through; wait() does not wait for that."""

    def __init__(self, pointers: Sequence[Any], name: str, result: Any, device: torch.device, tensors: Sequence[Any],
                 timeout_s: float, behind: Sequence[Callable[[], Any]] = (), source: int = -1):
        """`timeout_s`: that of the operations, for their error."""
        super().__init__(result)
        self._timeout_s = timeout_s
        self.native = _native.Work(list(pointers), name, OnStream(device, tensors))
        self.source = source
        self._device, self._behind = device, list(behind)
        self._waits = threading.Lock()
        self._after: Any = None  # an event behind what was enqueued last

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
            for step in self._behind:
                step()
            self._behind.clear()
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

    def _completions(self) -> Completions:
        return Completions("coordd-c10d-message")


collectives = Completions("coordd-c10d-gpu")
