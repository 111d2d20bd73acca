"""allreduce, reducescatter and reduce, in all their forms. See coordd.torch.mpi_ops."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from coordd import _library
from coordd._basics import Average, Sum, worker
from coordd.exceptions import HorovodInternalError, InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._handles import Pending, finish, names, synchronize, track
from coordd.torch._refused import checked, refuse
from coordd.torch._submit import (reduction, require_same_bytes, run_allreduce, set_number, size_bytes, submit,
                                   submit_group)
from coordd.torch.compression import Compression

def function(name: str):
    """A function of the library. NotImplementedError: it is older than this package."""
    return _library.library().function(name)


def needs_grad(*tensors: torch.Tensor) -> bool:
    """What is no tensor is refused later."""
    return torch.is_grad_enabled() and any([getattr(tensor, "requires_grad", False) for tensor in tensors])


# --- allreduce -------------------------------------------------------------------------------------------------------


def _allreduce(tensor, output, average, name, op, prescale_factor, postscale_factor, process_set) -> Pending:
    number = set_number(process_set)
    full_name, unnamed = names.take("allreduce", name, number)
    try:
        output = like(tensor) if output is None else output
        work = submit(function("coordd_allreduce_async"), reduction(op, average, tensor), full_name, tensor, output, number,
                      prescale_factor, postscale_factor)
    except BaseException as error:
        refuse(error, full_name, unnamed, number)
        raise
    return Pending(work, output, None, tensor, unnamed)


like = torch.empty_like  # memory for a result shaped as the input


def _allreduce_now(tensor, output, average, name, op, prescale_factor, postscale_factor, process_set) -> torch.Tensor:
    """Returns the output, None: a new one, once it holds the result."""
    number = set_number(process_set)
    full_name, unnamed = names.take("allreduce", name, number)
    try:
        output = like(tensor) if output is None else output
        run_allreduce(full_name, tensor, output, op, average, number, prescale_factor, postscale_factor)
    except HorovodInternalError:
        names.release(unnamed)
        raise
    except Exception as error:
        refuse(error, full_name, unnamed, number)
        raise
    if unnamed is not None:
        names.release(unnamed)
    return output


def allreduce_async(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
                    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts an allreduce into a new tensor; the input must not change until synchronize(handle), which returns the
    result. Not differentiable; otherwise as allreduce()."""
    return track(_allreduce(tensor, None, average, name, op, prescale_factor, postscale_factor, process_set))


def allreduce_async_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
                     op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> int:
    """Starts an allreduce in place; synchronize(handle) returns the tensor. Not differentiable."""
    return track(_allreduce(tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def allreduce_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
               op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """allreduce() in place: returns the tensor itself. Not differentiable."""
    return _allreduce_now(tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set)


class _Allreduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradients."""

    @staticmethod
    def forward(ctx, tensor, average, name, op, prescale_factor, postscale_factor, process_set):
        ctx.arguments = (average, None, op, prescale_factor, postscale_factor, process_set)
        return _allreduce_now(tensor, None, average, name, op, prescale_factor, postscale_factor, process_set)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        return (_allreduce_now(gradient, None, *ctx.arguments),) + (None,) * 6


def allreduce(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
              compression=Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduces a tensor element by element over all ranks and returns the result, a new tensor like the input.

    tensor:           any shape and any of the dtypes uint8 to int64, float16, bfloat16, float32, float64, float8_e4m3fn,
                      float8_e5m2, bool (sum and max of bool: or; min and product: and), complex64, complex128 (sum and average);
                      in any memory format; equal in shape and dtype on all ranks.
    op:               Average (default; integers truncate toward zero), Sum, Min, Max or Product. `average` is its old
                      name: True for Average, False for Sum.
    name:             what ranks agree by, of any length; without one, the n-th of this program's unnamed calls meets the others' n-th.
    compression:      how the tensor travels: Compression.none, .fp16 or .bf16.
    prescale_factor, postscale_factor: multiplied in before and after the reduction; equal on all ranks; not 0.
    process_set:      the ranks that take part; this rank must be one of them.

    Differentiable. May be called from any thread; ranks may submit in different orders.
    ValueError: the arguments of this call; nothing was submitted (and without a name it fails on the others, too).
    HorovodInternalError: the ranks disagree, a rank refused its call or was lost, or the deadline passed; the text says which rank. NotImplementedError: Adasum.
    """
    compressed, context = compression.compress(tensor)
    if isinstance(compressed, torch.Tensor) and compressed.requires_grad and torch.is_grad_enabled():
        reduced = _Allreduce.apply(compressed, average, name, op, prescale_factor, postscale_factor, process_set)
    else:
        reduced = _allreduce_now(compressed, None, average, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


# --- grouped allreduce -----------------------------------------------------------------------------------------------


def grouped(operation: str, function_name: str, prepare: Callable[[], Tuple[Tuple, Optional[List[torch.Tensor]]]], tensors, name,
            prescale_factor, postscale_factor, process_set) -> Pending:
    """`prepare()`: the arguments behind the tensors, and the outputs, None: the library's."""
    number = set_number(process_set)
    full_name, unnamed = names.take(operation, name, number)
    try:
        extra, outputs = prepare()
        work = submit_group(function(function_name), extra, full_name, tensors, outputs, number, prescale_factor,
                            postscale_factor)
    except BaseException as error:
        refuse(error, full_name, unnamed, number, len(tensors))
        raise
    return Pending(work, outputs, None, tensors, unnamed)


def as_group(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """A list of our own, since the library reads its members after the call. ValueError: empty."""
    tensors = list(tensors)
    if not tensors:
        raise InvalidArgumentError("a group needs at least one tensor", "INVALID_ARGUMENT")
    return tensors


def _grouped_allreduce(tensors, outputs, average, name, op, prescale_factor, postscale_factor, process_set) -> Pending:

    def prepare():
        return reduction(op, average, *tensors), list(map(like, tensors)) if outputs is None else outputs

    return grouped("grouped_allreduce", "coordd_grouped_allreduce_async", prepare, tensors, name, prescale_factor,
                   postscale_factor, process_set)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: Optional[bool] = None, name: Optional[str] = None,
                            op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """Starts a grouped allreduce into new tensors; one handle, whose result is their list. Not differentiable."""
    tensors = as_group(tensors)
    return track(_grouped_allreduce(tensors, None, average, name, op, prescale_factor,
                                     postscale_factor, process_set))


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: Optional[bool] = None, name: Optional[str] = None,
                             op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    """Starts a grouped allreduce in place; one handle, whose result is the list of tensors. Not differentiable."""
    tensors = as_group(tensors)
    return track(_grouped_allreduce(tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: Optional[bool] = None, name: Optional[str] = None,
                       op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """grouped_allreduce() in place: returns the list of tensors. Not differentiable."""
    tensors = as_group(tensors)
    return finish(_grouped_allreduce(tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set))


class _GroupedAllreduce(torch.autograd.Function):

    @staticmethod
    def forward(ctx, arguments, *tensors):
        average, _, op, prescale_factor, postscale_factor, process_set = arguments
        ctx.arguments = (average, None, op, prescale_factor, postscale_factor, process_set)
        return tuple(finish(_grouped_allreduce(list(tensors), None, *arguments)))

    @staticmethod
    def backward(ctx, *gradients):
        dense = [gradient.contiguous() for gradient in gradients]
        reduced = finish(_grouped_allreduce(dense, None, *ctx.arguments))
        return (None, *reduced)


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: Optional[bool] = None, name: Optional[str] = None,
                      compression=Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """allreduce() of several tensors as one operation: planned together, in one generation, or not at all; one bad tensor
    on one rank fails all of them on all ranks. Returns new tensors in the same order. Differentiable."""
    compressed, contexts = zip(*[compression.compress(tensor) for tensor in as_group(tensors)])
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    if needs_grad(*compressed):
        reduced = _GroupedAllreduce.apply(arguments, *compressed)
    else:
        reduced = finish(_grouped_allreduce(compressed, None, *arguments))
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts)]


# --- reducescatter ---------------------------------------------------------------------------------------------------


def _slice_like(tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """Memory for this rank's part of the first dimension; lower ranks have the extra row. ValueError: no dimension."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
        raise InvalidArgumentError("reducescatter: expected a tensor of at least one dimension", "INVALID_ARGUMENT")
    ranks, own = process_set.size() or 1, process_set.rank() or 0  # it is registered
    rows = tensor.shape[0] // ranks + (1 if own < tensor.shape[0] % ranks else 0)
    return tensor.new_empty((rows, *tensor.shape[1:]), requires_grad=False)


def _reducescatter(tensor, output, name, op, process_set, prescale_factor, postscale_factor) -> Pending:
    """`output` None: a new one."""
    number = set_number(process_set)
    worker()
    full_name, unnamed = names.take("reducescatter", name, number)
    try:
        output = _slice_like(tensor, process_set) if output is None else output
        work = submit(function("coordd_reducescatter_async"), reduction(op, None, tensor), full_name, tensor, output, number,
                      prescale_factor, postscale_factor, size_bytes(output))
    except BaseException as error:
        refuse(error, full_name, unnamed, number)
        raise
    return Pending(work, output, None, tensor, unnamed)


def reducescatter_async(tensor: torch.Tensor, name: Optional[str] = None, op: int = Average,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> int:
    """Starts a reducescatter; synchronize(handle) returns this rank's part. Not differentiable."""
    return track(_reducescatter(tensor, None, name, op, process_set, prescale_factor,
                                 postscale_factor))


def _scattered_gradient(gradient: torch.Tensor, op, process_set, prescale_factor, postscale_factor) -> torch.Tensor:
    """What has to be gathered for the gradient: each input went into the result with this factor."""
    factor = prescale_factor * postscale_factor * (process_set.size() if op == Sum else 1)
    return (gradient * factor if factor != 1 else gradient).contiguous()


class _Reducescatter(torch.autograd.Function):
    """The gradient is gathered from all ranks; as Horovod does, scaled so that it belongs to the sum of all ranks' losses
    for Sum, and to their mean for Average."""

    @staticmethod
    def forward(ctx, tensor, name, op, process_set, prescale_factor, postscale_factor):
        ctx.arguments = (op, process_set, prescale_factor, postscale_factor)
        return finish(_reducescatter(tensor, None, name, op, process_set, prescale_factor, postscale_factor))

    @staticmethod
    def backward(ctx, gradient):
        from coordd.torch._exchanges import allgather
        gathered = allgather(_scattered_gradient(gradient, *ctx.arguments), process_set=ctx.arguments[1])
        return (gathered,) + (None,) * 5


def reducescatter(tensor: torch.Tensor, name: Optional[str] = None, compression=Compression.none, op: int = Average,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """Reduces a tensor over all ranks and returns this rank's part of the first dimension, which is split evenly; lower
    ranks get the extra row. The tensor has at least one dimension; otherwise as allreduce(). Differentiable."""
    compressed, context = compression.compress(tensor)
    arguments = (name, op, process_set, prescale_factor, postscale_factor)
    if needs_grad(compressed):
        part = _Reducescatter.apply(compressed, *arguments)
    else:
        part = finish(_reducescatter(compressed, None, *arguments))
    return compression.decompress(part, context)


def reduce_scatter_tensor_async(output: torch.Tensor, tensor: torch.Tensor, op: int = Sum, name: Optional[str] = None,
                                process_set: ProcessSet = global_process_set) -> int:
    """Starts a reduce_scatter_tensor(); synchronize(handle) returns the output."""
    return track(_reduce_scatter_tensor(output, tensor, op, name, process_set))


def reduce_scatter_tensor(output: torch.Tensor, tensor: torch.Tensor, op: int = Sum, name: Optional[str] = None,
                          process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduces `tensor` over all ranks and writes this rank's n-th of it into `output`, which it returns: for sharded
    training, where the output is part of a flat buffer. No memory is allocated.

    tensor: contiguous; its number of elements is a multiple of the number of ranks; any shape (it is split as it lies in
            memory). output: contiguous, of the same dtype, with 1/size as many elements; must not overlap it.
    op:     Sum as in torch.distributed, Average, Min, Max or Product. Not differentiable. Errors as allreduce().
    """
    return finish(_reduce_scatter_tensor(output, tensor, op, name, process_set))


def _reduce_scatter_tensor(output, tensor, op, name, process_set) -> Pending:
    set_number(process_set)
    worker()
    checked("reducescatter", name, process_set, _check_scattered, output, tensor, process_set.size())
    pending = _reducescatter(tensor.view(-1), output, name, op, process_set, 1.0, 1.0)
    return pending._replace(kept=(tensor, output))


def _check_scattered(output: torch.Tensor, tensor: torch.Tensor, ranks: int) -> None:
    if tensor.numel() % ranks != 0:
        raise InvalidArgumentError(f"reduce_scatter_tensor: the tensor has {tensor.numel()} elements, expected a multiple "
                                   f"of {ranks} ranks", "INVALID_ARGUMENT")
    require_same_bytes(output, tensor.numel() // ranks, tensor, "reduce_scatter_tensor")
    if not tensor.is_contiguous():
        raise InvalidArgumentError("reduce_scatter_tensor: the tensor is not contiguous", "INVALID_ARGUMENT")


# --- grouped reducescatter -------------------------------------------------------------------------------------------


def _grouped_reducescatter(tensors, name, op, process_set, prescale_factor, postscale_factor) -> Pending:
    set_number(process_set)
    worker()

    def prepare():
        return reduction(op, None, *tensors), [_slice_like(tensor, process_set) for tensor in tensors]

    return grouped("grouped_reducescatter", "coordd_grouped_reducescatter_async", prepare, tensors, name, prescale_factor,
                   postscale_factor, process_set)


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], name: Optional[str] = None, op: int = Average,
                                process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> int:
    """Starts a grouped reducescatter; one handle, whose result is the list of this rank's parts. Not differentiable."""
    return track(_grouped_reducescatter(as_group(tensors), name, op, process_set, prescale_factor, postscale_factor))


class _GroupedReducescatter(torch.autograd.Function):

    @staticmethod
    def forward(ctx, arguments, *tensors):
        _, *ctx.arguments = arguments
        return tuple(finish(_grouped_reducescatter(list(tensors), *arguments)))

    @staticmethod
    def backward(ctx, *gradients):
        from coordd.torch._exchanges import grouped_allgather
        scattered = [_scattered_gradient(gradient, *ctx.arguments) for gradient in gradients]
        return (None, *grouped_allgather(scattered, process_set=ctx.arguments[1]))


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: Optional[str] = None, compression=Compression.none,
                          op: int = Average, process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[torch.Tensor]:
    """reducescatter() of several tensors as one operation: planned together, in one generation, or not at all.
    Differentiable."""
    compressed, contexts = zip(*[compression.compress(tensor) for tensor in as_group(tensors)])
    arguments = (name, op, process_set, prescale_factor, postscale_factor)
    if needs_grad(*compressed):
        parts = _GroupedReducescatter.apply(arguments, *compressed)
    else:
        parts = finish(_grouped_reducescatter(compressed, *arguments))
    return [compression.decompress(part, context) for part, context in zip(parts, contexts)]


# torch 2 wants to be told that indices which came from valid tensors need no check.
KNOWN_TO_BE_VALID: Dict[str, Any] = {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}

# --- sparse tensors --------------------------------------------------------------------------------------------------


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: int,
                           process_set: ProcessSet = global_process_set):
    """Starts the sum or average of sparse COO tensors of equal shape, with different numbers of entries. Returns a
    callable handle: handle() or synchronize(handle) gives a sparse tensor of that shape, not coalesced: an index that
    several ranks have appears several times, and the values add up. `op`: Average or Sum. ValueError: another operator, or
    a dense tensor."""
    from coordd.torch._exchanges import allgather_async
    if not tensor.is_sparse:
        raise InvalidArgumentError("sparse_allreduce_async: the tensor is dense, use allreduce_async", "INVALID_ARGUMENT")
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"sparse_allreduce_async: op is {op!r}, expected Average or Sum", "INVALID_ARGUMENT")
    tensor = tensor.detach()
    ranks = process_set.size()
    indices = allgather_async(tensor._indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values().contiguous(), f"{name}.values", process_set)

    def handle() -> torch.Tensor:
        gathered_values = synchronize(values)
        gathered_indices = synchronize(indices)
        if op == Average:
            gathered_values = gathered_values / ranks
        return torch.sparse_coo_tensor(gathered_indices.t(), gathered_values, tensor.shape, **KNOWN_TO_BE_VALID)

    return handle
