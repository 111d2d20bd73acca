"""The job that groups of this process are in: one worker for the default group and for those whose members are ranks of it, each of
which is a process set that its members have made alone."""

import collections
import hashlib
import os
import threading
import time
from ctypes import byref, c_char_p, c_double, c_int32, c_size_t, c_void_p
from typing import Callable, Dict, List, Optional, Sequence

from coordd import _ends as _error_ends, _library, _native
from coordd.exceptions import CoorddError
from coordd.torch.distributed import _bootstrap
from coordd.torch.distributed._comm import interruptible

GOODBYE_S = 60.0  # for others that are still in the last collective
_SHUTDOWN_S = 10.0
END_S = GOODBYE_S + _SHUTDOWN_S
_HOLD_FOR_ERROR_S = 3.0
_LAST_CALLS_S = 1.0  # which all have made, to end


class Job:
    """Thread-safe. Ends when the last group has left it."""

    def __init__(self, store, rank: int, size: int, timeout_s: float, recovers: bool = False):
        """Collective: all members. `recovers`: others may go on without a rank that is lost. HorovodInternalError: coordd cannot be
        reached, or a member does not come."""
        self.recovers = recovers
        self.worker = _bootstrap.join(store, rank, size, timeout_s, recovers)
        self.generation = self.worker.place.generation
        if self.worker.place.size != size:
            self.worker.shutdown(_SHUTDOWN_S)
            raise CoorddError(f"{self.worker.place.size} of {size} ranks have come in {timeout_s:g} s", "DEADLINE_EXCEEDED")
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._groups = 0
        self._farewell: Optional[_native.Work] = None  # said at the exit, before the groups are left
        self._leaver: Optional[threading.Thread] = None  # leaves once all others do
        self._made: Dict[str, int] = collections.Counter()  # sets, by label and ranks
        _jobs.append(self)

    def add_set(self, label: str, ranks: Sequence[int], timeout_s: float) -> int:
        """Collective among these ranks of the job, which say the same. The number of the set. HorovodInternalError: coordd's.

        Its name is not that which torch gives the group: where groups are made by their members alone, ranks may count them
        differently."""
        key = hashlib.sha1(f"{label}/{','.join(map(str, sorted(ranks)))}".encode()).hexdigest()
        with self._lock:  # the members make such sets one after the other; one that failed is one for none of them
            name = f"torch/{key}/{self._made[key] + 1}"
        number = c_int32()

        def add() -> None:
            status = _library.library().function("coordd_process_set_add_members")(
                self.worker.pointer, name.encode(), (c_int32 * len(ranks))(*ranks), c_size_t(len(ranks)), c_double(timeout_s),
                byref(number))
            if status != 0:
                raise _native.call_error(status)

        interruptible(add)
        with self._lock:
            self._made[key] += 1
        return number.value

    def begin(self, generation: int) -> None:
        """What members of an earlier one may have counted differently is counted anew."""
        with self._lock:
            self.generation = generation
            self._made.clear()

    def enter(self) -> None:
        with self._lock:
            self._groups += 1

    def leave(self, others_first: bool) -> None:
        """What a group does once. With the last one this rank leaves: once all others do, since a goodbye ends the job for those
        who are still in a last collective; after a minute in any case."""
        with self._lock:
            self._groups -= 1
            if self._groups > 0 or self._pid != os.getpid():
                return
        if _error_ends.unwinding() is not None:  # `finally: dist.destroy_process_group()`: it may end the program, or be handled
            return self.leave_at_exit(_HOLD_FOR_ERROR_S)
        work = None
        if others_first:
            try:
                work = self._farewell or self._goodbye()
            except Exception:
                work = None
        thread = threading.Thread(target=self._end, args=(work,), name="coordd-c10d-leave", daemon=True)
        try:
            thread.start()
            self._leaver = thread
            _ends.append(thread)
        except RuntimeError:  # Python ends
            self._end(work)

    def leave_at_exit(self, hold_s: float) -> None:
        """Instead of leave(), where it is not known yet how the program ends: exit status 0 is a goodbye, any other one a failure.
        After `hold_s` it is a goodbye in any case."""
        if self._pid != os.getpid():
            return
        self.worker.leave_at_exit(hold_s)
        _held.append(self)
        _error_ends.say_goodbye_in_exit(lambda: self.worker.shutdown(_SHUTDOWN_S))
        if self in _jobs:
            _jobs.remove(self)

    def come_to_the_end(self) -> Callable[[], bool]:
        """At the exit of the program: says so, and returns whether all others have come to theirs a while ago. What has not been
        called by then is never called."""
        try:
            self._farewell = self._farewell or self._goodbye()
        except Exception:
            self._farewell = None
        work, since = self._farewell, []  # type: Optional[_native.Work], List[float]

        def all_are_there() -> bool:
            if work is None or self._leaver is not None or not work.done():
                return False
            since.append(time.monotonic())
            return since[-1] - since[0] > _LAST_CALLS_S

        return all_are_there

    def await_others(self) -> None:
        """Until all ranks of the job have come to their end, or one has failed or left; a minute at most."""
        if self._leaver is not None:  # it waits for just that, and a second goodbye beside the first would be refused
            self._leaver.join(END_S)
            return
        try:
            work = self._farewell or self._goodbye()
            if work is not None:
                work.wait()
        except Exception:
            pass  # somebody has left, or was lost

    def _goodbye(self) -> Optional[_native.Work]:
        pointer = c_void_p()
        options = _native.call_options(0, 1.0, 1.0, GOODBYE_S)
        status = _library.library().function("coordd_barrier_async")(self.worker.pointer, c_char_p(b"torch.goodbye"), options,
                                                                     byref(pointer))
        return None if status != 0 else _native.Work((pointer.value or 0,), "torch.goodbye")

    def _end(self, work: Optional[_native.Work]) -> None:
        try:
            if work is not None:
                work.wait()
        except Exception:
            pass  # somebody has left, or was lost
        del work
        self.worker.shutdown(_SHUTDOWN_S)
        if self in _jobs:
            _jobs.remove(self)

    def fail(self, what: str) -> None:
        """Instead of leave(): an error ends the program."""
        self.worker.fail(what, 2.0)


_jobs: List[Job] = []
_held: List[Job] = []  # whose goodbye waits for the status of the process
_ends: List[threading.Thread] = []


def await_ends() -> None:
    for thread in list(_ends):
        thread.join(END_S)
    _ends.clear()


def _all_at_once(calls: Sequence[Callable[[], None]]) -> None:
    """One after the other where Python has come so far in its end that it starts no thread any more."""
    threads = []
    for call in calls[1:]:
        thread = threading.Thread(target=call, name="coordd-c10d-leave", daemon=True)
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:
            call()
    for call in calls[:1]:
        call()
    for thread in threads:
        thread.join(END_S)


def leave_all_at_exit() -> None:
    """At the end of the process, when the groups have ended what they had started. Others may still need this rank: its goodbye ends
    the job for them, and rank 0 may have their coordd. A program that ends with an error does not wait for them."""
    jobs = list(_jobs)
    if not _error_ends.asked_to_fail():
        _all_at_once([job.await_others for job in jobs])
    for job in jobs:
        if job in _jobs:  # it has not left meanwhile
            job.leave_at_exit(GOODBYE_S)
    await_ends()


def fail_all(what: str) -> None:
    for job in [*_jobs, *_held]:
        job.fail(what)


def _abandon() -> None:
    _kept.extend(_jobs)  # the parent's: nothing of them is touched in the child of a fork
    _kept.extend(_held)
    _jobs.clear()
    _held.clear()
    _ends.clear()


_kept: List[Job] = []
os.register_at_fork(after_in_child=_abandon)
