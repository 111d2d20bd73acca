"""What an actor does: it is one process of a job at a time."""

import os
import shutil
import sys
from typing import Any, Callable, NamedTuple, Optional, Tuple

import ray

from coordd import _basics, _ends, launch


class Place(NamedTuple):
    """Where an actor is."""
    node: str
    hostname: str
    pid: int


class Returned(NamedTuple):
    """What a function returned, and on which rank. left: it was asked to leave, and has returned nothing."""
    rank: int
    value: Any
    left: bool = False


class Worker:
    """Ray gives it its GPUs; of one visible GPU coordd knows that it is device 0."""

    def __init__(self) -> None:
        self._folder: Optional[str] = None
        self._hint = 0
        self.executable: Any = None

    def place(self) -> Place:
        return Place(ray.get_runtime_context().get_node_id(), os.uname().nodename, os.getpid())

    def enter(self, job: launch.Job, rank: int, launched: str) -> None:
        """The next init() is about this job."""
        self.leave()
        self._folder, self._hint = job.enter(rank, launched), rank

    def start_executable(self, kind: Callable, args: Tuple, kwargs: dict) -> None:
        self.executable = kind(*args, **kwargs)

    def run(self, function: Callable, args: Tuple, kwargs: dict, on_executable: bool = False) -> Returned:
        """A member that it makes of this process stays one, for the next call. An error is told to the other ranks."""
        try:
            value = function(self.executable, *args, **kwargs) if on_executable else function(*args, **kwargs)
        except Exception as error:
            launch.fail(_ends.describe(type(error), error, error.__traceback__))
            raise
        return Returned(_basics.rank() if _basics.is_initialized() else self._hint, value)

    def run_once(self, job: launch.Job, rank: int, launched: str, function: Callable, args: Tuple, kwargs: dict) -> Returned:
        """The same for one call, behind which the process leaves the job."""
        self.enter(job, rank, launched)
        try:
            returned = self.run(function, args, kwargs)
        except SystemExit as left:  # coordd.elastic has left at a commit
            if left.code:
                launch.fail(f"SystemExit: {left.code}")
                raise RuntimeError(f"the function has called sys.exit({left.code!r})") from None
            return Returned(rank, None, left=True)
        self.leave()
        return returned

    def leave(self) -> None:
        _basics.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        sys.stdout.flush()
