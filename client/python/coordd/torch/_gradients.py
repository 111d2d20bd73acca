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
"""

import weakref
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from coordd import _basics
from coordd.exceptions import HorovodInternalError, InvalidArgumentError
from coordd.process_sets import ProcessSet
from coordd.torch import mpi_ops
from coordd.torch._layout import is_same_memory
from coordd.torch._streams import Streams
from coordd.torch._submit import mapped_zeros

_HAS_POST_ACCUMULATE_HOOK = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.1

# The first bucket, of the gradients that are there first, is small, so that the exchange begins early.
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
_ALIGNMENT_BYTES = 64  # of each gradient in its bucket


class Options(NamedTuple):
    """How everything is reduced."""
    compression: Any
    op: int
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    bucket_views: bool = True

    def reduction(self) -> dict:
        """Arguments of an allreduce."""
        averaging = self.op == mpi_ops.Average
        return {"op": self.op, "prescale_factor": 1.0 / self.predivide_factor if averaging else 1.0,
                "postscale_factor": self.predivide_factor if averaging else 1.0, "process_set": self.process_set}


def _is_wanted(parameter: torch.Tensor) -> bool:
    """Whether its gradient counts: not that of a parameter that was frozen, which has none."""
    return parameter.requires_grad or parameter.grad is not None


class _Unit:
    """Gradients that travel together. `submit` sends them, `finish` waits and leaves the result in parameter.grad."""

    def __init__(self, name: str, parameters: List[torch.Tensor], options: Options):
        self.name = name
        self.parameters = parameters
        self.options = options
        self.ready: Set[int] = set()  # those of this step, by id
        self.handle: Any = None  # of mpi_ops, while it is in flight
        self._streams = Streams()

    def begin_step(self) -> None:
        self.ready.clear()

    def arrived(self, parameter: torch.Tensor) -> None:
        """parameter.grad is complete."""
        self.ready.add(id(parameter))
        self._streams.note(parameter)

    def join_streams(self) -> None:
        """Before submit(), on the stream on which that happens."""
        self._streams.join()

    def is_complete(self) -> bool:
        return len(self.ready) == len(self.parameters)

    def submit(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


class _Single(_Unit):
    """One gradient, dense or sparse."""

    def __init__(self, name, parameter, options):
        super().__init__(name, [parameter], options)
        self.sparse_dimensions: Optional[int] = None  # of its gradients, once one was sparse

    def submit(self):
        gradient = self._gradient()
        options = self.options
        if gradient.is_sparse:
            if options.predivide_factor != 1.0:
                raise InvalidArgumentError(f"the gradient of {self.name} is sparse: gradient_predivide_factor is for dense "
                                           "ones, see sparse_as_dense", "INVALID_ARGUMENT")
            self._submitted = self._context = None
            self.handle = mpi_ops.sparse_allreduce_async(gradient, self.name, options.op, options.process_set)
            return
        submitted, self._context = options.compression.compress(gradient)
        self._submitted = submitted.contiguous()
        self.handle = mpi_ops.allreduce_async_(self._submitted, name=self.name, **options.reduction())

    def _gradient(self) -> torch.Tensor:
        """parameter.grad; zeros where this rank has none but others may."""
        parameter = self.parameters[0]
        gradient = parameter.grad
        if gradient is None:
            if self.sparse_dimensions is None:
                gradient = torch.zeros_like(parameter, requires_grad=False)
            else:
                gradient = _empty_sparse(parameter, self.sparse_dimensions)
            parameter.grad = gradient
        elif gradient.is_sparse:
            if self.options.sparse_as_dense:
                gradient = parameter.grad = gradient.to_dense()
            else:
                self.sparse_dimensions = gradient.sparse_dim()
        return gradient

    def finish(self):
        handle, self.handle = self.handle, None
        result = mpi_ops.synchronize(handle)
        parameter = self.parameters[0]
        if self._submitted is None:
            parameter.grad = result
        else:
            _write_back(parameter, self._submitted, self._context, self.options.compression)


class _Group(_Unit):
    """A group of the program's: one operation of several tensors."""

    def submit(self):
        compressed = []
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
            elif parameter.grad.is_sparse:
                if not self.options.sparse_as_dense:
                    raise InvalidArgumentError(f"group {self.name} has a parameter with a sparse gradient: expected "
                                               "sparse_as_dense=True", "INVALID_ARGUMENT")
                parameter.grad = parameter.grad.to_dense()
            compressed.append(self.options.compression.compress(parameter.grad))
        self._submitted = [(tensor.contiguous(), context) for tensor, context in compressed]
        self.handle = mpi_ops.grouped_allreduce_async_([tensor for tensor, _ in self._submitted], name=self.name,
                                                       **self.options.reduction())

    def finish(self):
        handle, self.handle = self.handle, None
        mpi_ops.synchronize(handle)
        for parameter, (submitted, context) in zip(self.parameters, self._submitted):
            _write_back(parameter, submitted, context, self.options.compression)


class _Bucket(_Unit):
    """Dense gradients that share one buffer, which travels as one tensor: views of it, or copied into it and back."""

    def __init__(self, name, parameters, options):
        super().__init__(name, parameters, options)
        first = parameters[0]
        offsets, elements = [], 0
        for parameter in parameters:
            offsets.append(elements)
            elements += _padded_elements(parameter)
        self._flat = _zeros(elements, first)
        self._views = {parameter: self._flat.as_strided(parameter.shape, parameter.stride(), offset)
                       for parameter, offset in zip(parameters, offsets)}
        self._are_views = options.bucket_views
        self._reduction = options.reduction()
        self._divisor = 1
        # Inside one node the library divides while it adds. (What decides has to be the same on all ranks: not whether this
        # buffer is mapped.)
        in_passing = first.device.type == "cpu" and _basics.local_size() == _basics.size()
        if (options.op == mpi_ops.Average and options.predivide_factor == 1.0 and not in_passing
                and first.dtype in (torch.float32, torch.float64)):
            # Dividing what is in the cache anyway spares a pass over the result. Narrower types would lose small values.
            self._divisor = options.process_set.size()
            self._reduction["op"] = mpi_ops.Sum

    @torch.no_grad()
    def arrived(self, parameter):
        gradient, view = parameter.grad, self._views[parameter]
        if gradient is view:
            if self._divisor != 1:
                view.div_(self._divisor)
        else:  # the first one since zero_grad(set_to_none=True), or no view
            if gradient.is_sparse:
                gradient = parameter.grad = gradient.to_dense()
            torch.div(gradient, self._divisor, out=view)
            if self._are_views:
                parameter.grad = view
        super().arrived(parameter)

    def submit(self):
        for parameter in self.parameters:
            if id(parameter) not in self.ready:
                if parameter.grad is not None:
                    self.arrived(parameter)
                    continue
                self._views[parameter].zero_()
                if parameter.requires_grad and self._are_views:
                    parameter.grad = self._views[parameter]
        self._submitted, self._context = self.options.compression.compress(self._flat)
        self.handle = mpi_ops.allreduce_async_(self._submitted, name=self.name, **self._reduction)

    def finish(self):
        handle, self.handle = self.handle, None
        mpi_ops.synchronize(handle)
        if self._submitted is not self._flat:
            self._flat.copy_(self.options.compression.decompress(self._submitted, self._context))
        for parameter, view in self._views.items():
            if parameter.grad is view or not _is_wanted(parameter):
                continue
            if self._are_views:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.clone(memory_format=torch.preserve_format)
            else:
                with torch.no_grad():
                    parameter.grad.copy_(view)


class _Together(_Unit):
    """Dense gradients in memory of torch's that travel as a group, which nobody packs."""

    @torch.no_grad()
    def submit(self):
        self._submitted = [self.options.compression.compress(_in_order_of(parameter)) for parameter in self.parameters]
        self.handle = mpi_ops.grouped_allreduce_async_([tensor for tensor, _ in self._submitted], name=self.name,
                                                       **self.options.reduction())

    @torch.no_grad()
    def finish(self):
        handle, self.handle = self.handle, None
        mpi_ops.synchronize(handle)
        submitted, self._submitted = self._submitted, []
        for parameter, (tensor, context) in zip(self.parameters, submitted):
            if not _is_wanted(parameter) or (parameter.grad is not None and is_same_memory(tensor, parameter.grad)):
                continue
            result = self.options.compression.decompress(tensor, context).as_strided(parameter.shape, parameter.stride())
            if parameter.grad is None:
                parameter.grad = result
            else:
                parameter.grad.copy_(result)


def _in_order_of(parameter: torch.Tensor) -> torch.Tensor:
    """The elements of its gradient in one dimension, in the order in which those of the parameter lie in memory: the
    gradient's own memory, if it has that order; zeros where there is none."""
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse:
        gradient = parameter.grad = gradient.to_dense()
    if gradient is None or gradient.stride() != parameter.stride():
        ordered = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype, device=parameter.device)
        gradient = ordered.zero_() if gradient is None else ordered.copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,))


def _zeros(elements: int, like: torch.Tensor) -> torch.Tensor:
    """Of the parameter's type and device; in host memory that the node's ranks have mapped, if there is such memory."""
    if like.device.type == "cpu":
        try:
            return mapped_zeros(elements, dtype=like.dtype)
        except HorovodInternalError:
            # There is none, or the generation has just ended: whoever still needs the others will hear of that from them.
            pass
    return torch.zeros(elements, dtype=like.dtype, device=like.device)


def _write_back(parameter, submitted, context, compression) -> None:
    if submitted is parameter.grad:
        return
    result = compression.decompress(submitted, context)
    if parameter.grad is None:
        parameter.grad = result
        return
    with torch.no_grad():
        parameter.grad.copy_(result)


def _empty_sparse(parameter: torch.Tensor, sparse_dimensions: int) -> torch.Tensor:
    indices = torch.zeros((sparse_dimensions, 0), dtype=torch.int64, device=parameter.device)
    values = torch.zeros((0, *parameter.shape[sparse_dimensions:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape)


def _padded_elements(parameter: torch.Tensor) -> int:
    step = max(1, _ALIGNMENT_BYTES // parameter.element_size())
    return -(-parameter.numel() // step) * step


class GradientExchange:
    """The units of one optimizer, and the hooks that tell it about gradients. Used by the thread that trains, and by those
    on which torch runs its backward pass meanwhile."""

    def __init__(self, options: Options, passes: int, names: Dict[torch.Tensor, str],
                 groups: List[Tuple[str, List[torch.Tensor]]], use_buckets: bool):
        self.options = options
        self.passes = passes
        alone = (options.process_set.size() or 0) <= 1 and not _basics.members_may_change()
        self.active = bool(options.process_set.included()) and not alone
        self._membership = _basics.membership()
        self._names = names
        self._units: Dict[torch.Tensor, _Unit] = {}
        self._arrivals: Dict[torch.Tensor, int] = {}  # which gradient of the first step was there when
        self._left: Dict[torch.Tensor, int] = {}  # backward passes to go, for those that have had one in this step
        self._in_flight: List[_Unit] = []  # in the order of submission
        self._hooks: List[Any] = []
        self._use_buckets = self._buckets_to_come = use_buckets
        self._single_names: Dict[torch.Tensor, str] = {}
        if self.active:
            for name, parameters in groups:
                unit = _Group(name, parameters, options)
                for parameter in parameters:
                    self._watch(parameter, unit)

    def is_busy(self) -> bool:
        """Whether gradients of this step are on their way or wait for others of their unit."""
        return bool(self._in_flight) or 0 in self._left.values()

    def watch(self, param_groups: List[dict]) -> None:
        """Takes in every parameter that needs a gradient, also those that were frozen or absent until now."""
        if not self.active:
            return
        for group_index, group in enumerate(param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in self._units:
                    name = self._names.get(parameter) or f"parameter.{group_index}.{index}"
                    self._single_names[parameter] = name
                    self._watch(parameter, _Single(name, parameter, self.options))

    def _watch(self, parameter: torch.Tensor, unit: _Unit) -> None:
        self._units[parameter] = unit
        self._hooks.append(_on_gradient(parameter, weakref.ref(self)))

    def gradient_is_there(self, parameter: torch.Tensor) -> None:
        """Called by the backward pass when parameter.grad is complete. AssertionError: too often in this step."""
        self._meet_the_others()
        unit = self._units[parameter]
        left = self._left.get(parameter, self.passes) - 1
        if unit.handle is not None or left < 0:
            raise AssertionError(
                f"a gradient of {self._names.get(parameter, unit.name)} was computed once more before step() or "
                f"synchronize(), while it is being reduced: more backward passes per step than backward_passes_per_step="
                f"{self.passes}?")
        self._left[parameter] = left
        if left == 0:
            if self._buckets_to_come:
                self._arrivals.setdefault(parameter, len(self._arrivals))
            unit.arrived(parameter)
            if unit.is_complete():
                self._submit(unit)

    def _submit(self, unit: _Unit) -> None:
        unit.join_streams()
        unit.submit()
        self._in_flight.append(unit)

    def finish_step(self) -> None:
        """Submits what has not been, waits for everything and leaves the results in the parameters' gradients."""
        self._meet_the_others()
        for unit in dict.fromkeys(self._units.values()):
            if unit.handle is None and any(map(_is_wanted, unit.parameters)):
                self._submit(unit)
        self.wait()
        if self._buckets_to_come:
            self._buckets_to_come = False
            self._make_buckets()

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
            if isinstance(unit, (_Bucket, _Together)):
                self._units[parameter] = _Single(self._single_names[parameter], parameter, self.options)

    def _make_buckets(self) -> None:
        singles = [unit for unit in self._units.values() if isinstance(unit, _Single)]
        agreed = self._agreed(singles)
        buckets: Dict[Any, List[_Single]] = {}
        sizes: Dict[Any, int] = {}
        limit = FIRST_BUCKET_BYTES
        finished: List[List[_Single]] = []
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
            kind = _Bucket if self.options.bucket_views or parameters[0].device.type != "cpu" else _Together
            bucket = kind(f"bucket{index}[{units[0].name[:200]}..{units[-1].name[:200]}]", parameters, self.options)
            for unit in units:
                self._units[unit.parameters[0]] = bucket

    def _by_arrival(self, units: List[_Single]) -> List[_Single]:
        """In the order in which their gradients were there in the first step, on average over the ranks; those that a rank
        had none for come last."""
        if not units:
            return []
        last = len(self._units)
        own = torch.tensor([self._arrivals.get(unit.parameters[0], last) for unit in units], dtype=torch.int64)
        self._arrivals.clear()
        sums = mpi_ops.allreduce(own, name="optimizer.arrivals", op=mpi_ops.Sum, process_set=self.options.process_set)
        order = sorted(range(len(units)), key=sums.tolist().__getitem__)
        return [units[index] for index in order]

    def _agreed(self, singles: List[_Single]) -> List[_Single]:
        """Those that every rank can put into a bucket, in the same order in memory."""
        if not singles:
            return []
        own = torch.tensor([_fingerprint(unit) for unit in singles], dtype=torch.int64)
        least = mpi_ops.allreduce(torch.cat([own, -own]), name="optimizer.buckets", op=mpi_ops.Min,
                                  process_set=self.options.process_set)
        equal = (least[:len(singles)] == -least[len(singles):]) & (own != 0)
        return [unit for unit, fits in zip(singles, equal.tolist()) if fits]


def _fingerprint(unit: _Single) -> int:
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
