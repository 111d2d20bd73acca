"""Elastic training: state that can be committed, rolled back and given to others.

A job that was started with ``coordrun --min-np N`` (or COORDD_ON_FAILURE=raise) goes on without a rank that was lost, as long as
N are left: the others form the next generation, take the state back to their last commit, give everyone rank 0's, call the
reset callbacks and run the function again. Their processes, models and data stay where they are. A worker that is started
while the job runs (one that ``coordrun --max-restarts`` starts again, or another coordrun of the same job) waits until all
ranks commit, and is a member from then on. A rank that is asked to leave (``coordctl drain``, a host that
``--host-discovery-script`` no longer prints, or SIGTERM, as batch systems announce the end of a node) leaves when all ranks
commit: its drain callbacks are called, its process ends with status 0, and the others go on without it. In any other job a loss ends run() with HorovodInternalError, the state being back at its
last commit.

With COORDD_ON_FAILURE=continue (``coordrun --min-np N --on-failure continue``) a loss takes nothing back: collectives go on among
those who are left, with what they had been given, and no error is raised. A step in which a rank is lost is reduced over those
who are left, and averages are divided by their number. At the next commit all ranks learn of it, and call the reset callbacks;
whoever wants to know at once registers a function with on_members_changed(). Newcomers are let in at a commit, as otherwise, and
take the state of the first rank that has one. Only collectives that name a rank (broadcasts, for instance) fail when a loss
interrupts them, with the code "GENERATION_CHANGED": a training function that uses them has to call them again.
"""

import contextlib
import copy
import functools
import os
import pickle
import signal
import sys
import threading
import uuid
from typing import Any, Callable, Iterable, List, Optional, Tuple

from coordd import _agreement, _basics
from coordd.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["State", "ObjectState", "run_fn", "on_members_changed"]

# Seconds from SIGTERM to the moment when coordd evicts a rank that has not left; 0: SIGTERM ends the process at once.
# Slurm and Kubernetes kill after 30 s.
DRAIN_GRACE_VARIABLE, DRAIN_GRACE_S = "COORDD_DRAIN_GRACE", 30.0

_PACKED, _NOT_PACKED = b"+", b"!"  # the first byte of what travels as a state

CANNOT = ("the state is back at its last commit, and the job cannot go on: coordrun --min-np N makes one that goes on without "
          "lost ranks")
OUT = "the state is back at its last commit; this rank is out of the job, which goes on without it if enough others are left"


def on_members_changed(entered: Callable[[Any], None]) -> None:
    """In a job with COORDD_ON_FAILURE=continue: has ``entered(place)`` called whenever this rank has become a member of another
    generation, before it gets any result of it; place.generation, place.rank and place.size say which. On a thread of the
    library's: it must not wait for a collective. Counts until shutdown()."""
    _basics.worker().on_generation(entered)


class State:
    """State that survives in memory. Subclasses say what save(), restore() and sync() mean.

    bcast_object: function (object, root_rank=0) -> object on all ranks; get_rank: function -> this process's rank
    """

    def __init__(self, bcast_object: Callable, get_rank: Callable[[], int]):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: List[Callable[[], None]] = []
        self._drain_callbacks: List[Callable[[], None]] = []
        self._shared = False  # it is that of all ranks
        self._generation: Optional[int] = None  # of those who had it, or made a commit, last: the same on all of them

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Functions that run() calls when the members have changed, before everyone takes rank 0's state: to adapt a learning
        rate to size(). Process sets then have those of their ranks that are left."""
        self._reset_callbacks.extend(callbacks)

    def register_drain_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Functions that run() calls on a rank that was asked to leave: to write a checkpoint, say. The state has been
        committed and the rank has left, so that the others need not wait: no collective can be run, and rank() and size()
        are those that it had. Its process then ends with status 0."""
        self._drain_callbacks.extend(callbacks)

    def on_drain(self) -> None:
        """What is to be done before this process ends, since it was asked to leave."""
        for callback in self._drain_callbacks:
            callback()

    def on_reset(self) -> None:
        """What is to be done when the members have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res) -> None:
        """For programs that override it: nothing here calls it, since ranks learn of newcomers from coordd."""

    def commit(self) -> None:
        """Saves the state as that to which restore() goes back."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks when workers wait to become members, or when one of the ranks is to
        leave. A small collective in a job whose members may change; else nothing."""
        if not _basics.members_may_change():
            return
        changes = _basics.newcomers() + (_basics.drain_seconds() >= 0)
        if not _basics.goes_on():
            if self._agree_on(changes) > 0:
                raise HostsUpdatedInterrupt()
            return
        agreed, before = _agreement.agree("coordd.elastic.changes", changes), self._generation
        self._generation = agreed.generation
        if agreed.value > 0:
            raise HostsUpdatedInterrupt()
        if before not in (None, agreed.generation):
            self.on_members_lost()

    def on_members_lost(self) -> None:
        """What is to be done at a commit, on all ranks, when some have been lost since the last one and nothing was taken
        back."""
        self.on_reset()

    def share(self) -> None:
        """Collective, instead of sync() where collectives go on when a rank is lost: everyone takes the state of the first rank
        that has had it before, or of rank 0. By collectives that name no rank; if whoever gives its state is lost meanwhile,
        another one does."""
        own = uuid.uuid4().bytes
        while True:
            signs, _ = _agreement.gather("coordd.elastic.owners", own + bytes([self._shared]))
            chosen = next((sign for sign in signs if sign[-1]), signs[0])[:-1]
            part, error = self._part() if chosen == own else (b"", None)
            parts, self._generation = _agreement.gather("coordd.elastic.state", part)
            found = next((part for part in parts if part), None)
            if found is not None:
                break
        if error is not None:
            raise error
        if found[:1] == _NOT_PACKED:
            raise HorovodInternalError(found[1:].decode(), "INVALID_ARGUMENT")
        if chosen != own:
            self.unpack(found[1:])
        self._shared = True
        self.save()

    def _part(self) -> Tuple[bytes, Optional[BaseException]]:
        """What the others are to get: the state, or why they cannot, and the error."""
        try:
            return _PACKED + self.pack(), None
        except BaseException as error:
            why = f"rank {_basics.rank()} could not pickle its state: {type(error).__name__}: {error}"
            return _NOT_PACKED + why.encode(errors="replace"), error

    def pack(self) -> bytes:
        """The state, for a rank that has another one. At least one byte."""
        raise NotImplementedError

    def unpack(self, packed: bytes) -> None:
        """Takes another rank's."""
        raise NotImplementedError

    def _agree_on(self, changes: int) -> int:
        """The largest that any rank knows of: all take the same decision."""
        return _agreement.largest("coordd.elastic.changes", changes)

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: forget what belonged to the former members."""


class ObjectState(State):
    """Attributes that can be pickled: ObjectState(broadcast_object, rank, epoch=0).epoch"""

    def __init__(self, bcast_object: Callable, get_rank: Callable[[], int], **kwargs: Any):
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._set_attributes()

    def save(self) -> None:
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        self._set_attributes()

    def sync(self) -> None:
        """Everyone takes rank 0's attributes, and has them committed."""
        if self._saved_state:
            current = {name: getattr(self, name) for name in self._saved_state}
            self._saved_state = self._bcast_object(current, 0)
            self._set_attributes()
            self.save()

    def pack(self) -> bytes:
        return pickle.dumps({name: getattr(self, name) for name in self._saved_state})

    def unpack(self, packed: bytes) -> None:
        self._saved_state = pickle.loads(packed)
        self._set_attributes()

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))


def run_fn(func: Callable, reset: Callable[[], None]) -> Callable:
    """func(state, ...) as a function that first gives everyone rank 0's state, and begins again when the members have changed:
    `reset` brings up the next membership. HorovodInternalError: no generation follows; the state is as of its last commit.

    A rank that is to leave ends by SystemExit(0), when all have come to a commit.

    An error of the program itself leaves the function, as usual. If it ends the process, too, the others see a lost rank and go
    on."""

    @functools.wraps(func)
    def wrapper(state: State, *args, **kwargs):
        with _LeaveOnSigterm() as sigterm:
            in_step = False
            while True:
                try:
                    if not in_step:
                        state.share() if _basics.goes_on() else state.sync()
                    return func(state, *args, **kwargs)
                except HorovodInternalError as error:
                    if _basics.goes_on():  # others may not have failed: nothing that all ranks take back
                        raise
                    if error.code == "FAILED_PRECONDITION" and not _basics.is_initialized():
                        raise  # the program has not called init(): nothing has happened to the job
                    _basics.heed_the_end()
                    state.restore()
                    if error.code != "GENERATION_CHANGED":
                        raise HorovodInternalError(f"{error}; {OUT if _basics.members_may_change() else CANNOT}", error.code) from error
                    in_step = False
                except HostsUpdatedInterrupt as interrupt:
                    if _basics.drain_seconds() >= 0:
                        _basics.leave(state.on_drain)
                        sys.exit(0)
                    in_step = interrupt.skip_sync
                with sigterm.suspended():
                    if _basics.goes_on():
                        _basics.change_members(agreed_in=state._generation or 0)
                    else:
                        reset()
                state.on_reset()

    return wrapper


class _LeaveOnSigterm:
    """While it is entered, SIGTERM asks this rank to leave; a second one ends the process, as does the first while there is no
    generation to leave. Programs that have a handler of their own keep it."""

    def __init__(self):
        self._grace = float(os.environ.get(DRAIN_GRACE_VARIABLE) or DRAIN_GRACE_S)
        self._installed = False

    def __enter__(self):
        wanted = _basics.members_may_change() and self._grace > 0
        if wanted and threading.current_thread() is threading.main_thread():
            self._install()
        return self

    def __exit__(self, *_):
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False

    def _install(self) -> None:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = True

    @contextlib.contextmanager
    def suspended(self):
        was_installed = self._installed
        self.__exit__()
        yield
        if was_installed:
            self._install()

    def _on_signal(self, number, _frame) -> None:
        self.__exit__()
        if not _basics.is_initialized():
            os.kill(os.getpid(), number)
            return
        _basics.ask_to_leave(self._grace, signal.Signals(number).name)
