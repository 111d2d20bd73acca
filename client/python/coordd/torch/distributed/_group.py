"""The two faces of a group. What Python may define differs between versions of torch:

  BackendOfTorch  2.14 and later, whose C++ calls a Backend that is defined in Python (PyBackend); the ProcessGroup stays torch's, so
                  that it may have another backend for another device
  WholeGroup      2.1 to 2.13: a subclass of ProcessGroup, which is the whole group
"""

import contextlib
import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Iterator, List, Optional

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from coordd import _ends
from coordd.torch.distributed import _channel, _store
from coordd.torch.distributed._barriers import Barriers
from coordd.torch.distributed._exchanges import Exchanges
from coordd.torch.distributed._job import Job
from coordd.torch.distributed._memory_pools import MemoryPools
from coordd.torch.distributed._point_to_point import PointToPoint
from coordd.torch.distributed._reductions import Reductions

NAME = "coordd"
HAS_BACKEND = hasattr(c10d.Backend, "supports_reconfigure") and hasattr(c10d.Backend, "reconfigure")
_DEFAULT_S = 1800.0


_alive: List["Group"] = []  # torch's C++ does not keep the Python half
_default: List["Group"] = []  # the default group, if it is one of ours: others are process sets of its job
_made_of: List[Job] = []  # whose members are to be the default group


def alive() -> List["Group"]:
    return list(_alive)


def default() -> Optional["Group"]:
    return _default[0] if _default else None


@contextlib.contextmanager
def made_of(job: Job) -> Iterator[None]:
    """The default group that is made is all of this job."""
    _made_of.append(job)
    try:
        yield
    finally:
        _made_of.pop()


def _is_default() -> bool:
    """Whether torch makes its first group now."""
    return not dist.is_initialized()


class Group(Reductions, Exchanges, PointToPoint, Barriers, MemoryPools):
    """All calls of torch.distributed, over a Channel."""

    def _begin(self, store, rank: int, size: int, timeout, inside: Optional[_channel.Inside]) -> None:
        """Collective: all members."""
        seconds = timeout.total_seconds() if timeout is not None else _DEFAULT_S
        _ends.tell_of_uncaught_errors(_channel.fail_all)
        _ends.note_exits()
        _watch_the_exit()
        channel = _channel.Channel(store, rank, size, max(seconds, 0.001), inside, _made_of[-1] if _made_of else None,
                                   inside is None and _is_default() and os.environ.get("COORDD_ON_FAILURE") in ("raise", "continue"))
        self._setup(channel, keeps_works=not KEEPS_WORKS)
        self._setup_point_to_point()
        _alive.append(self)

    def getBackendName(self):
        return NAME

    def name(self):
        return NAME

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _set_default_timeout(self, timeout):
        """Of what has a timeout of its own; that of collectives was agreed on when the group was made."""
        self._channel.timeout_s = timeout.total_seconds()

    set_timeout = _set_default_timeout

    def shutdown(self):
        """Leaves once the others do."""
        if self in _alive:
            self._drain()
        self._end(others_first=True)

    def abort(self):
        """Leaves at once: what the others have called fails."""
        self._end(others_first=False)

    def _end(self, others_first: bool) -> None:
        self._lane.end()
        unused = self._lane.lock.acquire(blocking=False)
        try:
            self._channel.leave(others_first, unused)
        finally:
            if unused:
                self._lane.lock.release()
        if self in _alive:
            _alive.remove(self)
        if self in _default:
            _default.remove(self)


class BackendOfTorch(Group, c10d.Backend):
    def __init__(self, store, rank: int, size: int, timeout, options=None, inside: Optional[_channel.Inside] = None):
        c10d.Backend.__init__(self, rank, size)
        self._options_ = options if isinstance(options, c10d.Backend.Options) else c10d.Backend.Options(
            NAME, timeout=timeout or timedelta(seconds=_DEFAULT_S))
        self._begin(store, rank, size, timeout, inside)

    @property
    def options(self):
        return self._options_

    # All of them have to be here: torch asks Python for each, and what Python inherits asks torch again, for ever.
    supports_coalescing = property(lambda self: True)
    supports_splitting = property(lambda self: True)
    supports_shrinking = property(lambda self: False)
    supports_reconfigure = property(lambda self: False)
    supports_window = property(lambda self: False)
    supports_abort_hooks = property(lambda self: False)
    _supports_time_estimate = property(lambda self: False)

    def supports_tensor_alloc(self, device_index):
        return False

    def split(self, store, ranks: List[int], opts):
        """Of split_group: the members alone make it."""
        if self._rank_ not in ranks:
            return None
        timeout = getattr(opts, "_timeout", None) or timedelta(seconds=self._channel.timeout_s)
        return BackendOfTorch(store, ranks.index(self._rank_), len(ranks), timeout, opts, self._channel.inside(ranks, "split"))


class WholeGroup(Group, dist.ProcessGroup):  # type: ignore[name-defined,misc]
    def __init__(self, store, rank: int, size: int, timeout, name: str = "", inside: Optional[_channel.Inside] = None):
        dist.ProcessGroup.__init__(self, rank, size)  # type: ignore[attr-defined]
        self._name_, self._description = name, "undefined"
        self._noted = SimpleNamespace()
        self._begin(store, rank, size, timeout, inside)

    @property
    def options(self):
        """Where torch notes things of a group in Gloo's place."""
        return self._noted

    def rank(self):
        return self._rank_

    def size(self):
        return self._size_

    getRank, getSize = rank, size

    @property
    def group_name(self):
        return self._name_

    pg_name = group_name

    def _set_group_name(self, name):
        self._name_ = name

    setGroupName = _set_group_name

    def getGroupName(self):
        return self._name_

    @property
    def group_desc(self):
        return self._description

    def _set_group_desc(self, description):
        self._description = description

    setGroupDesc = _set_group_desc

    def getGroupDesc(self):
        return self._description


# Whether torch keeps the Python half of a Work for its C++ callers (PyWorkHolder).
KEEPS_WORKS = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 8)


def create(opts: Any, options: Any = None):
    """What torch calls on each member of a group."""
    ranks = list(getattr(opts, "global_ranks_in_group", None) or ())  # none: it is the default group
    inside = _default[0]._channel.inside(ranks, "group") if ranks and _default else None
    group: Any
    if HAS_BACKEND:
        group = BackendOfTorch(opts.store, opts.group_rank, opts.group_size, opts.timeout, options, inside)
    else:
        group = WholeGroup(opts.store, opts.group_rank, opts.group_size, opts.timeout, str(opts.group_id), inside)
    if not ranks:
        _default[:] = [group]
    return group


_watched: List[bool] = []


def _watch_the_exit() -> None:
    """Once in a process, also in one that multiprocessing has started, which ends without the handlers of atexit."""
    if not _watched:
        import atexit
        import multiprocessing.util
        _watched.append(True)
        atexit.register(_leave)
        multiprocessing.util.Finalize(None, _leave, exitpriority=10)


def _leave() -> None:
    _channel.leave_all()
    _store.leave()


def _watch_again() -> None:
    _watched.clear()
    _default.clear()  # the parent's


os.register_at_fork(after_in_child=_watch_again)
