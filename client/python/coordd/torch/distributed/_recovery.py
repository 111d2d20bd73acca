"""Going on without lost ranks, in the same processes: the default group is made anew among those that are left."""

import time
from datetime import timedelta
from typing import Any, Callable, List, Optional, Tuple

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from coordd import _native, _torch_env
from coordd.exceptions import CoorddError
from coordd.torch.distributed import _group, _store
from coordd.torch.distributed._errors import as_backend_error
from coordd.torch.distributed._job import Job

_PATIENCE = timedelta(seconds=300)


def recover(cause: Optional[BaseException] = None, timeout: timedelta = _PATIENCE) -> Tuple[int, int]:
    """Instead of a new start, after an error of a call or of backward(): waits until those that are left of the job have come here,
    and makes them the default group, over the backends that it had. (rank, world size) in it; the order of ranks stays.

    Groups of before are over, with what was made of them: DistributedDataParallel, DeviceMesh, new_group(). Make these anew, and
    let share_newest() decide which rank's state goes on, as the error may have met ranks one step apart.

    Needs a job that goes on without a rank: COORDD_ON_FAILURE=raise on all ranks before init_process_group, as `coordrun --min-np N`
    sets it (or continue, which means the same here), and N ranks that are left (COORDD_MIN_WORKERS): with fewer it waits `timeout` for
    others to be started, by whatever starts them, of which coordd knows nothing; coordrun ends the run at once if it starts none.
    RuntimeError: there is no such group. `cause`, if nobody was lost: it is raised again; without one, and where no group can be made
    any more, DistBackendError."""
    default = _group.default()
    if default is None:
        raise RuntimeError("recover(): there is no default group of coordd's: expected init_process_group(\"coordd\") before")
    job, seconds, backend = default._channel.job, default._channel.timeout_s, _backend()
    if not job.recovers:
        raise RuntimeError("recover(): the loss of a rank ends this job: expected COORDD_ON_FAILURE=raise on all ranks before "
                           "init_process_group, as coordrun --min-np sets it") from cause
    job.enter()  # or the worker would leave with the last of its groups
    try:
        return _made_anew(job, cause, backend, seconds, time.monotonic() + timeout.total_seconds())
    finally:
        job.leave(others_first=False)


def _made_anew(job: Job, cause: Optional[BaseException], backend: str, seconds: float, end: float) -> Tuple[int, int]:
    while True:
        place = _next_place(job, cause, max(0.0, end - time.monotonic()))
        _take_down(job)
        try:
            _torch_env.follow(job.worker, place)
            store = PrefixStore(f"coordd/{place.generation}", _store.Store(job.worker, timedelta(seconds=seconds)))
            with _group.made_of(job):
                dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=timedelta(seconds=seconds))
            return place.rank, place.size
        except RuntimeError as error:  # another one was lost meanwhile, or the error is not about that
            cause = error


def _next_place(job: Job, cause: Optional[BaseException], seconds: float) -> _native.Place:
    try:
        place = job.worker.await_generation(seconds)
    except CoorddError as error:
        raise as_backend_error(error) from cause
    if place.generation == job.generation:
        raise cause or dist.DistBackendError(  # type: ignore[attr-defined]
            f"coordd: recover(): no rank was lost of generation {place.generation}, which has {place.size}")
    job.begin(place.generation)
    return place


def _backend() -> str:
    """Of the default group, as init_process_group takes it."""
    return str(dist.distributed_c10d._world.pg_backend_config[dist.distributed_c10d._get_default_group()])


def _take_down(job: Job) -> None:
    for group in _group.alive():
        if group._channel.job is job:
            group._end(others_first=False)
    if dist.is_initialized():
        dist.destroy_process_group()


def share_newest(progress: int, state: Callable[[], Any]) -> Any:
    """Collective over the default group: what the rank that has come furthest has, of several the first. `progress`: its count of
    steps, say. `state` is called on that rank alone; what it returns must be picklable, and travels through host memory."""
    everyone: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, progress)
    source = everyone.index(max(everyone))
    shared = [state() if dist.get_rank() == source else None]
    dist.broadcast_object_list(shared, source)
    return shared[0]
