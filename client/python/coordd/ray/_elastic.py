"""The elastic executor: actors that are lost are replaced, and the others go on."""

import logging
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import ray

from coordd import launch
from coordd._arguments import check_on_failure, whole_number
from coordd.exceptions import HorovodInternalError, InvalidArgumentError
from coordd.ray import _placing, _worker

_log = logging.getLogger("coordd.ray")

_GOES_ON_COMING_S = 2.0  # while more actors come within this time, the start waits for them
_ALL_SETTLE_S, _SOME_SETTLE_S = 30.0, 5.0
_GOODBYE_S = 10.0
_FORGIVEN_AFTER_S = 600.0


class Rules(NamedTuple):
    min_workers: int
    max_workers: int
    reset_limit: Optional[int]
    cooldown_range: Tuple[float, ...]
    timeout_s: float
    on_failure: str
    settling_window_s: Optional[float]

    def checked(self) -> "Rules":
        """ValueError: one of them means nothing."""
        check_on_failure(self.on_failure)
        limit = self.reset_limit
        if limit is not None and (whole_number(limit) is None or limit < 0):
            raise InvalidArgumentError(f"reset_limit is {limit!r}: expected a whole number from 0", "INVALID_ARGUMENT")
        pauses = self.cooldown_range
        if len(pauses) != 2 or not 0 <= pauses[0] <= pauses[1]:
            raise InvalidArgumentError(f"cooldown_range is {pauses!r}: expected two numbers of seconds, the first and the longest pause",
                                       "INVALID_ARGUMENT")
        return self


class _Slot:
    """A place in the job, with one actor after the other."""

    def __init__(self, number: int, actor: Any):
        self.number, self.actor = number, actor
        self.again_at: Optional[float] = None  # when an actor is started; nothing: one is there, or none is wanted
        self.lost_at = 0.0
        self.pause_s = 0.0
        self.call: Any = None  # that runs, or waits until the actor is there
        self.place: Any = actor.place.remote()  # answered when it is there

    def is_among(self, members: List[launch.Member]) -> bool:
        if not ray.wait([self.place], timeout=0)[0]:
            return False
        try:
            place: _worker.Place = ray.get(self.place)
        except ray.exceptions.RayError:  # it is gone, and its call is about to say so
            return False
        return any((one.hostname, one.pid) == (place.hostname, place.pid) for one in members)


class Crew:
    def __init__(self, rules: Rules, bundles: _placing.Bundles):
        self._rules, self._bundles = rules, bundles
        self._slots = [_Slot(number, bundles.start(_worker.Worker, number)) for number in range(rules.max_workers)]
        self._resets = 0
        self._present = 0

    def await_enough(self) -> None:
        """HorovodInternalError: Ray has no room for min_workers in time."""
        waiting = [slot.place for slot in self._slots]
        timeout_s: float = self._rules.timeout_s
        while waiting:
            enough = self._present >= self._rules.min_workers
            began = time.monotonic()
            done, waiting = ray.wait(waiting, timeout=_GOES_ON_COMING_S if enough else timeout_s)
            timeout_s = max(0.0, timeout_s - (time.monotonic() - began))
            if not done:
                break
            self._present += len(done)
        if self._present < self._rules.min_workers:
            found = "1 worker" if self._present == 1 else f"{self._present} workers"
            raise HorovodInternalError(f"Ray has found room for {found} within {self._rules.timeout_s:g} s, at least "
                                       f"{self._rules.min_workers} are needed; `ray status` says what there is", "DEADLINE_EXCEEDED")

    def settling_window_s(self) -> float:
        if self._rules.settling_window_s is not None:
            return self._rules.settling_window_s
        return _ALL_SETTLE_S if self._present == self._rules.max_workers else _SOME_SETTLE_S

    def run(self, coordinator: Any, job: launch.Job, function: Callable, args: Tuple, kwargs: dict) -> List[Any]:
        return _Run(self, coordinator, job, (function, args, kwargs)).results()

    def end(self) -> None:
        leaving = [slot.actor.leave.remote() for slot in self._slots if slot.actor is not None]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=_GOODBYE_S if self._present else 0)
        for slot in self._slots:
            if slot.actor is not None:
                ray.kill(slot.actor)
                slot.actor = None

    # --- for a run

    @property
    def slots(self) -> List[_Slot]:
        return self._slots

    @property
    def min_workers(self) -> int:
        return self._rules.min_workers

    def start_actor(self, slot: _Slot) -> None:
        slot.actor, slot.again_at = self._bundles.start(_worker.Worker, slot.number), None
        slot.place = slot.actor.place.remote()

    def note_loss(self, slot: _Slot) -> bool:
        """Whether the slot gets another actor."""
        if slot.actor is not None:
            ray.kill(slot.actor)
        slot.actor, slot.call = None, None
        self._resets += 1
        if self._rules.reset_limit is not None and self._resets > self._rules.reset_limit:
            return False
        now = time.monotonic()
        low, high = self._rules.cooldown_range
        if slot.lost_at == 0 or now - slot.lost_at > _FORGIVEN_AFTER_S:
            slot.pause_s = 0.0
        else:
            slot.pause_s = min(high, max(low, 2 * slot.pause_s))
        slot.lost_at, slot.again_at = now, now + slot.pause_s
        return True


class _Run:
    """One call of a function in all slots."""

    def __init__(self, crew: Crew, coordinator: Any, job: launch.Job, what: Tuple[Callable, Tuple, dict]):
        self._crew, self._coordinator, self._job = crew, coordinator, job
        self._what = tuple(ray.put(part) for part in what)
        self._calls: Dict[Any, _Slot] = {}
        self._founders = set(crew.slots)  # whose actor has been there from the beginning: the state of the program is theirs
        self._returned: List[_worker.Returned] = []
        self._failures: List[Exception] = []

    def results(self) -> List[Any]:
        for slot in self._crew.slots:
            if slot.actor is None:
                self._crew.start_actor(slot)
            self._call(slot)
        while self._calls or self._due() is not None:
            done = self._wait()
            for one in done:
                self._take(one)
            if self._returned:
                self._dismiss_newcomers()
                continue
            if done and self._lost_all():
                break
            self._start_what_is_due()
        if not self._returned:
            raise self._failures[0] if self._failures else HorovodInternalError("all workers were asked to leave", "ABORTED")
        return [one.value for one in sorted(self._returned, key=lambda one: one.rank)]

    def _call(self, slot: _Slot) -> None:
        slot.call = slot.actor.run_once.remote(self._job, slot.number, "", *self._what)
        self._calls[slot.call] = slot

    def _due(self) -> Optional[float]:
        times = [slot.again_at for slot in self._crew.slots if slot.again_at is not None]
        return min(times) if times else None

    def _wait(self) -> List[Any]:
        due = self._due()
        timeout_s = None if due is None else max(0.0, due - time.monotonic())
        if not self._calls:
            time.sleep(timeout_s or 0.0)
            return []
        return ray.wait(list(self._calls), num_returns=1, timeout=timeout_s)[0]

    def _start_what_is_due(self) -> None:
        for slot in self._crew.slots:
            if slot.again_at is not None and slot.again_at <= time.monotonic():
                self._crew.start_actor(slot)
                self._call(slot)

    def _take(self, call: Any) -> None:
        slot = self._calls.pop(call)
        try:
            returned: _worker.Returned = ray.get(call)
        except ray.exceptions.RayError as error:
            self._lose(slot, error)
            return
        slot.call = None
        self._founders.discard(slot)
        if not returned.left:
            self._returned.append(returned)

    def _lose(self, slot: _Slot, error: Exception) -> None:
        self._failures.append(error)
        self._founders.discard(slot)
        goes_on = self._crew.note_loss(slot) and not self._returned
        if self._returned:
            slot.again_at = None
            return
        _log.warning("worker %d of job %s is lost (%s)%s", slot.number, self._job.name, _sentence(error),
                     "; another one is started" if goes_on else "")
        if not goes_on:
            self._stop()
            raise error

    def _lost_all(self) -> bool:
        """Whether nobody is left who has the state of the program: what is started now would begin anew, and fail as the others did."""
        if self._founders:
            return False
        members = self._coordinator.members(self._job)
        if any(slot.is_among(members) for slot in self._calls.values()):
            return False
        self._stop()
        return True

    def _dismiss_newcomers(self) -> None:
        """The program has come to its end: whose actor has not become a member by now never will."""
        for slot in self._crew.slots:
            slot.again_at = None
        late = [call for call, slot in self._calls.items() if slot not in self._founders]
        if late:
            members = self._coordinator.members(self._job)
            late = [call for call in late if not self._calls[call].is_among(members)]
        if late:
            late = ray.wait(late, num_returns=len(late), timeout=_GOES_ON_COMING_S)[1]  # who says goodbye just now is none either
        for call in late:
            slot = self._calls.pop(call)
            ray.kill(slot.actor)
            slot.actor = slot.call = None

    def _stop(self) -> None:
        """Nothing of the function goes on in an actor."""
        for slot in self._calls.values():
            ray.kill(slot.actor)
            slot.actor = slot.call = None
        for slot in self._crew.slots:
            slot.again_at = None
        self._calls.clear()


def known_end(error: Exception) -> Optional[dict]:
    """How an actor has ended, for Coordinator.report_end, where Ray knows more of it than that it has gone."""
    text = " ".join(str(error).split())
    if "running low on memory" in text or "memory usage threshold" in text:
        return {"signal": signal.SIGKILL, "reason": "Ray ended it, since its node was short of memory"}
    if "node has died" in text or "node was terminated" in text:
        return {"reason": "its node has left the cluster of Ray"}
    return None


def _sentence(error: Exception) -> str:
    known = known_end(error)
    if known is not None:
        return known["reason"]
    text = [line for line in str(getattr(error, "cause", None) or error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
