"""Handles of asynchronous operations, and the names of those that the program does not name.

A handle is a number, as in Horovod. It keeps the operation's tensors alive until synchronize().

Names. Ranks agree about tensors by name. A tensor that the program calls ``n`` is ``"<op>.n"``. Without a name it is
``"<op>.noname.<i>"``, where i counts, for each operation and process set, those that were submitted since the program last
had none of them unsynchronized; from 64 on it begins again at 0, as soon as 0 is free, and passes over what is not. So

- i depends on the program's own calls, submissions and synchronize(), and never on timing: ranks that make the same calls in
  the same order use the same names. Other operations in between, and named ones, do not matter; a call that waits is a
  submission that is synchronized at once. (The smallest free number would not do: a program that synchronizes first what
  poll() reports first frees different numbers on different ranks.)
- names repeat from step to step, so that coordd recognises them: a program whose steps end with everything synchronized uses
  as many as it has operations in flight; one that always has some in flight uses 64, or as many as are in flight.
- a call that is refused for its arguments is a call: it takes its i, and the others' call of it fails (_refused.py). It counts as
  synchronized at once.
- after join(), when ranks have made different numbers of calls, all start from 0 again.

A program whose own calls depend on timing gives names: one that submits, say, whenever poll() finds that nothing is in flight.
"""

import itertools
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from coordd import _basics
from coordd._native import Work, keep_until_done
from coordd.exceptions import InvalidArgumentError


WRAP_AT = 64  # far beyond what a program keeps in flight without ever waiting for all of it, and few enough to recognise


class Counter:
    """Unnamed operations of one kind in one process set."""

    __slots__ = ("next", "outstanding")

    def __init__(self):
        self.next = 0
        self.outstanding: Set[int] = set()

    def take(self) -> int:
        index = self.next
        if index >= WRAP_AT and 0 not in self.outstanding:
            index = 0
        while index in self.outstanding:  # only behind the wrap
            index += 1
        self.next = index + 1
        self.outstanding.add(index)
        return index

    def release(self, index: int) -> None:
        self.outstanding.discard(index)
        if not self.outstanding:
            self.next = 0

    def withdraw(self, index: int) -> None:
        """As if it had never been taken, which other ranks do not know."""
        if self.next == index + 1:
            self.next = index
        self.release(index)


Unnamed = Tuple[Counter, int]  # what release() takes


class Names:
    """Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._counters: Dict[Tuple[str, int], Counter] = {}
        self.at_reset: List[Callable[[], None]] = []  # called by reset()

    def take(self, operation: str, name: Optional[str], process_set: int) -> Tuple[str, Optional[Unnamed]]:
        """The name that ranks see, and for an unnamed operation what release() takes once it is synchronized."""
        if name is not None:
            return f"{operation}.{name}", None
        with self._lock:
            counter = self._counters.get((operation, process_set))
            if counter is None:
                counter = self._counters[operation, process_set] = Counter()
            index = counter.take()
        return f"{operation}.noname.{index}", (counter, index)

    def release(self, unnamed: Optional[Unnamed]) -> None:
        if unnamed is None:
            return
        counter, index = unnamed
        with self._lock:
            counter.release(index)

    def withdraw(self, unnamed: Optional[Unnamed]) -> None:
        """Instead of release(), where nothing was submitted."""
        if unnamed is None:
            return
        counter, index = unnamed
        with self._lock:
            counter.withdraw(index)

    def reset(self) -> None:
        """Everything starts from 0; what is unsynchronized now does not count any more."""
        with self._lock:
            self._counters = {}
        for call in self.at_reset:
            call()


names = Names()
_basics.on_end(names.reset)


class Pending(NamedTuple):
    work: Work
    result: Any  # what synchronize returns, unless `finish` makes it
    finish: Optional[Callable[[Work], Any]]
    kept: Any  # tensors that the library reads until the work is complete
    unnamed: Optional[Unnamed]


_pending: Dict[int, Pending] = {}
_numbers = itertools.count(1)


def track(pending: Pending) -> int:
    """A handle for what has been submitted."""
    handle = next(_numbers)
    _pending[handle] = pending
    return handle


def poll(handle: int) -> bool:
    """Whether the operation is complete, so that synchronize() returns at once. Never blocks. ValueError: there is no such
    handle, or it has been synchronized."""
    try:
        return _pending[handle].work.done()
    except KeyError:
        raise InvalidArgumentError(f"handle {handle} is unknown or has been synchronized already",
                                   "NOT_FOUND") from None


def synchronize(handle: int):
    """Waits until the operation is complete and returns its result: a tensor; for a grouped operation a list of tensors;
    for an alltoall (tensor, received splits). None: the handle is unknown or has been synchronized already.
    A callable handle, as sparse_allreduce_async returns it, is called.

    It ends by the operation's deadline (COORDD_TIMEOUT, 10 minutes by default). HorovodInternalError: the operation
    failed; the text names the tensor and, where one is to blame, the rank. The handle is gone then too. After
    KeyboardInterrupt it is still there.
    """
    if callable(handle):
        return handle()
    pending = _pending.pop(handle, None)
    if pending is None:
        return None
    return finish(pending, lambda: _pending.__setitem__(handle, pending))


def finish(pending: Pending, interrupted: Optional[Callable[[], None]] = None):
    """Waits for the work, gives its name back and makes the result."""
    work = pending.work
    try:
        work.wait()
    except BaseException:
        if work.done():
            names.release(pending.unnamed)
        elif interrupted is not None:  # Ctrl-C: the library still reads and writes the tensors
            interrupted()
        else:
            keep_until_done(work, pending)
        raise
    names.release(pending.unnamed)
    if pending.finish is None:
        return pending.result
    return pending.finish(pending.work)
