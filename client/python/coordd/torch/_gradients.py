"""How gradients travel: what DistributedOptimizer does between the backward pass and the optimizer's own step.

Parameters are divided into units; a unit is submitted when the last of its gradients is there.

- The first step has one unit per gradient, so that a model that differs between ranks is an error that names the parameter.
- Then dense parameters share buckets, in the order in which their gradients were there in the first step: one flat buffer
  each, in memory that the ranks of a node map, of which their gradients become views (gradient_as_bucket_view). A bucket is
  reduced where it lies, without packing and unpacking, and costs one message instead of one per gradient. (Li et al., PyTorch
  Distributed, VLDB 2020.) The ranks agree on what can be in a bucket, since one may have seen a sparse gradient where another
  has not. Without views gradients stay where torch has put them: those of a bucket travel as a group, each reduced where it
  lies; on a GPU they are copied into the bucket and back.
- Groups that the program has asked for stay as they are.

A parameter that no rank has a gradient for keeps none, as in training by one process: each unit tells which of its gradients
are there, by a few elements more; those that travel one by one share an operation for that at the end of the backward pass
(coordd.torch._usage).

Several optimizers may be under way at once, as when one backward pass serves two models: what the second one of the same names
submits has its number in front.
"""

import weakref
import zlib
from typing import Any, Dict, List, Optional, Tuple

import torch

from coordd import _basics
from coordd.exceptions import CoorddError, HorovodInternalError
from coordd.torch import mpi_ops
from coordd.torch._units import Bucket, Group, InPlace, Options, Single, Unit, is_wanted
from coordd.torch._usage import ABSENT, Used, owner_numbers

_HAS_POST_ACCUMULATE_HOOK = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.1

# The first bucket, of the gradients that are there first, is small, so that the exchange begins early.
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
_MAX_NAME_PART = 200  # of names that are made of two others


class GradientExchange:
    """The units of one optimizer, and the hooks that tell it about gradients. Used by the thread that trains, and by those
    on which torch runs its backward pass meanwhile."""

    def __init__(self, options: Options, passes: int, names: Dict[torch.Tensor, str],
                 groups: List[Tuple[str, List[torch.Tensor]]], param_groups: List[dict], use_buckets: bool):
        self.options = options
        self.passes = passes
        alone = (options.process_set.size() or 0) <= 1 and not _basics.members_may_change()
        self.active = bool(options.process_set.included()) and not alone
        self._membership = _basics.membership()
        self._names = names
        self._units: Dict[torch.Tensor, Unit] = {}
        self._arrivals: Dict[torch.Tensor, int] = {}  # which gradient of the first step was there when
        self._left: Dict[torch.Tensor, int] = {}  # backward passes to go, for those that have had one in this step
        self._in_flight: List[Unit] = []  # in the order of submission
        self._hooks: List[Any] = []
        self._use_buckets = self._buckets_to_come = use_buckets
        self._single_names: Dict[torch.Tensor, str] = {}
        own_names = [self._name_of(parameter, *place) for parameter, place in _with_places(param_groups)]
        self._label = f"[{own_names[0][:_MAX_NAME_PART]}..{own_names[-1][:_MAX_NAME_PART]}]" if own_names else ""
        number = owner_numbers.take([*own_names, *[name for name, _ in groups]], options.process_set)
        self._prefix = f"optimizer{number}." if number else ""
        if self.active:
            for name, parameters in groups:
                unit = Group(self._prefix + name, parameters, options)
                for parameter in parameters:
                    self._watch(parameter, unit)

    def own_name(self, what: str) -> str:
        """Of something that concerns the whole optimizer: the same on all ranks, and not another optimizer's."""
        return f"{self._prefix}optimizer.{what}{self._label}"

    def names_of(self, param_groups: List[dict]) -> Dict[torch.Tensor, str]:
        """By which the program knows its parameters; by their places, where it has not said."""
        return {parameter: self._name_of(parameter, *place) for parameter, place in _with_places(param_groups)}

    def _name_of(self, parameter: torch.Tensor, group_index: int, index: int) -> str:
        return self._names.get(parameter) or f"parameter.{group_index}.{index}"

    def is_busy(self) -> bool:
        """Whether gradients of this step are on their way or wait for others of their unit."""
        return bool(self._in_flight) or 0 in self._left.values()

    def watch(self, param_groups: List[dict]) -> None:
        """Takes in every parameter that needs a gradient, also those that were frozen or absent until now."""
        if not self.active:
            return
        for parameter, place in _with_places(param_groups):
            if parameter.requires_grad and parameter not in self._units:
                name = self._single_names[parameter] = self._prefix + self._name_of(parameter, *place)
                self._watch(parameter, Single(name, parameter, self.options))

    def _watch(self, parameter: torch.Tensor, unit: Unit) -> None:
        self._units[parameter] = unit
        self._hooks.append(_on_gradient(parameter, weakref.ref(self)))

    def gradient_is_there(self, parameter: torch.Tensor) -> None:
        """Called by the backward pass when parameter.grad is complete. AssertionError: too often in this step."""
        if parameter.grad is None:  # torch 1.13 calls also where a function had no gradient to give
            return
        self._meet_the_others()
        unit = self._units[parameter]
        left = self._left.get(parameter, self.passes) - 1
        if unit.handle is not None or left < 0:
            raise AssertionError(
                f"a gradient of {self._names.get(parameter, unit.name)} was computed once more before step() or "
                f"synchronize(), while it is being reduced: more backward passes per step than backward_passes_per_step="
                f"{self.passes}? Or an activation checkpoint around a layer that is used more than once: expected "
                "checkpoint(..., use_reentrant=False), since the reentrant one runs a backward pass of its own for each use")
        self._left[parameter] = left
        if left == 0:
            if self._buckets_to_come:
                self._arrivals.setdefault(parameter, len(self._arrivals))
            unit.arrived(parameter)
            if unit.is_complete():
                self._submit(unit)

    def _submit(self, unit: Unit, kind: Optional[int] = None) -> None:
        unit.join_streams()
        if kind is not None and isinstance(unit, Single):
            unit.submit_as(kind)
        else:
            unit.submit()
        self._in_flight.append(unit)

    def finish_step(self) -> None:
        """Submits what has not been, waits for everything and leaves the results in the parameters' gradients."""
        self._meet_the_others()
        failure = self._submit_the_rest()
        try:
            self.wait()
        except HorovodInternalError as error:
            failure = failure or error
        if failure is not None:
            raise failure
        if self._buckets_to_come:
            self._buckets_to_come = False
            self._make_buckets()

    def _submit_the_rest(self) -> Optional[Exception]:
        """What the backward pass has left. A failure does not keep back the others, for which other ranks wait; it is
        returned."""
        failures: List[Exception] = []

        def attempt(call, *arguments):
            try:
                return call(*arguments)
            except (CoorddError, NotImplementedError) as error:
                failures.append(error)
                return None

        units = dict.fromkeys(self._units.values())
        singles = [unit for unit in units if isinstance(unit, Single)]
        used = attempt(Used, self.own_name("used"), [unit.kind() for unit in singles],
                       self.options.process_set) if singles else None
        absent = [index for index, unit in enumerate(singles) if unit.handle is None and unit.kind() == ABSENT]
        left_out = {id(singles[index]) for index in absent}
        for unit in units:
            if unit.handle is None and id(unit) not in left_out and any(map(is_wanted, unit.parameters)):
                attempt(self._submit, unit)
        kinds = attempt(used.wait) if used is not None else None
        if kinds is not None:
            for index in absent:
                if kinds[index] != ABSENT:
                    attempt(self._submit, singles[index], kinds[index])
        return failures[0] if failures else None

    def wait(self) -> None:
        """Waits for everything in flight, also behind a failure, which it then raises: when it returns, no gradient is
        written to any more, and a new step begins."""
        failure = None
        in_flight, self._in_flight = self._in_flight, []
        self._left = {}
        for unit in self._units.values():
            unit.begin_step()
        for unit in in_flight:
            try:
                unit.finish()
            except HorovodInternalError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def forget(self) -> None:
        """wait(), for gradients that nobody wants any more."""
        try:
            self.wait()
        except HorovodInternalError:
            pass

    # --- buckets ---

    def _meet_the_others(self) -> None:
        """Ranks that have just joined know of no buckets: all make them anew, in the first step with them."""
        if self._membership == _basics.membership():
            return
        self._membership = _basics.membership()
        self._buckets_to_come = self._use_buckets
        for parameter, unit in self._units.items():
            if isinstance(unit, (Bucket, InPlace)):
                self._units[parameter] = Single(self._single_names[parameter], parameter, self.options)

    def _make_buckets(self) -> None:
        singles = [unit for unit in self._units.values() if isinstance(unit, Single)]
        agreed = self._agreed(singles)
        buckets: Dict[Any, List[Single]] = {}
        sizes: Dict[Any, int] = {}
        limit = FIRST_BUCKET_BYTES
        finished: List[List[Single]] = []
        for unit in self._by_arrival(agreed):
            parameter = unit.parameters[0]
            key = (parameter.dtype, parameter.device)
            buckets.setdefault(key, []).append(unit)
            sizes[key] = sizes.get(key, 0) + parameter.numel() * parameter.element_size()
            if sizes[key] >= limit:
                finished.append(buckets.pop(key))
                del sizes[key]
                limit = BUCKET_BYTES
        finished.extend(buckets.values())
        for index, units in enumerate(finished):
            parameters = [unit.parameters[0] for unit in units]
            kind = Bucket if self.options.bucket_views or parameters[0].device.type != "cpu" else InPlace
            bucket = kind(self._prefix + f"bucket{index}[{self._short(units[0])}..{self._short(units[-1])}]", parameters, self.options)
            for unit in units:
                self._units[unit.parameters[0]] = bucket

    def _short(self, unit: Single) -> str:
        return unit.name[len(self._prefix):][:_MAX_NAME_PART]

    def _by_arrival(self, units: List[Single]) -> List[Single]:
        """In the order in which their gradients were there in the first step, on average over the ranks; those that a rank
        had none for come last."""
        if not units:
            return []
        last = len(self._units)
        own = torch.tensor([self._arrivals.get(unit.parameters[0], last) for unit in units], dtype=torch.int64)
        self._arrivals.clear()
        sums = mpi_ops.allreduce(own, name=self.own_name("arrivals"), op=mpi_ops.Sum, process_set=self.options.process_set)
        order = sorted(range(len(units)), key=sums.tolist().__getitem__)
        return [units[index] for index in order]

    def _agreed(self, singles: List[Single]) -> List[Single]:
        """Those that every rank can put into a bucket, in the same order in memory."""
        if not singles:
            return []
        own = torch.tensor([_fingerprint(unit) for unit in singles], dtype=torch.int64)
        least = mpi_ops.allreduce(torch.cat([own, -own]), name=self.own_name("buckets"), op=mpi_ops.Min,
                                  process_set=self.options.process_set)
        equal = (least[:len(singles)] == -least[len(singles):]) & (own != 0)
        return [unit for unit, fits in zip(singles, equal.tolist()) if fits]


def _with_places(param_groups: List[dict]) -> List[Tuple[torch.Tensor, Tuple[int, int]]]:
    """(parameter, (its group, its place there))"""
    return [(parameter, (group_index, index)) for group_index, group in enumerate(param_groups)
            for index, parameter in enumerate(group["params"])]


def _fingerprint(unit: Single) -> int:
    """A number for type, shape and order in memory; 0: not for a bucket."""
    parameter = unit.parameters[0]
    dense = torch.empty_like(parameter, memory_format=torch.preserve_format).stride() == parameter.stride()
    if unit.sparse_dimensions is not None or not dense or parameter.is_complex():
        return 0
    text = f"{unit.name} {parameter.dtype} {tuple(parameter.shape)} {parameter.stride()}"
    return 1 + zlib.crc32(text.encode())


def _on_gradient(parameter: torch.Tensor, exchange) -> Tuple:
    """Has `exchange`, a weak reference, told about each gradient of the parameter; returns what keeps the hook alive. The
    hook itself keeps neither alive."""

    def there(parameter):
        alive = exchange()
        if alive is not None:
            alive.gradient_is_there(parameter)

    if _HAS_POST_ACCUMULATE_HOOK:
        return (parameter.register_post_accumulate_grad_hook(there),)
    weakly = weakref.ref(parameter)
    # Before torch 2.1: the node that adds into parameter.grad. Nobody else keeps it alive.
    view: Any = parameter.expand_as(parameter)
    accumulator = view.grad_fn.next_functions[0][0]
    return (accumulator, accumulator.register_hook(lambda *_: there(weakly())))
