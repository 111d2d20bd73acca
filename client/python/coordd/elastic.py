"""Elastic training: state that can be committed, rolled back and given to others.

What works: states, commit(), restore(), sync(), and a run() that starts everyone from rank 0's state. What this version of
coordd does not do yet: going on without a rank that was lost, or with one that was added. A loss ends run() with
HorovodInternalError, the state being back at its last commit; start the job again then, from what it saved.
"""

import copy
import functools
from typing import Any, Callable, Iterable, List

from coordd.exceptions import HorovodInternalError

__all__ = ["State", "ObjectState", "run_fn"]

NOT_YET = ("this version of coordd does not go on without a lost rank: the state is back at its last commit; start the job "
           "again")


class State:
    """State that survives in memory. Subclasses say what save(), restore() and sync() mean.

    bcast_object: function (object, root_rank=0) -> object on all ranks; get_rank: function -> this process's rank
    """

    def __init__(self, bcast_object: Callable, get_rank: Callable[[], int]):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Functions for on_reset(). Nothing calls that yet: membership does not change in this version."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """What is to be done when the members have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res) -> None:
        """Takes note of a change of hosts: nothing, in this version."""

    def commit(self) -> None:
        """Saves the state as that to which restore() goes back."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt when the members are about to change: never, in this version."""

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
    """func(state, ...) as a function that first gives everyone rank 0's state. HorovodInternalError: a rank was lost, or a
    collective failed; the state is then as of its last commit. `reset` would bring up the next membership: not called in
    this version."""
    del reset

    @functools.wraps(func)
    def wrapper(state: State, *args, **kwargs):
        state.sync()
        try:
            return func(state, *args, **kwargs)
        except HorovodInternalError as error:
            state.restore()
            raise HorovodInternalError(f"{error}; {NOT_YET}") from error

    return wrapper
