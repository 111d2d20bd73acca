"""Elastic jobs on Spark: each worker is a Spark job of one task, so that one that is lost takes no other with it."""

import logging
import os
import queue
import re
import secrets
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from pyspark import InheritableThread, SparkContext, TaskContext

from coordd import _basics, launch

_log = logging.getLogger("coordd.spark")

_PAUSE_FROM_S, _PAUSE_TO_S = 1.0, 60.0  # before a slot whose worker was lost gets another one; twice as long each time
_LATE_S = 10.0  # behind the first result: who is no member then, and has not returned, never had a part in it

Call = Tuple[Callable, Tuple, Dict[str, Any]]


class _Event(NamedTuple):
    slot: int
    rank: int = -1
    value: Any = None
    error: Optional[Exception] = None


class Run:
    """One call of a function by all workers of an elastic job."""

    def __init__(self, context: SparkContext, coordinator: launch.Coordinator, job: launch.Job, call: Call, variables: Mapping[str, str],
                 reset_limit: Optional[int]):
        self._context, self._coordinator, self._job = context, coordinator, job
        self._call, self._variables, self._reset_limit = call, dict(variables), reset_limit
        self._mark = secrets.token_hex(4)
        self._events: "queue.Queue[_Event]" = queue.Queue()
        self._running: Set[int] = set()
        self._founders = set(range(job.size))  # those whose first worker still runs: the state of the program is theirs
        self._due: Dict[int, float] = {}  # slot: when it gets another worker
        self._pauses: Dict[int, float] = {}
        self._resets = 0
        self._returned: List[_Event] = []
        self._failures: List[Exception] = []

    def results(self) -> List[Any]:
        """By rank. The error of the first worker that failed, where nobody came to the end."""
        try:
            for slot in range(self._job.size):
                self._start(slot)
            while (self._running or self._due) and not self._returned:
                self._take(self._next())
            if not self._returned:
                raise self._failures[0]
            self._await_members()
        finally:
            self._cancel(self._running)
        return [one.value for one in sorted(self._returned, key=lambda one: one.rank)]

    def _start(self, slot: int) -> None:
        self._running.add(slot)
        self._due.pop(slot, None)
        InheritableThread(target=self._work, args=(slot,), name=f"coordd-spark-{slot}", daemon=True).start()

    def _work(self, slot: int) -> None:
        context = self._context
        context.setJobGroup(self._group(slot), f"worker of job {self._job.name}", interruptOnCancel=True)
        try:
            task = _task_of(self._job, slot, self._mark, self._call, self._variables)
            [(rank, value)] = context.parallelize([slot], 1).mapPartitions(task).collect()
            self._events.put(_Event(slot, rank, value))
        except Exception as error:  # Spark's, which has the traceback
            self._events.put(_Event(slot, error=error))

    def _group(self, slot: int) -> str:
        return f"{self._job.name}.{self._mark}.{slot}"

    def _next(self, until: Optional[float] = None) -> Optional[_Event]:
        """What comes next; nothing: a worker is due, or it is `until`."""
        times = [*self._due.values(), *([] if until is None else [until])]
        try:
            return self._events.get(timeout=max(0.0, min(times) - time.monotonic()) if times else None)
        except queue.Empty:
            return None

    def _take(self, event: Optional[_Event]) -> None:
        for slot in [slot for slot, due in self._due.items() if due <= time.monotonic()]:
            self._start(slot)
        if event is None:
            return
        self._running.discard(event.slot)
        if event.error is None:
            self._returned.append(event)
        else:
            self._lose(event.slot, event.error)

    def _lose(self, slot: int, error: Exception) -> None:
        self._failures.append(error)
        self._founders.discard(slot)
        if self._returned:
            return
        self._resets += 1
        beyond = self._reset_limit is not None and self._resets > self._reset_limit
        if beyond or not (self._founders or self._slots_of_members()):
            raise self._failures[0]
        self._pauses[slot] = min(_PAUSE_TO_S, max(_PAUSE_FROM_S, 2 * self._pauses.get(slot, 0.0)))
        self._due[slot] = time.monotonic() + self._pauses[slot]
        _log.warning("worker %d of job %s is lost (%s); another one is started", slot, self._job.name,
                     _sentence(error))

    def _await_members(self) -> None:
        """The program has come to its end: who has not become a member by now never will."""
        self._due.clear()
        members, late_from = self._slots_of_members(), time.monotonic() + _LATE_S
        while self._running & members or (self._running and time.monotonic() < late_from):
            self._take(self._next(until=None if self._running & members else late_from))

    def _slots_of_members(self) -> Set[int]:
        found = set()
        for one in self._coordinator.members(self._job):
            mark, _, rest = one.launch.partition(".")
            if mark == self._mark:
                found.add(int(rest.partition(".")[0]))
        return found

    def _cancel(self, slots: Set[int]) -> None:
        for slot in slots:
            self._context.cancelJobGroup(self._group(slot))


def _sentence(error: Exception) -> str:
    """What was raised in the task, or else what Spark says first."""
    raised = re.findall(r"^\w[\w.]*(?:Error|Exception|Interrupt)\b.*", str(error), re.MULTILINE)
    said = [line for line in raised if not line.startswith("org.apache.spark.")]
    return (said or str(error).strip().splitlines() or [type(error).__name__])[0]


def _task_of(job: launch.Job, slot: int, mark: str, call: Call, variables: Dict[str, str]) -> Callable:
    def task(_partition: Iterator) -> Iterator[Tuple[int, Any]]:
        context = TaskContext.get()
        assert context is not None  # in a task there is one
        fn, args, kwargs = call
        with with_variables(variables), job.member(slot, f"{mark}.{slot}.{context.taskAttemptId()}"):
            value = fn(*args, **kwargs)
            rank = _basics.rank() if _basics.is_initialized() else slot
        yield rank, value

    return task


class with_variables:
    """A block in which the environment has these, too."""

    def __init__(self, variables: Mapping[str, str]):
        self._variables = variables
        self._before: Dict[str, Optional[str]] = {}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._variables}
        os.environ.update(self._variables)

    def __exit__(self, *_: Any) -> None:
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
