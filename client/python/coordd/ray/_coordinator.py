"""A coordd for jobs on Ray: a child of this process, or of an actor that others can be handed."""

from typing import Any, List, Sequence, Union

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from coordd import launch


class _Owner:
    """coordd ends with the actor, however that ends, and the actor with the driver."""

    def __init__(self, arguments: List[str]):
        self._coordinator = launch.Coordinator(ray.util.get_node_ip_address(), arguments=arguments)

    def reach(self) -> launch.Reach:
        return self._coordinator.reach

    def members(self, job: launch.Job) -> List[launch.Member]:
        return self._coordinator.members(job)

    def report_end(self, job: launch.Job, launched: str, how: dict) -> bool:
        return self._coordinator.report_end(job, launched, **how)

    def close(self) -> None:
        self._coordinator.close()


class Coordinator:
    """One coordd for many jobs, in an actor on the driver's node. It can be handed to tasks, actors and the trials of Ray Tune, whose
    executors then use it: RayExecutor(coordinator=...). Whoever has made it closes it. Over mutual TLS, with certificates made for it."""

    def __init__(self, arguments: Sequence[str] = ()):
        """`arguments`: more of coordd's, such as ["--max-jobs", "100"]. Blocks until coordd is there."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._owner = ray.remote(_Owner).options(num_cpus=0, max_concurrency=8, scheduling_strategy=here).remote(list(arguments))
        self.reach: launch.Reach = ray.get(self._owner.reach.remote())

    def members(self, job: launch.Job) -> List[launch.Member]:
        """As launch.Coordinator.members."""
        return ray.get(self._owner.members.remote(job))

    def report_end(self, job: launch.Job, launched: str, **how: Any) -> bool:
        """As launch.Coordinator.report_end."""
        return ray.get(self._owner.report_end.remote(job, launched, how))

    def close(self) -> None:
        """Ends coordd; jobs that still run end with it."""
        ray.get(self._owner.close.remote())
        ray.kill(self._owner)

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def own_coordinator(arguments: Sequence[str] = ()) -> Union[Coordinator, launch.Coordinator]:
    """For one executor: a child of this process, which takes less time than an actor, where this process is on a node of the cluster."""
    if ray.util.client.ray.is_connected():
        return Coordinator(arguments)
    return launch.Coordinator(ray.util.get_node_ip_address(), arguments=arguments)
