"""RayExecutor: horovod.ray's."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import ray

from coordd import launch
from coordd._arguments import checked_workers, workers_if_given
from coordd.exceptions import HorovodInternalError, InvalidArgumentError, UnsupportedError
from coordd.ray import _coordinator, _elastic, _placing, _worker

_ENDS_TOGETHER_S = 30.0  # behind the first failure, for the others to notice it
_GOODBYE_S = 10.0


class Settings(NamedTuple):
    """timeout_s: until all workers have joined. placement_group_timeout_s: until Ray has found room for them."""
    timeout_s: float = 300.0
    placement_group_timeout_s: float = 100.0


class RayExecutor:
    """Actors that are the workers of one job, one process each."""

    @classmethod
    def create_settings(cls, timeout_s: float = 300.0, ssh_identity_file: Any = None, ssh_str: Any = None,
                        placement_group_timeout_s: float = 100.0) -> Settings:
        """What the constructor takes. Nothing here needs ssh: the two arguments about it mean nothing."""
        return Settings(timeout_s, placement_group_timeout_s)

    def __init__(self, settings: Optional[Settings] = None, num_workers: Optional[int] = None, num_hosts: Optional[int] = None,
                 num_workers_per_host: int = 1, cpus_per_worker: float = 1, use_gpu: bool = False, gpus_per_worker: Optional[float] = None,
                 use_current_placement_group: bool = True, min_workers: Optional[int] = None, max_workers: Optional[int] = None,
                 reset_limit: Optional[int] = None, cooldown_range: Optional[Sequence[float]] = None, elastic_timeout: float = 600.0,
                 override_discovery: bool = True, *, coordinator: Union[_coordinator.Coordinator, launch.Coordinator, None] = None,
                 job: Optional[str] = None, on_failure: str = "raise", settling_window_s: Optional[float] = None):
        """num_workers:     so many, wherever Ray has room, close together; or
        num_hosts:          so many nodes, with num_workers_per_host on each.
        cpus_per_worker, use_gpu, gpus_per_worker: of each actor; one GPU if use_gpu says no more.
        use_current_placement_group: inside a trial of Tune, say: the actors take their room from its group.
        min_workers:        the job is elastic: it begins with so many, within `elastic_timeout` seconds, and grows up to max_workers
                            (num_workers by default) while Ray has room, also on nodes that come later. Lost actors are replaced: the first
                            time in a slot at once, then after cooldown_range[0] seconds ((1, 60) by default), twice as many, ... at most
                            cooldown_range[1]. After reset_limit losses none is replaced, and the next loss is an error. on_failure: "raise"
                            for programs of coordd.elastic, "continue". settling_window_s: how long the first generation waits for further
                            workers after the last; 30 s by default where all have an actor, else 5 s.
        coordinator:        to use, which is not closed; a coordd for this executor alone by default.
        job:                the job's name there. "ray-3f0c..." by default.
        override_discovery: means nothing: Ray itself says where there is room.
        ValueError: arguments that do not fit together.
        """
        self._settings = settings or Settings()
        num_workers, num_hosts = workers_if_given("num_workers", num_workers), workers_if_given("num_hosts", num_hosts)
        min_workers, max_workers = workers_if_given("min_workers", min_workers), workers_if_given("max_workers", max_workers)
        num_workers_per_host = checked_workers("num_workers_per_host", num_workers_per_host)
        if num_hosts is not None and num_workers is not None:
            raise InvalidArgumentError("num_workers and num_hosts: expected one of them", "INVALID_ARGUMENT")
        if num_hosts is not None and min_workers is not None:
            raise InvalidArgumentError("num_hosts: expected num_workers or max_workers with min_workers", "INVALID_ARGUMENT")
        size = num_hosts * num_workers_per_host if num_hosts is not None else max_workers or num_workers or min_workers
        if size is None or size < 1 or not 1 <= (min_workers or 1) <= size:
            raise InvalidArgumentError(f"num_workers={num_workers}, num_hosts={num_hosts}, min_workers={min_workers}, max_workers="
                                       f"{max_workers}: expected at least one worker, and min_workers <= max_workers", "INVALID_ARGUMENT")
        self.num_workers: int = size
        self._bundles = _placing.Bundles(size, num_hosts, cpus_per_worker, (gpus_per_worker or 1) if use_gpu else 0,
                                         use_current_placement_group)
        self._rules = None if min_workers is None else _elastic.Rules(
            min_workers, size, reset_limit, tuple(cooldown_range or (1.0, 60.0)), elastic_timeout, on_failure, settling_window_s).checked()
        self._given, self._coordinator = coordinator, coordinator
        self._job_name, self._runs = job or launch.job_name("ray"), 0
        self._variables: Dict[str, str] = {}
        self._job: Optional[launch.Job] = None
        self._workers: List[Any] = []  # by the rank that they are to have
        self._elastic: Optional[_elastic.Crew] = None
        self._lost = False  # an actor has ended, and the others cannot be a job without it

    def start(self, executable_cls: Optional[Callable] = None, executable_args: Sequence[Any] = (),
              executable_kwargs: Optional[dict] = None, extra_env_vars: Optional[Dict[str, str]] = None) -> None:
        """Starts the actors and waits for them. With `executable_cls` each makes an object of it, which execute() is about.
        `extra_env_vars`: for the workers. HorovodInternalError: Ray has no room in time."""
        if self._workers or self._elastic:
            raise HorovodInternalError("the executor has been started already", "FAILED_PRECONDITION")
        self._variables = dict(extra_env_vars or {})
        if self._rules is not None:
            if executable_cls is not None:
                raise UnsupportedError("executable_cls: an elastic executor has none, since its actors come and go", "UNIMPLEMENTED")
            self._elastic = _elastic.Crew(self._rules, self._bundles)
        else:
            self._bundles.reserve(self._settings.placement_group_timeout_s)
            self._workers = [self._bundles.start(_worker.Worker, slot) for slot in range(self.num_workers)]
        try:
            if self._coordinator is None:  # while the actors start
                self._coordinator = _coordinator.own_coordinator()
            if self._elastic is not None:
                self._elastic.await_enough()
                return
            self._workers = _placing.by_node(self._workers)
            self._enter_new_job()
            if executable_cls is not None:
                ray.get([one.start_executable.remote(executable_cls, tuple(executable_args or ()), executable_kwargs or {})
                         for one in self._workers])
        except BaseException:
            self.shutdown()
            raise

    def run(self, fn: Callable, args: Optional[Sequence[Any]] = None, kwargs: Optional[dict] = None,
            callbacks: Optional[Sequence] = None) -> List[Any]:
        """Calls fn(*args, **kwargs) on each worker; what they have returned, by rank. A membership that fn begins with init() stays for
        the next call. Where fn raises, or an actor ends, the error of the one that failed first is raised here.

        Elastic: fn is a program of coordd.elastic, which is also called in each actor that takes a lost one's place; the results are those
        of the workers that have come to the end, and each call is a job of its own."""
        if callbacks:
            raise UnsupportedError("callbacks: expected none; let the function return what it has to tell, or send it to an actor of yours",
                                   "UNIMPLEMENTED")
        if self._elastic is not None:
            job = self._new_job(self._elastic.settling_window_s())
            return self._elastic.run(self._coordinator, job, fn, tuple(args or ()), kwargs or {})
        return self._await(self.run_remote(fn, args, kwargs))

    def run_remote(self, fn: Callable, args: Optional[Sequence[Any]] = None, kwargs: Optional[dict] = None) -> List[Any]:
        """The same without waiting: what ray.get() has to be called for, by rank. Each is a tuple: (rank, value, False)."""
        return [worker.run.remote(fn, tuple(args or ()), kwargs or {}) for worker in self._static()]

    def execute(self, fn: Callable, args: Optional[Sequence[Any]] = None, kwargs: Optional[dict] = None) -> List[Any]:
        """fn(executable, *args, **kwargs) on each worker, by rank."""
        return self._await([worker.run.remote(fn, tuple(args or ()), kwargs or {}, True) for worker in self._static()])

    def execute_single(self, fn: Callable, args: Optional[Sequence[Any]] = None, kwargs: Optional[dict] = None) -> Any:
        """The same on rank 0 alone."""
        return self._await([self._static()[0].run.remote(fn, tuple(args or ()), kwargs or {}, True)])[0]

    def shutdown(self) -> None:
        """Ends the actors, and coordd if it is this executor's own. start() may be called again."""
        if self._elastic is not None:
            self._elastic.end()
        leaving = [worker.leave.remote() for worker in self._workers]  # else coordd takes them for lost
        ray.wait(leaving, num_returns=len(leaving), timeout=_GOODBYE_S) if leaving else None
        for worker in self._workers:
            ray.kill(worker)
        self._workers, self._elastic, self._lost = [], None, False
        self._bundles.give_back()
        if self._given is None and self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _static(self) -> List[Any]:
        if not self._workers:
            why = "an elastic executor has run() alone" if self._elastic else "start() has not been called"
            raise HorovodInternalError(why, "FAILED_PRECONDITION")
        if self._lost:
            raise HorovodInternalError("an actor has ended in an earlier call: expected shutdown() and start(), or min_workers= for an "
                                       "executor that goes on without it", "FAILED_PRECONDITION")
        return self._workers

    def _new_job(self, settling_window_s: Optional[float] = None) -> launch.Job:
        self._runs += 1
        assert self._coordinator is not None
        rules = self._rules
        return self._coordinator.reach.job(
            self._job_name if self._runs == 1 else f"{self._job_name}-{self._runs}", size=self.num_workers,
            min_workers=rules.min_workers if rules else None, on_failure=rules.on_failure if rules else "raise",
            settling_window_s=settling_window_s, join_timeout_s=self._settings.timeout_s, variables=self._variables)

    def _enter_new_job(self) -> None:
        self._job = self._new_job()
        ray.get([worker.enter.remote(self._job, rank, _launched(self._job, rank)) for rank, worker in enumerate(self._workers)])

    def _await(self, calls: List[Any]) -> List[Any]:
        returned, failures = _gather(calls, self._report)
        if not failures:
            return [one.value for one in sorted(returned, key=lambda one: one.rank)]
        self._lost = any(isinstance(error, ray.exceptions.RayActorError) for error in failures)
        if not self._lost:
            self._enter_new_job()  # who has not failed himself is in a job that has ended
        raise _first_cause(failures)

    def _report(self, rank: int, error: Exception) -> None:
        known = _elastic.known_end(error) if isinstance(error, ray.exceptions.RayActorError) else None
        if known is not None and self._coordinator is not None and self._job is not None:
            self._coordinator.report_end(self._job, _launched(self._job, rank), **known)


def _launched(job: launch.Job, rank: int) -> str:
    return f"{job.name[-100:]}.{rank}"


def _gather(calls: List[Any], report: Callable[[int, Exception], None]) -> Tuple[List[_worker.Returned], List[Exception]]:
    """What the calls have returned, and the errors in the order of time. Behind the first error not all need to end."""
    waiting, returned, failures = list(calls), [], []  # type: List[Any], List[_worker.Returned], List[Exception]
    while waiting:
        done, waiting = ray.wait(waiting, timeout=_ENDS_TOGETHER_S if failures else None)
        if not done:
            break
        for one in done:
            try:
                returned.append(ray.get(one))
            except ray.exceptions.RayError as error:
                failures.append(error)
                report(calls.index(one), error)
    return returned, failures


def _first_cause(failures: List[Exception]) -> Exception:
    """The error for which the others have failed."""
    own = [error for error in failures if not isinstance(error, HorovodInternalError)]
    return (own or failures)[0]
