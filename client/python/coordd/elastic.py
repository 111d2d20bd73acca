"""Elastic training: state that can be committed, rolled back and given to others.

A job that was started with ``coordrun --min-np N`` (or COORDD_ON_FAILURE=raise) goes on without a rank that was lost, as long as
N are left: the others form the next generation, take the state back to their last commit, give everyone rank 0's, call the
reset callbacks and run the function again. Their processes, models and data stay where they are. A worker that is started
while the job runs (one that ``coordrun --max-restarts`` starts again, or another coordrun of the same job) waits until all
ranks commit, and is a member from then on. In any other job a loss ends run() with HorovodInternalError, the state being back at its
last commit.
"""

import copy
import functools
import sys
from typing import Any, Callable, Iterable, List

from coordd import _basics
from coordd.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["State", "ObjectState", "run_fn"]

CANNOT = ("the state is back at its last commit, and the job cannot go on: coordrun --min-np N makes one that goes on without "
          "lost ranks")


class State:
    """State that survives in memory. Subclasses say what save(), restore() and sync() mean.

    bcast_object: function (object, root_rank=0) -> object on all ranks; get_rank: function -> this process's rank
    """

    def __init__(self, bcast_object: Callable, get_rank: Callable[[], int]):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Functions that run() calls when the members have changed, before everyone takes rank 0's state: to adapt a learning
        rate to size(), or to add process sets anew."""
        self._reset_callbacks.extend(callbacks)

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
        """Raises HostsUpdatedInterrupt on all ranks when workers wait to become members. A small collective
        in a job whose members may change; else nothing."""
        if _basics.members_may_change() and self._agree_on(_basics.newcomers()) > 0:
            raise HostsUpdatedInterrupt()

    def _agree_on(self, newcomers: int) -> int:
        return self._bcast_object(newcomers, 0)

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

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))


def run_fn(func: Callable, reset: Callable[[], None]) -> Callable:
    """func(state, ...) as a function that first gives everyone rank 0's state, and begins again when the members have changed:
    `reset` brings up the next membership. HorovodInternalError: no generation follows; the state is as of its last commit.

    An error of the program itself leaves the function, as usual. If it ends the process, too, the others see a lost rank and go
    on."""

    @functools.wraps(func)
    def wrapper(state: State, *args, **kwargs):
        _fail_when_an_error_ends_the_program()
        in_step = False
        while True:
            try:
                if not in_step:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                state.restore()
                if error.code != "GENERATION_CHANGED":
                    raise HorovodInternalError(f"{error}; {CANNOT}", error.code) from error
                in_step = False
            except HostsUpdatedInterrupt as interrupt:
                in_step = interrupt.skip_sync
            reset()
            state.on_reset()

    return wrapper


def _fail_when_an_error_ends_the_program() -> None:
    """An uncaught error is not a goodbye. (sys.exit(3) is: the program has decided to end.)"""
    before = sys.excepthook
    if getattr(before, "of_coordd", False):
        return

    def hook(kind, value, traceback):
        _basics.fail()
        before(kind, value, traceback)

    hook.of_coordd = True  # type: ignore[attr-defined]
    sys.excepthook = hook
