"""The worker of this process, once there is one. coordd._basics starts and ends it."""

import os
import threading
from typing import Optional

from coordd import _native
from coordd.exceptions import HorovodInternalError, InvalidArgumentError


class State:
    def __init__(self):
        self.lock = threading.RLock()  # held by init and shutdown
        self.worker: Optional[_native.Worker] = None
        self.place: Optional[_native.Place] = None  # survives a fork: a data loader may ask for its rank
        self.forked_from: Optional[int] = None  # process id of the parent that was initialised
        self.abandoned = []  # the parent's worker in a forked child: never freed there
        self.at_start = []  # called when there is a worker
        self.before_end = []  # called while the worker is still there
        self.before_change = []  # called when this process begins to wait for the next generation
        self.at_end = []  # called when the generation is over and nothing of it is left
        self.membership = 0  # how many have ended
        self.failing = False  # the program ends by an error, and shall not say goodbye
        self.held: Optional[_native.Worker] = None  # its goodbye waits for the end of the process
        self.exits = False  # the interpreter does
        self.follows = False  # the place changes without a call of the program
        self.own_job = False  # another one than the launcher's


state = State()


def _after_fork_in_child() -> None:
    state.lock = threading.RLock()
    if state.worker is not None:
        state.forked_from = os.getppid()
    state.abandoned += [one for one in (state.worker, state.held) if one is not None]
    state.worker = state.held = None


os.register_at_fork(after_in_child=_after_fork_in_child)


def refuse_in_forked_child() -> None:
    if state.forked_from is not None:
        raise HorovodInternalError(
            f"this process was forked from process {state.forked_from}, which is a member of a coordd job: only the "
            "parent can run collectives; start processes that need their own by spawn or forkserver",
            "FAILED_PRECONDITION")


_NOT_INITIALISED = "coordd is not initialised: call init() first"
_NOT_THERE_ANY_MORE = ("coordd was shut down at the exit of the interpreter: collectives in __del__ and in what runs after that "
                       "are not possible")


def worker() -> _native.Worker:
    """The worker, for a collective. HorovodInternalError: not initialised, or a forked child."""
    found = state.worker
    if found is None:
        refuse_in_forked_child()
        raise HorovodInternalError(_NOT_THERE_ANY_MORE if state.exits else _NOT_INITIALISED, "FAILED_PRECONDITION")
    return found


def place() -> _native.Place:
    """Where this process is. Answers in a forked child too. ValueError: not initialised."""
    found = state.place
    if found is None:
        raise InvalidArgumentError(_NOT_THERE_ANY_MORE if state.exits else _NOT_INITIALISED, "FAILED_PRECONDITION")
    if state.follows and state.worker is not None:
        return state.worker.read_place()
    return found
