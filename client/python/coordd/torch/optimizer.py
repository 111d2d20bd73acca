"""DistributedOptimizer: an optimizer of torch.optim whose step() uses the gradients of all ranks.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = coordd.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

Gradients are submitted while the backward pass is still computing others (coordd/torch/_gradients.py says how); step() waits
for all of them first. Ranks may produce gradients in different orders, and a rank whose forward pass
has left a parameter out contributes zeros for it. A parameter that all ranks have left out has no gradient after step(), unless
it had one before: the optimizer passes it over, as it does in one process.
"""

import contextlib
import functools
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import torch

from coordd._arguments import check_optimizer, checked_passes, whole_number
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch import mpi_ops
from coordd.torch._gradients import GradientExchange
from coordd.torch._units import Options
from coordd.torch.compression import Compression

__all__ = ["DistributedOptimizer"]


if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object  # the other base is the optimizer's own class


class _DistributedOptimizer(_Base):
    """What a distributed optimizer adds to its class: the first base of the class that DistributedOptimizer() makes.

    It shares state and param_groups with the optimizer that it was made from, so that whatever holds that one, such as a
    learning rate scheduler, keeps working on the same numbers. Its own attributes begin with _coordd.
    """

    # --- what Horovod offers ---

    def synchronize(self) -> None:
        """Waits until the gradients of this step are those of all ranks; submits those that have not been yet. step() does
        it itself; call it before to clip gradients, say, and then step() inside skip_synchronize().

        HorovodInternalError: a reduction failed; the text names the tensor and the rank. Nothing is in flight then."""
        if self._coordd_exchange.active:
            self._coordd_exchange.watch(self.param_groups)
            self._coordd_exchange.finish_step()
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
        """How many backward passes add up before the gradients travel. To be called between step() and backward().
        ValueError: not a positive number."""
        self._coordd_exchange.passes = checked_passes(passes)

    def step(self, closure: Optional[Callable] = None):
        """synchronize(), then the optimizer's own step.

        A closure is run with its gradients synchronized after each call; the loss that it returns, by which an optimizer
        such as LBFGS decides how far to go, is averaged over the ranks (summed with op=Sum), so that all decide alike."""
        if self._coordd_should_synchronize:
            if self._coordd_synchronized:
                # Horovod's first words, by which programs know the warning.
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize(): it is about to reduce gradients "
                              "that synchronize() has reduced already", stacklevel=2)
            if closure is None or self._coordd_exchange.is_busy():
                self.synchronize()
        self._coordd_synchronized = False
        if closure is None:
            return super().step()
        return super().step(functools.partial(self._coordd_run_closure, closure))

    step.hooked = True  # type: ignore[attr-defined]  # torch's profiling hooks are in the optimizer's own step; a second time they would count double

    def zero_grad(self, *args, **kwargs):
        """The optimizer's own, with its arguments (set_to_none). AssertionError: gradients are in flight, and would change
        while they are being reduced."""
        if self._coordd_exchange.is_busy():
            raise AssertionError("zero_grad() was called between backward() and step(), while gradients are being reduced: "
                                 "call step() or synchronize() first")
        return super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """The optimizer's own. What is in flight is waited for and forgotten: gradients of a state that is gone."""
        self._coordd_exchange.forget()
        self._coordd_synchronized = False
        self._coordd_should_synchronize = True
        return super().load_state_dict(*args, **kwargs)

    def add_param_group(self, param_group: dict) -> None:
        """The optimizer's own; the new parameters are reduced too. On all ranks, with the same parameters."""
        super().add_param_group(param_group)
        self._coordd_exchange.watch(self.param_groups)

    @property
    def _parameter_names(self) -> Dict[torch.Tensor, str]:
        """Horovod's attribute, which some programs read: the name of each parameter."""
        return self._coordd_exchange.names_of(self.param_groups)

    # --- inside ---

    def _coordd_start(self, exchange: GradientExchange) -> None:
        self._coordd_exchange = exchange
        self._coordd_should_synchronize = True
        self._coordd_synchronized = False
        exchange.watch(self.param_groups)

    def _coordd_run_closure(self, closure: Callable):
        loss = closure()
        if not (self._coordd_should_synchronize and self._coordd_exchange.active):
            return loss
        self.synchronize()
        self._coordd_synchronized = False
        options, name = self._coordd_exchange.options, self._coordd_exchange.own_name("loss")
        op = mpi_ops.Sum if options.op == mpi_ops.Sum else mpi_ops.Average
        if isinstance(loss, torch.Tensor):
            return mpi_ops.allreduce(loss.detach().contiguous(), name=name, op=op,
                                     process_set=options.process_set)
        if isinstance(loss, (int, float)):
            reduced = torch.tensor([loss], dtype=torch.float64)
            return mpi_ops.allreduce(reduced, name=name, op=op, process_set=options.process_set).item()
        return loss


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
    number = whole_number(groups)
    if number is not None and number >= 0:
        return number
    if not isinstance(groups, (list, tuple)) or any(
            not isinstance(group, (list, tuple)) or any(not isinstance(one, torch.Tensor) for one in group)
            for group in groups):
        raise InvalidArgumentError(f"groups is {groups!r}: expected a number of groups from 0, or a list of lists of "
                                   "parameters", "INVALID_ARGUMENT")
    ids = [id(parameter) for group in groups for parameter in group]
    if len(set(ids)) < len(ids):
        raise InvalidArgumentError("groups: a parameter is in more than one place, expected each once", "INVALID_ARGUMENT")
    return [list(group) for group in groups]


def _groups_of(groups, param_groups: List[dict]) -> List[Tuple[str, List[torch.Tensor]]]:
    """The program's groups, with a name each; only of parameters that the optimizer trains."""
    parameters = [parameter for group in param_groups for parameter in group["params"] if parameter.requires_grad]
    if isinstance(groups, int):
        count = min(groups, len(parameters))
        lists = [parameters[index * len(parameters) // count:(index + 1) * len(parameters) // count]
                 for index in range(count)]
    else:
        trained = set(parameters)
        lists = [[parameter for parameter in group if parameter in trained] for group in groups]
    return [(f"optimizer.group.{index}", members) for index, members in enumerate(lists) if members]


@functools.lru_cache(maxsize=None)
def _distributed_class(base: type) -> type:
    """A subclass of the optimizer's class, under its name, so that isinstance() and messages say what they said before."""
    return type(base.__name__, (_DistributedOptimizer, base), {"__module__": base.__module__, "__doc__": base.__doc__})


def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: Optional[Iterable[Tuple[str, Any]]] = None,
                         compression=Compression.none, backward_passes_per_step: int = 1, op: int = mpi_ops.Average,
                         gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                         groups: Union[None, int, Sequence[Sequence[torch.Tensor]]] = None, sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set,
                         gradient_as_bucket_view: bool = True) -> torch.optim.Optimizer:
    """An optimizer of the same class, with the same state and parameters, whose step() uses the gradients of all ranks.
    Every rank makes one, for the same parameters. Use it in place of the original.

    named_parameters:          names by which ranks agree about gradients, usually model.named_parameters(); without them
                               parameters are known by their position
    compression:               how gradients travel: Compression.none, fp16, bf16
    backward_passes_per_step:  passes whose gradients add up locally before they travel; scale the loss yourself
    op:                        Average, Sum, Min, Max or Product. Adasum: NotImplementedError
    gradient_predivide_factor: an average is divided by it before the sum and multiplied with it afterwards, against
                               overflow in narrow types
    groups:                    None: after the first step, gradients share buckets of 25 MB, in the order in which they
                               were there in it. A number of groups of about equal length, or lists of parameters: gradients of a group
                               travel together once all of them are there. 0: each travels by itself
    num_groups:                deprecated, the same as a number in groups
    sparse_as_dense:           sparse gradients are made dense before they travel
    process_set:               the ranks that train together; on a rank outside of it the optimizer is a local one
    gradient_as_bucket_view:   gradients become views of their buckets, which lie in memory that the node's ranks map: no
                               copies. detach_() on such a gradient is an error, and a forked child must not touch it. False:
                               they stay where torch has put them, and are copied into the buckets and back

    With one rank it is a local one too. ValueError: an argument does not fit. See the methods synchronize(),
    skip_synchronize() and set_backward_passes_per_step(); zero_grad() between backward() and step(), and backward() too
    often before step(), raise AssertionError.
    """
    if isinstance(optimizer, _DistributedOptimizer):
        raise InvalidArgumentError("the optimizer is a DistributedOptimizer already", "INVALID_ARGUMENT")
    check_optimizer(op, (mpi_ops.Average, mpi_ops.Sum, mpi_ops.Min, mpi_ops.Max, mpi_ops.Product), gradient_predivide_factor,
                    process_set, compression)
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    options = Options(compression, op, gradient_predivide_factor, sparse_as_dense, process_set,
                      bool(gradient_as_bucket_view))
    exchange = GradientExchange(options, checked_passes(backward_passes_per_step),
                                _checked_names(named_parameters, optimizer.param_groups),
                                _groups_of(_checked_groups(groups), optimizer.param_groups), optimizer.param_groups,
                                use_buckets=groups is None)
    distributed: Any = object.__new__(_distributed_class(type(optimizer)))  # type: ignore[arg-type]
    # `step` is there as an attribute where a scheduler has wrapped the original's.
    vars(distributed).update({key: value for key, value in vars(optimizer).items() if key != "step"})
    distributed._coordd_start(exchange)
    return distributed
