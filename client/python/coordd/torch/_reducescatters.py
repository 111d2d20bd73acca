"""reducescatter and reduce_scatter_tensor, in all their forms. See coordd.torch.mpi_ops."""

from typing import List, Optional, Sequence

import torch

from coordd._basics import Average, Sum, worker
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._exchanges import allgather, grouped_allgather
from coordd.torch._handles import Pending, finish, names, track
from coordd.torch._reductions import as_group, function, grouped, needs_grad
from coordd.torch._refused import checked, refuse
from coordd.torch._submit import reduction, require_same_bytes, set_number, size_bytes, submit
from coordd.torch.compression import Compression


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
