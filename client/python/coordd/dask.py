"""coordd on Dask: workers of a cluster are the workers of a job.

    from distributed import Client
    import coordd.dask

    with Client("scheduler:8786") as client:
        results = coordd.dask.run(train, args=(10,), num_proc=4)  # by rank; train() calls hvd.init() itself
"""

import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import distributed
from distributed.utils import get_ip

from coordd import _basics, launch
from coordd._arguments import workers_if_given
from coordd.exceptions import HorovodInternalError

__all__ = ["run"]

_LOOK_S = 1.0  # how often it is asked whether the workers are still there
_ENDS_TOGETHER_S = 30.0  # behind the first failure, for the others to notice it


def run(fn: Callable, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, num_proc: Optional[int] = None, *,
        client: Optional[distributed.Client] = None, env: Optional[Mapping[str, str]] = None, job: Optional[str] = None,
        start_timeout: Optional[float] = None) -> List[Any]:
    """Calls fn(*args, **kwargs) once on each of `num_proc` workers of the cluster at the same time, all of them by default; returns their
    results by rank. `fn` calls init() itself. Each worker has to be a process of its own, which runs nothing else of coordd meanwhile.

    client:        the current one by default.
    env:           variables for the processes, such as COORDD_TIMEOUT.
    job:           the job's name; "dask-3f0c..." by default.
    start_timeout: seconds until all have joined; COORDD_JOIN_TIMEOUT's default otherwise.

    coordd runs beside the client, and workers reach it where they reach the client: beyond loopback by mutual TLS, with certificates and a
    token that Dask carries to the workers. The error of the one that failed first is raised here. HorovodInternalError: there are too few
    workers, or one is lost. ValueError: a wrong argument.
    """
    num_proc = workers_if_given("num_proc", num_proc)
    client = client or distributed.get_client()
    known = list(client.scheduler_info(n_workers=-1)["workers"])
    size = len(known) if num_proc is None else num_proc
    if size < 1 or len(known) < size:
        raise HorovodInternalError(f"{'1 worker is' if size <= 1 else f'{size} workers are'} needed, and the cluster has {len(known)}", "FAILED_PRECONDITION")
    if any(address.startswith("inproc://") for address in known):
        raise HorovodInternalError("the cluster's workers are threads of one process: expected LocalCluster(processes=True)",
                                   "FAILED_PRECONDITION")
    workers = sorted(known, key=lambda address: address.rpartition(":")[0])[:size]  # those of a host behind each other
    with launch.Coordinator(_own_address(client)) as coordinator:
        timeout = {} if start_timeout is None else {"join_timeout_s": start_timeout}
        made = coordinator.job(job or launch.job_name("dask"), size=size, **timeout)
        futures = [client.submit(_task, made, rank, (fn, tuple(args), dict(kwargs or {})), dict(env or {}), workers=[address],
                                 allow_other_workers=False, pure=False, retries=0, key=f"{made.name}-{rank}")
                   for rank, address in enumerate(workers)]
        try:
            found = _results(client, futures, workers)
        finally:
            client.cancel(futures, force=True)
    return [value for _, value in sorted(found, key=lambda one: one[0])]


def _own_address(client: distributed.Client) -> str:
    """By which this machine is reached from the scheduler's."""
    host = client.scheduler_info(n_workers=0)["address"].rpartition("://")[2].rpartition(":")[0].strip("[]")
    return "127.0.0.1" if host in ("127.0.0.1", "localhost", "::1") else get_ip(host)


def _task(job: launch.Job, rank: int, call: Tuple[Callable, Tuple, Dict[str, Any]], variables: Dict[str, str]) -> Tuple[int, Any]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    fn, args, kwargs = call
    try:
        with job.member(rank):
            value = fn(*args, **kwargs)
            return (_basics.rank() if _basics.is_initialized() else rank), value
    except SystemExit as left:  # it would end Dask's worker
        if left.code:
            raise RuntimeError(f"the function has called sys.exit({left.code!r})") from None
        return rank, None
    finally:
        for name, value_before in before.items():
            os.environ.pop(name, None)
            if value_before is not None:
                os.environ[name] = value_before


def _results(client: distributed.Client, futures: List[distributed.Future], workers: List[str]) -> List[Tuple[int, Any]]:
    failures: List[BaseException] = []
    waiting, until = dict(zip(futures, workers)), None  # type: Dict[distributed.Future, str], Optional[float]
    while waiting and (until is None or time.monotonic() < until):
        try:
            distributed.wait(list(waiting), timeout=_LOOK_S, return_when="FIRST_COMPLETED")
        except TimeoutError:
            pass
        there = client.scheduler_info(n_workers=-1)["workers"]
        for future, address in list(waiting.items()):
            if future.done():
                del waiting[future]
                if future.status != "finished":
                    failures.append(future.exception())
            elif address not in there:  # Dask would wait for it for ever
                del waiting[future]
                failures.append(HorovodInternalError(f"Dask's worker {address} is lost", "ABORTED"))
        if failures and until is None:
            until = time.monotonic() + _ENDS_TOGETHER_S
    if failures:
        own = [error for error in failures if not isinstance(error, HorovodInternalError)]
        raise (own or failures)[0]
    return [future.result() for future in futures]
