"""DistributedOptimizer: an optimizer of torch.optim whose step() uses the gradients of all ranks.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = coordd.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

Each gradient is submitted as soon as the backward pass has finished it, so that it travels while the rest of the pass
computes; step() waits for all of them first. Ranks may produce gradients in different orders, and a rank whose forward pass
has left a parameter out contributes zeros for it.
"""

import contextlib
import functools
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from coordd.exceptions import HorovodInternalError, InvalidArgumentError, UnsupportedError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch import mpi_ops
from coordd.torch.compression import Compression, Compressor

__all__ = ["DistributedOptimizer"]

_HAS_POST_ACCUMULATE_HOOK = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.1


class _InFlight(NamedTuple):
    """A gradient that has been submitted."""
    handle: Any  # of mpi_ops; a callable for a sparse gradient
    submitted: Optional[torch.Tensor]  # the tensor that is reduced in place; None for a sparse gradient
    context: Any  # of the compressor


class _Group:
    """Parameters whose gradients travel as one operation, once all of them are there."""

    __slots__ = ("name", "parameters", "ready")

    def __init__(self, name: str, parameters: List[torch.Tensor]):
        self.name = name
        self.parameters = parameters
        self.ready = set()  # those of this step, by id


class _GroupHandle:
    """The one handle of a group, asked by each of its parameters."""

    __slots__ = ("handle", "failure")

    def __init__(self, handle):
        self.handle = handle
        self.failure = None

    def __call__(self):
        handle, self.handle = self.handle, None
        if handle is not None:
            try:
                mpi_ops.synchronize(handle)
            except Exception as failure:
                self.failure = failure
        if self.failure is not None:
            raise self.failure


class _DistributedOptimizer:
    """What a distributed optimizer adds to its class: the first base of the class that DistributedOptimizer() makes.

    It shares state and param_groups with the optimizer that it was made from, so that whatever holds that one, such as a
    learning rate scheduler, keeps working on the same numbers. Its own attributes begin with _coordd.
    """

    # --- what Horovod offers ---

    def synchronize(self) -> None:
        """Waits until the gradients of this step are those of all ranks; submits those that have not been yet. step() does
        it itself; call it before to clip gradients, say, and then step() inside skip_synchronize().

        HorovodInternalError: a reduction failed; the text names the tensor and the rank. Nothing is in flight then."""
        if not self._coordd_active:
            self._coordd_synchronized = True
            return
        self._coordd_watch_new_parameters()
        for parameter in self._coordd_names:
            if parameter not in self._coordd_in_flight and (parameter.requires_grad or parameter.grad is not None):
                self._coordd_submit(parameter)
        for group in self._coordd_groups.values():
            group.ready.clear()
        self._coordd_finish()
        self._coordd_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Inside, step() does not wait for gradients, because synchronize() has already been called."""
        self._coordd_should_synchronize = False
        try:
            yield
        finally:
            self._coordd_should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up before the gradients travel. ValueError: not a positive number."""
        self._coordd_passes = _checked_passes(passes)
        self._coordd_delays = {}

    def step(self, closure: Optional[Callable] = None):
        """synchronize(), then the optimizer's own step.

        A closure is run with its gradients synchronized after each call; the loss that it returns, by which an optimizer
        such as LBFGS decides how far to go, is averaged over the ranks (summed with op=Sum), so that all decide alike."""
        if self._coordd_should_synchronize:
            if self._coordd_synchronized:
                warnings.warn("step() is about to reduce gradients that synchronize() has reduced already: call it inside "
                              "`with optimizer.skip_synchronize():`", stacklevel=2)
            if closure is None or self._coordd_in_flight:
                self.synchronize()
        self._coordd_synchronized = False
        if closure is None:
            return super().step()
        return super().step(functools.partial(self._coordd_run_closure, closure))

    step.hooked = True  # torch's profiling hooks are in the optimizer's own step; a second time they would count double

    def zero_grad(self, *args, **kwargs):
        """The optimizer's own, with its arguments (set_to_none). AssertionError: gradients are in flight, and would change
        while they are being reduced."""
        if self._coordd_in_flight:
            raise AssertionError("zero_grad() was called between backward() and step(), while gradients are being reduced: "
                                 "call step() or synchronize() first")
        return super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """The optimizer's own. What is in flight is waited for and forgotten: gradients of a state that is gone."""
        self._coordd_forget()
        return super().load_state_dict(*args, **kwargs)

    def add_param_group(self, param_group: dict) -> None:
        """The optimizer's own; the new parameters are reduced too. On all ranks, with the same parameters."""
        super().add_param_group(param_group)
        self._coordd_watch_new_parameters()

    # --- construction ---

    def _coordd_start(self, names: Dict[torch.Tensor, str], options: "_Options") -> None:
        self._coordd_options = options
        self._coordd_active = bool(options.process_set.included()) and options.process_set.size() > 1
        self._coordd_passes = options.passes
        self._coordd_should_synchronize = True
        self._coordd_synchronized = False
        self._coordd_given_names = names
        self._coordd_names: Dict[torch.Tensor, str] = {}  # parameters that are reduced
        self._coordd_delays: Dict[torch.Tensor, int] = {}  # backward passes to go, where some have been
        self._coordd_in_flight: Dict[torch.Tensor, _InFlight] = {}
        self._coordd_sparse: Dict[torch.Tensor, int] = {}  # sparse dimensions of parameters with sparse gradients
        self._coordd_groups = _groups_of(options.groups, self.param_groups, names)
        self._coordd_hooks: List[Any] = []
        self._coordd_watch_new_parameters()

    def _coordd_watch_new_parameters(self) -> None:
        """Has every parameter that needs a gradient submit it, also those that were frozen or absent until now."""
        if not self._coordd_active:
            return
        for group_index, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in self._coordd_names:
                    self._coordd_names[parameter] = (self._coordd_given_names.get(parameter)
                                                     or f"parameter.{group_index}.{index}")
                    self._coordd_hooks.append(_on_gradient(parameter, weakref.ref(self)))

    # --- a step ---

    def _coordd_gradient_is_there(self, parameter: torch.Tensor) -> None:
        """Called by the backward pass when parameter.grad is complete."""
        if parameter in self._coordd_in_flight:
            raise AssertionError(
                f"the gradient of {self._coordd_names[parameter]} was computed again before step() or synchronize(): it "
                f"is already being reduced. More backward passes per step than backward_passes_per_step="
                f"{self._coordd_passes}?")
        left = self._coordd_delays.get(parameter, self._coordd_passes) - 1
        if left < 0:
            raise AssertionError(f"more than backward_passes_per_step={self._coordd_passes} backward passes before step()")
        if left > 0:
            self._coordd_delays[parameter] = left
            return
        self._coordd_delays[parameter] = 0
        group = self._coordd_groups.get(parameter)
        if group is None:
            self._coordd_submit(parameter)
            return
        group.ready.add(id(parameter))
        if len(group.ready) == len(group.parameters):
            self._coordd_submit(parameter)

    def _coordd_submit(self, parameter: torch.Tensor) -> None:
        """Sends the gradient on its way, with those of its group."""
        group = self._coordd_groups.get(parameter)
        if group is not None:
            self._coordd_submit_group(group)
            return
        gradient = self._coordd_gradient(parameter)
        options = self._coordd_options
        name = self._coordd_names[parameter]
        if gradient.is_sparse:
            if options.predivide_factor != 1.0:
                raise InvalidArgumentError(f"the gradient of {name} is sparse: gradient_predivide_factor is for dense ones, "
                                           "see sparse_as_dense", "INVALID_ARGUMENT")
            handle = mpi_ops.sparse_allreduce_async(gradient, name, options.op, options.process_set)
            self._coordd_in_flight[parameter] = _InFlight(handle, None, None)
            return
        submitted, context = options.compression.compress(gradient)
        if not submitted.is_contiguous():
            submitted = submitted.contiguous()
        handle = mpi_ops.allreduce_async_(submitted, name=name, op=options.op, prescale_factor=options.prescale_factor,
                                          postscale_factor=options.postscale_factor, process_set=options.process_set)
        self._coordd_in_flight[parameter] = _InFlight(handle, submitted, context)

    def _coordd_submit_group(self, group: _Group) -> None:
        options = self._coordd_options
        compressed = [options.compression.compress(self._coordd_gradient(parameter)) for parameter in group.parameters]
        if any(submitted.is_sparse for submitted, _ in compressed):
            raise InvalidArgumentError(f"group {group.name} has a parameter with a sparse gradient: expected "
                                       "sparse_as_dense=True", "INVALID_ARGUMENT")
        submitted = [tensor.contiguous() for tensor, _ in compressed]
        handle = _GroupHandle(mpi_ops.grouped_allreduce_async_(
            submitted, name=group.name, op=options.op, prescale_factor=options.prescale_factor,
            postscale_factor=options.postscale_factor, process_set=options.process_set))
        for parameter, tensor, (_, context) in zip(group.parameters, submitted, compressed):
            self._coordd_in_flight[parameter] = _InFlight(handle, tensor, context)

    def _coordd_gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """parameter.grad; zeros where this rank has none but others may."""
        gradient = parameter.grad
        if gradient is None:
            sparse_dimensions = self._coordd_sparse.get(parameter)
            if sparse_dimensions is None:
                gradient = torch.zeros_like(parameter, memory_format=torch.preserve_format).detach()
            else:
                gradient = _empty_sparse(parameter, sparse_dimensions)
            parameter.grad = gradient
        elif gradient.is_sparse:
            if self._coordd_options.sparse_as_dense:
                gradient = parameter.grad = gradient.to_dense()
            else:
                self._coordd_sparse[parameter] = gradient.sparse_dim()
        return gradient

    def _coordd_finish(self) -> None:
        """Waits for everything in flight, also behind a failure, which it then raises: no gradient is written to any more
        when it returns."""
        failure = None
        in_flight, self._coordd_in_flight = self._coordd_in_flight, {}
        self._coordd_delays = {}
        for parameter, (handle, submitted, context) in in_flight.items():
            try:
                result = mpi_ops.synchronize(handle)
            except HorovodInternalError as error:
                failure = failure or error
                continue
            if submitted is None:
                parameter.grad = result
            elif submitted is not parameter.grad:
                with torch.no_grad():
                    parameter.grad.copy_(self._coordd_options.compression.decompress(submitted, context))
        if failure is not None:
            raise failure

    def _coordd_forget(self) -> None:
        try:
            self._coordd_finish()
        except HorovodInternalError:
            pass
        for group in self._coordd_groups.values():
            group.ready.clear()
        self._coordd_synchronized = False
        self._coordd_should_synchronize = True

    def _coordd_run_closure(self, closure: Callable):
        loss = closure()
        if not (self._coordd_should_synchronize and self._coordd_active):
            return loss
        self.synchronize()
        self._coordd_synchronized = False
        options = self._coordd_options
        op = mpi_ops.Sum if options.op == mpi_ops.Sum else mpi_ops.Average
        if isinstance(loss, torch.Tensor):
            return mpi_ops.allreduce(loss.detach().contiguous(), name="optimizer.loss", op=op,
                                     process_set=options.process_set)
        if isinstance(loss, (int, float)):
            reduced = torch.tensor([loss], dtype=torch.float64)
            return mpi_ops.allreduce(reduced, name="optimizer.loss", op=op, process_set=options.process_set).item()
        return loss


class _Options(NamedTuple):
    compression: Compressor
    passes: int
    op: int
    predivide_factor: float
    prescale_factor: float
    postscale_factor: float
    groups: Union[int, List[List[torch.Tensor]]]
    sparse_as_dense: bool
    process_set: ProcessSet


def _on_gradient(parameter: torch.Tensor, optimizer) -> Tuple:
    """Has `optimizer`, a weak reference, told about each gradient of the parameter; returns what keeps the hook alive."""

    def there(*_):
        alive = optimizer()
        if alive is not None and alive._coordd_active:
            alive._coordd_gradient_is_there(parameter)

    if _HAS_POST_ACCUMULATE_HOOK:
        return (parameter.register_post_accumulate_grad_hook(there),)
    # Before torch 2.1: the node that adds into parameter.grad. Nobody else keeps it alive.
    accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return (accumulator, accumulator.register_hook(there))


def _empty_sparse(parameter: torch.Tensor, sparse_dimensions: int) -> torch.Tensor:
    indices = torch.zeros((sparse_dimensions, 0), dtype=torch.int64)
    values = torch.zeros((0, *parameter.shape[sparse_dimensions:]), dtype=parameter.dtype)
    return torch.sparse_coo_tensor(indices, values, parameter.shape)


def _checked_passes(passes: int) -> int:
    if not isinstance(passes, int) or passes < 1:
        raise InvalidArgumentError(f"backward_passes_per_step is {passes!r}: expected a whole number from 1",
                                   "INVALID_ARGUMENT")
    return passes


def _checked_names(named_parameters: Optional[Iterable], param_groups: List[dict]) -> Dict[torch.Tensor, str]:
    """Names of parameters. ValueError: not (name, parameter), a name twice, or a parameter without one."""
    if named_parameters is None:
        return {}
    pairs = list(named_parameters)
    if any(not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)) for pair in pairs):
        raise InvalidArgumentError("named_parameters: expected (name, parameter) pairs, as model.named_parameters() gives "
                                   "them", "INVALID_ARGUMENT")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise InvalidArgumentError(f"named_parameters: more than one parameter has the name {', '.join(twice)}; several "
                                   "models need a prefix each", "INVALID_ARGUMENT")
    named = {parameter: name for name, parameter in pairs}
    unnamed = [f"parameter {index} of group {group_index}, shape {tuple(parameter.shape)}"
               for group_index, group in enumerate(param_groups)
               for index, parameter in enumerate(group["params"]) if parameter not in named]
    if unnamed:
        raise InvalidArgumentError(f"named_parameters has no name for {len(unnamed)} of the optimizer's parameters, the "
                                   f"first is {unnamed[0]}", "INVALID_ARGUMENT")
    return named


def _checked_groups(groups) -> Union[int, List[List[torch.Tensor]]]:
    """ValueError: neither a number from 0 nor lists of tensors, or a tensor twice."""
    if groups is None:
        return 0
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0:
        return groups
    if not isinstance(groups, (list, tuple)) or any(
            not isinstance(group, (list, tuple)) or any(not isinstance(one, torch.Tensor) for one in group)
            for group in groups):
        raise InvalidArgumentError(f"groups is {groups!r}: expected a number of groups from 0, or a list of lists of "
                                   "parameters", "INVALID_ARGUMENT")
    ids = [id(parameter) for group in groups for parameter in group]
    if len(set(ids)) < len(ids):
        raise InvalidArgumentError("groups: a parameter is in more than one place, expected each once", "INVALID_ARGUMENT")
    return [list(group) for group in groups]


def _groups_of(groups, param_groups: List[dict], names: Dict[torch.Tensor, str]) -> Dict[torch.Tensor, _Group]:
    """The group of each parameter that is in one."""
    parameters = [parameter for group in param_groups for parameter in group["params"] if parameter.requires_grad]
    if isinstance(groups, int):
        count = min(groups, len(parameters))
        lists = [parameters[index * len(parameters) // count:(index + 1) * len(parameters) // count]
                 for index in range(count)]
    else:
        trained = set(parameters)
        lists = [[parameter for parameter in group if parameter in trained] for group in groups]
    result = {}
    for index, members in enumerate(lists):
        group = _Group(f"optimizer.group.{index}", members)
        result.update({parameter: group for parameter in members})
    return result


@functools.lru_cache(maxsize=None)
def _distributed_class(base: type) -> type:
    """A subclass of the optimizer's class, under its name, so that isinstance() and messages say what they said before."""
    return type(base.__name__, (_DistributedOptimizer, base), {"__module__": base.__module__, "__doc__": base.__doc__})


def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: Optional[Iterable[Tuple[str, Any]]] = None,
                         compression=Compression.none, backward_passes_per_step: int = 1, op: int = mpi_ops.Average,
                         gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                         groups: Union[None, int, Sequence[Sequence[torch.Tensor]]] = None, sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set) -> torch.optim.Optimizer:
    """An optimizer of the same class, with the same state and parameters, whose step() uses the gradients of all ranks.
    Every rank makes one, for the same parameters. Use it in place of the original.

    named_parameters:          names by which ranks agree about gradients, usually model.named_parameters(); without them
                               parameters are known by their position
    compression:               how gradients travel: Compression.none, fp16, bf16
    backward_passes_per_step:  passes whose gradients add up locally before they travel; scale the loss yourself
    op:                        Average, Sum, Min, Max or Product. Adasum: NotImplementedError
    gradient_predivide_factor: an average is divided by it before the sum and multiplied with it afterwards, against
                               overflow in narrow types
    groups:                    a number of groups of about equal length, or lists of parameters: gradients of a group
                               travel together once all of them are there
    num_groups:                deprecated, the same as a number in groups
    sparse_as_dense:           sparse gradients are made dense before they travel
    process_set:               the ranks that train together; on a rank outside of it the optimizer is a local one

    With one rank it is a local one too. ValueError: an argument does not fit. See the methods synchronize(),
    skip_synchronize() and set_backward_passes_per_step(); zero_grad() between backward() and step(), and backward() too
    often before step(), raise AssertionError.
    """
    if isinstance(optimizer, _DistributedOptimizer):
        raise InvalidArgumentError("the optimizer is a DistributedOptimizer already", "INVALID_ARGUMENT")
    if op == mpi_ops.Adasum:
        raise UnsupportedError("Adasum is not in this version of coordd: use op=Average with a scaled learning rate",
                               "UNIMPLEMENTED")
    if op not in (mpi_ops.Average, mpi_ops.Sum, mpi_ops.Min, mpi_ops.Max, mpi_ops.Product):
        raise InvalidArgumentError(f"op is {op!r}: expected Average, Sum, Min, Max or Product", "INVALID_ARGUMENT")
    if gradient_predivide_factor != 1.0 and op != mpi_ops.Average:
        raise InvalidArgumentError("gradient_predivide_factor is for op=Average: with another operator it would change the "
                                   "result", "INVALID_ARGUMENT")
    if process_set.process_set_id is None:
        raise InvalidArgumentError(f"{process_set} is not registered: give it to init() or to add_process_set()",
                                   "INVALID_ARGUMENT")
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    averaging = op == mpi_ops.Average
    options = _Options(compression=compression, passes=_checked_passes(backward_passes_per_step), op=op,
                       predivide_factor=gradient_predivide_factor,
                       prescale_factor=1.0 / gradient_predivide_factor if averaging else 1.0,
                       postscale_factor=gradient_predivide_factor if averaging else 1.0,
                       groups=_checked_groups(groups), sparse_as_dense=sparse_as_dense, process_set=process_set)
    names = _checked_names(named_parameters, optimizer.param_groups)
    distributed = object.__new__(_distributed_class(type(optimizer)))
    # `step` is there as an attribute where a scheduler has wrapped the original's.
    vars(distributed).update({key: value for key, value in vars(optimizer).items() if key != "step"})
    distributed._coordd_start(names, options)
    return distributed
