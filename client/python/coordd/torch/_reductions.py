"""allreduce and grouped allreduce, in all their forms. See coordd.torch.mpi_ops."""

from typing import Callable, List, Optional, Sequence, Tuple

import torch

from coordd import _library
from coordd.exceptions import HorovodInternalError, InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._handles import Pending, finish, names, track
from coordd.torch._refused import refuse
from coordd.torch._submit import reduction, run_allreduce, set_number, submit, submit_group
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
