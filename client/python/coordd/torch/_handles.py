"""Handles of asynchronous operations, and the names of those that the program does not name.

A handle is a number, as in Horovod. It keeps the operation's tensors alive until synchronize().

Names. Ranks agree about tensors by name. A tensor that the program calls ``n`` is ``"<op>.n"``. Without a name it is
``"<op>.noname.<i>"``, where i counts, per operation and process set, the operations since the program last had none of
them unsynchronized. So

- i depends on the order of the program's own calls and never on timing: ranks that make the same calls use the same
  names. (The smallest index that is free would not do: a program that synchronizes what poll() reports first frees other
  indices on other ranks.)
- names repeat from step to step, as soon as a step ends with everything synchronized, so that coordd can recognise them;
- after join(), when ranks have made different numbers of calls, all start from 0 again.
"""

import itertools
import threading
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from coordd import _basics
from coordd._native import Work
from coordd.exceptions import InvalidArgumentError


class Counter:
    """Unnamed operations of one kind in one process set."""

    __slots__ = ("next", "outstanding")

    def __init__(self):
        self.next = 0
        self.outstanding = 0


class Names:
    """Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._counters: Dict[Tuple[str, int], Counter] = {}

    def take(self, operation: str, name: Optional[str], process_set: int) -> Tuple[str, Optional[Counter]]:
        """The name that ranks see, and for an unnamed operation what release() takes once it is synchronized."""
        if name is not None:
            return f"{operation}.{name}", None
        with self._lock:
            counter = self._counters.get((operation, process_set))
            if counter is None:
                counter = self._counters[operation, process_set] = Counter()
            index = counter.next
            counter.next = index + 1
            counter.outstanding += 1
        return f"{operation}.noname.{index}", counter

    def release(self, counter: Optional[Counter]) -> None:
        if counter is None:
            return
        with self._lock:
            counter.outstanding -= 1
            if counter.outstanding == 0:
                counter.next = 0

    def reset(self) -> None:
        """Everything starts from 0; what is unsynchronized now does not count any more."""
        with self._lock:
            self._counters = {}


names = Names()
_basics.on_shutdown(names.reset)


class Pending(NamedTuple):
    work: Work
    result: Any  # what synchronize returns, unless `finish` makes it
    finish: Optional[Callable[[Work], Any]]
    kept: Any  # tensors that the library reads until the work is complete
    counter: Optional[Counter]


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
    for an alltoall with splits (tensor, received splits). None: the handle is unknown or has been synchronized already.
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
    try:
        pending.work.wait()
    except Exception:
        names.release(pending.counter)
        raise
    except BaseException:  # Ctrl-C: the library still reads and writes the tensors
        if interrupted is not None:
            interrupted()
        raise
    names.release(pending.counter)
    if pending.finish is None:
        return pending.result
    return pending.finish(pending.work)
