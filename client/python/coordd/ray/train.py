"""coordd as a backend of Ray Train:

    from coordd.ray.train import CoorddTrainer

    CoorddTrainer(train, scaling_config=ScalingConfig(num_workers=4)).fit()

Each worker's train() calls hvd.init(), and has the rank of Ray's context there.
"""

import contextlib
import dataclasses
from typing import Any, Dict, Iterator, Optional

import ray
from ray.train.backend import Backend, BackendConfig

from coordd import _basics, _ends, launch

try:  # Ray has had two of them since 2.43, and its own configurations are those of the one that is switched on
    from ray.train.v2._internal.constants import is_v2_enabled
    _second = is_v2_enabled()
except ImportError:
    _second = False
if _second:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
else:
    from ray.train.data_parallel_trainer import DataParallelTrainer

__all__ = ["CoorddConfig", "CoorddTrainer"]


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Around train(): the others hear at once by what it has failed."""
    try:
        yield
    except Exception as error:
        launch.fail(_ends.describe(type(error), error, error.__traceback__))
        raise


def _enter(job: launch.Job, rank: int) -> None:
    _basics.shutdown()
    job.enter(rank)


def _leave() -> None:
    _basics.shutdown()


class _CoorddBackend(Backend):
    """There is one in a process; the groups of workers in it have a coordd each."""

    def __init__(self) -> None:
        self._coordinators: Dict[Any, launch.Coordinator] = {}

    def on_start(self, worker_group: Any, backend_config: "CoorddConfig") -> None:
        reach = backend_config.coordinator.reach if backend_config.coordinator is not None else None
        if reach is None:
            own = launch.Coordinator(ray.util.get_node_ip_address())
            self._coordinators[id(worker_group)] = own
            reach = own.reach
        job = reach.job(launch.job_name(backend_config.job or "train"), size=len(worker_group), join_timeout_s=backend_config.timeout_s,
                        variables=backend_config.variables)
        ray.get([worker_group.execute_single_async(rank, _enter, job, rank) for rank in range(len(worker_group))])

    def on_shutdown(self, worker_group: Any, backend_config: "CoorddConfig") -> None:
        try:
            worker_group.execute(_leave)
        finally:
            own = self._coordinators.pop(id(worker_group), None)
            if own is not None:
                own.close()


@dataclasses.dataclass
class CoorddConfig(BackendConfig):
    """coordinator: to use, a coordd.ray.Coordinator; by default one for each group of workers, on the node of Train's controller.
    timeout_s: until all workers have joined. job: how jobs' names begin. variables: more of coordd's, such as COORDD_TIMEOUT."""

    coordinator: Any = None
    timeout_s: float = 300.0
    job: Optional[str] = None
    variables: Dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def backend_cls(self) -> type:
        return _CoorddBackend

    @property
    def train_func_context(self) -> Any:
        return _told


class CoorddTrainer(DataParallelTrainer):
    """Ray's DataParallelTrainer with coordd as its backend, in the place of Ray's former HorovodTrainer. Other arguments are those of
    DataParallelTrainer: train_loop_config, scaling_config, run_config, datasets, ..."""

    def __init__(self, train_loop_per_worker: Any, *, coordd_config: Optional[CoorddConfig] = None, **arguments: Any):
        super().__init__(train_loop_per_worker, backend_config=coordd_config or CoorddConfig(), **arguments)
