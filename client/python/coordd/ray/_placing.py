"""Where Ray puts the actors of an executor."""

from typing import Any, List, Optional

import ray
from ray.util.placement_group import get_current_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from coordd.exceptions import HorovodInternalError


class Bundles:
    """Room for `size` actors: on `num_hosts` nodes as many on each, or wherever there is some."""

    def __init__(self, size: int, num_hosts: Optional[int], cpus: float, gpus: float, use_current: bool):
        self._hosts = num_hosts
        self._per_bundle = size // num_hosts if num_hosts else 1
        self._count = num_hosts or size
        self._each = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
        self._use_current = use_current
        self._group: Any = None

    def reserve(self, timeout_s: float) -> None:
        """All of it or nothing. HorovodInternalError: Ray has no room in time."""
        if self._use_current and get_current_placement_group() is not None:
            return  # Ray takes the room of children from it by itself, where its owner has asked for that
        bundle = {name: number * self._per_bundle for name, number in self._each.items()}
        self._group = placement_group([bundle] * self._count, strategy="STRICT_SPREAD" if self._hosts else "PACK")
        if not self._group.wait(timeout_s):  # ready() would start a process to say so
            self.give_back()
            where = "on a node" if self._hosts == 1 else f"on each of {self._hosts} nodes" if self._hosts else f"{self._count} times"
            there = {name: ray.cluster_resources().get(name, 0) for name in bundle}
            raise HorovodInternalError(f"Ray has found no room for {bundle} {where} within {timeout_s:g} s: of all its nodes it has {there}, "
                                       "some of which may be in use (`ray status`); cpus_per_worker= and gpus_per_worker= say what "
                                       "a worker asks for", "DEADLINE_EXCEEDED")

    def start(self, kind: type, slot: int) -> Any:
        """An actor; it may wait for room."""
        options: dict = {"num_cpus": self._each["CPU"], "num_gpus": self._each.get("GPU", 0), "max_restarts": 0}
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, slot // self._per_bundle)
        return ray.remote(kind).options(**options).remote()

    def give_back(self) -> None:
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


def by_node(workers: List[Any]) -> List[Any]:
    """Those of a node behind each other, so that the ranks that they are told are those that coordd gives. Waits for all of them."""
    places = ray.get([one.place.remote() for one in workers])
    nodes = list(dict.fromkeys(place.node for place in places))
    return [workers[i] for i in sorted(range(len(workers)), key=lambda i: nodes.index(places[i].node))]
