"""The part of a group's order that is executed here: collectives that are more than one call of the library (a copy before or behind it,
several calls). What is one call the library executes by itself (Comm.start), as long as nothing is queued here.

Whoever waits for a call executes what is before it and the call itself; a thread executes what nobody waits for yet.
"""

import collections
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Deque, Optional

import torch

from coordd.torch.distributed._works import Work


_LOOK_S, _SLICE_S = 0.001, 0.05


class Call(Work):
    """A collective in its group's order."""

    def __init__(self, lane: "Lane", run: Callable[[], None], result: Any):
        super().__init__(result)
        self._lane: Lane = lane
        self._run: Optional[Callable[[], None]] = run

    def execute(self) -> Callable[[], None]:
        """Within the lane's lock. What is returned is called without it: callbacks may call collectives of the group, and wait."""
        run, self._run = self._run, None
        failure = None
        try:
            with torch.no_grad():
                run()  # type: ignore[misc]
        except BaseException as error:  # handed to whoever waits
            failure = error
        tell = self.settle(failure) or _nothing
        if failure is None or isinstance(failure, Exception):
            return tell
        # Ctrl-C ends what this thread waits for, which may be a call behind this one.
        return lambda: _tell_and_raise(tell, failure)

    def wait(self, timeout=timedelta(0)):
        if not self._complete:
            if timeout:
                self._lane.need_thread()
                self._wait_for_event(timeout)
            else:
                self._lane.drive(self)
        return self._checked()


class Lane:
    """Thread-safe. It has a thread that is free to execute whenever somebody may wait for what only that does: a callback runs on the
    thread that has executed its call, and may wait itself for another call of the group."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held by whoever executes
        self._queue: Deque[Call] = collections.deque()
        self._wake = threading.Semaphore(0)
        self._threads = threading.Lock()
        self._free = 0  # threads that are in no callback
        self._over = False

    def idle(self) -> bool:
        return not self._queue

    def at_once(self, run: Callable[[], None], result: Any) -> Call:
        """On this thread, behind what was called before."""
        call = Call(self, run, result)
        self._queue.append(call)
        self.drive(call)
        return call

    def later(self, run: Callable[[], None], result: Any) -> Call:
        call = Call(self, run, result)
        self._queue.append(call)
        if self._free == 0:
            self.need_thread()
        self._wake.release()
        return call

    def need_thread(self) -> None:
        with self._threads:
            self._start_thread()

    def _start_thread(self) -> None:
        if self._free == 0 and not self._over:
            self._free += 1
            threading.Thread(target=self._loop, name="coordd-c10d", daemon=True).start()
            self._wake.release()

    def drive(self, until: Call) -> None:
        while not until._complete:
            self._execute_next()()

    def drain(self) -> None:
        """Executes what is left, behind what somebody is executing."""
        while self._queue:
            self._execute_next()()
        with self.lock:  # whoever has taken the last one holds it until that is through
            pass

    def finish(self, seconds: float, in_vain: Callable[[], bool] = lambda: False) -> bool:
        """Waits for what is left, which its thread executes; whether all of it is through in time, and before that is in vain."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not in_vain():
            if self._queue:
                time.sleep(_LOOK_S)
            elif self.lock.acquire(timeout=max(0.0, min(_SLICE_S, end - time.monotonic()))):
                self.lock.release()
                return True
        return False

    def _execute_next(self) -> Callable[[], None]:
        """If there is one; others execute what is before. Returns what runs its callbacks."""
        with self.lock:
            return self._queue.popleft().execute() if self._queue else _nothing

    def end(self) -> None:
        self._over = True
        self._wake.release()

    def _loop(self) -> None:
        while True:
            self._wake.acquire()
            if self._over and not self._queue:
                self._wake.release()  # for others
                return
            tell = self._execute_next()
            if tell is _nothing:
                continue
            with self._threads:
                self._free -= 1
                if self._queue:
                    self._start_thread()
            tell()
            with self._threads:
                if self._free > 0:
                    return  # another has taken this one's place
                self._free += 1


def _tell_and_raise(tell: Callable[[], None], interrupt: BaseException) -> None:
    try:
        tell()
    finally:
        raise interrupt


def _nothing() -> None:
    """Of a call without callbacks."""
