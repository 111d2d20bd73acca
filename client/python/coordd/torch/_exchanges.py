"""allgather, broadcast, alltoall, barrier and join, in all their forms. See coordd.torch.mpi_ops."""

import ctypes
from ctypes import byref, c_int32, c_int64, c_size_t, c_void_p
from typing import List, Optional, Sequence, Tuple, Union

import torch

from coordd import _native
from coordd._basics import Average, place, worker
from coordd._native import Work
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._graphs import is_captured
from coordd.torch._handles import Pending, finish, names, track
from coordd.torch._reductions import allreduce, as_group, function, grouped, grouped_allreduce, like, needs_grad
from coordd.torch._refused import checked, refuse
from coordd.torch._submit import kind_of, owned_tensor, require_same_bytes, set_number, size_bytes, submit


def submit_pending(operation, function_name, extra, name, tensor, output, process_set, finish_with=None,
                   prescale_factor=1.0, postscale_factor=1.0) -> Pending:
    """Names and submits one tensor; `finish_with(work)` makes the result, otherwise it is the output."""
    number = set_number(process_set)
    full_name, unnamed = names.take(operation, name, number)
    try:
        work = submit(function(function_name), extra, full_name, tensor, output, number, prescale_factor,
                      postscale_factor, 0 if output is None else size_bytes(output))
    except BaseException as error:
        refuse(error, full_name, unnamed, number)
        raise
    return Pending(work, output, finish_with, tensor, unnamed)


# --- allgather -------------------------------------------------------------------------------------------------------


def _gathered_like(tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """Memory for the rows of all ranks, which have as many each: in a graph the library allocates nothing."""
    if tensor.dim() == 0:
        raise InvalidArgumentError("allgather: expected a tensor of at least one dimension", "INVALID_ARGUMENT")
    return tensor.new_empty((tensor.shape[0] * (process_set.size() or 1), *tensor.shape[1:]), requires_grad=False)


def _allgather(tensor, name, process_set) -> Pending:
    if is_captured(tensor):
        return submit_pending("allgather", "coordd_allgather_async", (), name, tensor,
                              checked("allgather", name, process_set, _gathered_like, tensor, process_set), process_set)
    kind = checked("allgather", name, process_set, kind_of, tensor)
    return submit_pending("allgather", "coordd_allgather_async", (), name, tensor, None, process_set,
                           lambda work: owned_tensor(work, 0, kind))


def allgather_async(tensor: torch.Tensor, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts an allgather; synchronize(handle) returns the result. Not differentiable."""
    return track(_allgather(tensor, name, process_set))


def _first_row(rows: int, process_set: ProcessSet, gathered: torch.Tensor) -> int:
    """Where this rank's rows start, from what all ranks have said about theirs."""
    return int(gathered[:process_set.rank()].sum()) if rows else 0


class _Allgather(torch.autograd.Function):
    """The gradient of a rank's rows is the mean, over the ranks, of the gradients of where they went."""

    @staticmethod
    def forward(ctx, tensor, name, process_set):
        ctx.rows, ctx.process_set = tensor.shape[0] if tensor.dim() else 0, process_set
        return finish(_allgather(tensor, name, process_set))

    @staticmethod
    def backward(ctx, gradient):
        reduced = allreduce(gradient.contiguous(), op=Average, process_set=ctx.process_set)
        rows = allgather(torch.tensor([ctx.rows]), process_set=ctx.process_set)
        return reduced.narrow(0, _first_row(ctx.rows, ctx.process_set, rows), ctx.rows), None, None


def allgather(tensor: torch.Tensor, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Concatenates all ranks' tensors along the first dimension, in rank order.

    The first dimension may differ between ranks and may be 0; the other dimensions and the dtype are equal. A tensor of
    dimension 0 is refused. The result lies in memory of the library, without a copy. Differentiable. Names, process sets,
    dtypes and errors as allreduce().
    """
    if needs_grad(tensor):
        return _Allgather.apply(tensor, name, process_set)
    return finish(_allgather(tensor, name, process_set))


def _grouped_allgather(tensors, name, process_set) -> Pending:
    kinds: List = []

    def prepare():
        if is_captured(tensors[0]):
            return (), [_gathered_like(tensor, process_set) for tensor in tensors]
        kinds.extend(map(kind_of, tensors))
        return (), None

    pending = grouped("grouped_allgather", "coordd_grouped_allgather_async", prepare, tensors, name, 1.0, 1.0, process_set)
    return pending if pending.result is not None else pending._replace(
        finish=lambda work: [owned_tensor(work, index, kind) for index, kind in enumerate(kinds)])


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """Starts a grouped allgather; one handle, whose result is a list of tensors. Not differentiable."""
    return track(_grouped_allgather(as_group(tensors), name, process_set))


class _GroupedAllgather(torch.autograd.Function):

    @staticmethod
    def forward(ctx, name, process_set, *tensors):
        pending = _grouped_allgather(list(tensors), name, process_set)
        ctx.rows, ctx.process_set = [tensor.shape[0] for tensor in tensors], process_set
        return tuple(finish(pending))

    @staticmethod
    def backward(ctx, *gradients):
        reduced = grouped_allreduce([gradient.contiguous() for gradient in gradients], op=Average,
                                    process_set=ctx.process_set)
        rows = allgather(torch.tensor([ctx.rows]), process_set=ctx.process_set)
        own = [tensor.narrow(0, _first_row(count, ctx.process_set, rows[:, index]), count)
               for index, (tensor, count) in enumerate(zip(reduced, ctx.rows))]
        return (None, None, *own)


def grouped_allgather(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """allgather() of several tensors as one operation: planned together, in one generation, or not at all.
    Differentiable."""
    tensors = as_group(tensors)
    if needs_grad(*tensors):
        return list(_GroupedAllgather.apply(name, process_set, *tensors))
    return finish(_grouped_allgather(tensors, name, process_set))


def _check_gathered(output: torch.Tensor, tensor: torch.Tensor, ranks: int) -> None:
    require_same_bytes(output, tensor.numel() * ranks, tensor, "allgather_into_tensor")
    if not tensor.is_contiguous():
        raise InvalidArgumentError("allgather_into_tensor: the tensor is not contiguous", "INVALID_ARGUMENT")


def _allgather_into_tensor(output, tensor, name, process_set) -> Pending:
    set_number(process_set)
    worker()
    checked("allgather", name, process_set, _check_gathered, output, tensor, process_set.size())
    pending = submit_pending("allgather", "coordd_allgather_async", (), name, tensor.view(-1), output, process_set)
    return pending._replace(kept=(tensor, output))


def allgather_into_tensor_async(output: torch.Tensor, tensor: torch.Tensor, name: Optional[str] = None,
                                process_set: ProcessSet = global_process_set) -> int:
    """Starts an allgather_into_tensor(); synchronize(handle) returns the output."""
    return track(_allgather_into_tensor(output, tensor, name, process_set))


def allgather_into_tensor(output: torch.Tensor, tensor: torch.Tensor, name: Optional[str] = None,
                          process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Writes all ranks' tensors, one after the other in rank order, into `output`, which it returns: for sharded training,
    where the tensor is a rank's shard and the output a flat buffer. No memory is allocated.

    tensor: contiguous, any shape, with as many elements on every rank. output: contiguous, of the same dtype, with size
    times as many elements. Not differentiable. Errors as allgather().
    """
    return finish(_allgather_into_tensor(output, tensor, name, process_set))


# --- broadcast -------------------------------------------------------------------------------------------------------


def _broadcast(tensor, output, root_rank, name, process_set) -> Pending:
    """`output` None: a new one."""
    if output is None:
        output = checked("broadcast", name, process_set, like, tensor)
    return submit_pending("broadcast", "coordd_broadcast_async", (c_int32(root_rank),), name, tensor, output,
                           process_set)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts a broadcast into a new tensor; synchronize(handle) returns it. Not differentiable."""
    return track(_broadcast(tensor, None, root_rank, name, process_set))


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """Starts a broadcast in place; synchronize(handle) returns the tensor. Not differentiable."""
    return track(_broadcast(tensor, tensor, root_rank, name, process_set))


def broadcast_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """broadcast() in place: returns the tensor itself. Not differentiable."""
    return finish(_broadcast(tensor, tensor, root_rank, name, process_set))


class _Broadcast(torch.autograd.Function):
    """The root's gradient is the mean of all ranks' gradients; the others' is zero."""

    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return finish(_broadcast(tensor, None, root_rank, name, process_set))

    @staticmethod
    def backward(ctx, gradient):
        reduced = allreduce(gradient.contiguous(), op=Average, process_set=ctx.process_set)
        if place().rank != ctx.root_rank:
            reduced.zero_()
        return reduced, None, None, None


def broadcast(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns a new tensor with the root's values, shaped as the tensor, which is equal in shape and dtype on all ranks.

    root_rank: a rank in the job, also inside a process set, of which it must be a member. Differentiable. Names, dtypes
    and errors as allreduce().
    """
    if needs_grad(tensor):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return finish(_broadcast(tensor, None, root_rank, name, process_set))


# --- alltoall --------------------------------------------------------------------------------------------------------

Splits = Union[torch.Tensor, Sequence[int]]


def _alltoall(tensor, splits: Optional[Splits], name, process_set) -> Pending:
    """Its result is (tensor, received splits), with and without splits."""
    kind = checked("alltoall", name, process_set, kind_of, tensor)
    extra: Tuple = (c_void_p(), c_size_t(0))
    if splits is not None:
        counts = checked("alltoall", name, process_set, _counts, splits)
        extra = (byref((c_int64 * len(counts))(*counts)), c_size_t(len(counts)))
    return submit_pending("alltoall", "coordd_alltoall_async", extra, name, tensor, None, process_set,
                          lambda work: (owned_tensor(work, 0, kind), _received_splits(work)))


def _counts(splits: Splits) -> List[int]:
    """ValueError: not a list of whole numbers."""
    if isinstance(splits, torch.Tensor):
        if splits.is_floating_point() or splits.dim() != 1:
            raise InvalidArgumentError(f"alltoall: splits have dtype {splits.dtype} and {splits.dim()} dimensions, "
                                       "expected one dimension of integers", "INVALID_ARGUMENT")
        return splits.tolist()
    return [int(split) for split in splits]


def _received_splits(work: Work) -> torch.Tensor:
    return torch.tensor(work.result().received_splits or [], dtype=torch.int32)


def alltoall_async(tensor: torch.Tensor, splits: Optional[Splits] = None, name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Starts an alltoall; synchronize(handle) returns (tensor, received splits), also without `splits`. Not
    differentiable."""
    return track(_alltoall(tensor, splits, name, process_set))


class _Alltoall(torch.autograd.Function):
    """The gradient goes back to where the rows came from."""

    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        ctx.process_set = process_set
        output, ctx.received_splits = finish(_alltoall(tensor, splits, name, process_set))
        ctx.mark_non_differentiable(ctx.received_splits)
        return output, ctx.received_splits

    @staticmethod
    def backward(ctx, gradient, *_):
        # With the splits also where there were none: ranks may have had different numbers of rows.
        returned, _ = finish(_alltoall(gradient.contiguous(), ctx.received_splits, None, ctx.process_set))
        return returned, None, None, None


def alltoall(tensor: torch.Tensor, splits: Optional[Splits] = None, name: Optional[str] = None,
             process_set: ProcessSet = global_process_set
             ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Sends rows of the first dimension to each rank and returns what the others have sent, in rank order.

    splits: how many rows go to each rank: a tensor or list of integers that add up to the number of rows; the result is
            then (tensor, received splits as int32). None: equal parts; the number of rows is a multiple of the number of
            ranks, and the result is the tensor alone.
    The dtype and the other dimensions are equal on all ranks. Differentiable. Names and errors as allreduce(); wrong splits
    are a ValueError.
    """
    if needs_grad(tensor):
        both = _Alltoall.apply(tensor, splits, name, process_set)
    else:
        both = finish(_alltoall(tensor, splits, name, process_set))
    return both[0] if splits is None else both


# --- without a tensor ------------------------------------------------------------------------------------------------


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once all ranks of the set have called it. Errors as allreduce()."""
    number = set_number(process_set)
    member = worker()
    full_name, unnamed = names.take("barrier", None, number)
    pointer = c_void_p()
    status = function("coordd_barrier_async")(member.pointer, ctypes.c_char_p(full_name.encode()),
                                               _native.call_options(number, 1.0, 1.0), byref(pointer))
    if status != 0:
        error = _native.call_error(status, full_name)
        refuse(error, full_name, unnamed, number)
        raise error
    finish(Pending(Work((pointer.value or 0,), full_name), None, None, None, unnamed))


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and returns when all ranks have said so: the last of them.

    Until then this rank takes part in what the others do: it contributes the operator's identity to reductions (zero to a
    sum; an average is still divided by the number of all ranks) and no rows to gathers. A broadcast from a rank that has
    joined is an error on all ranks. Unnamed operations start from the same names on all ranks afterwards.

    No process set can be added or removed meanwhile: HorovodInternalError, at once.

    device: ignored, there for Horovod's sake. It waits for as long as the others work, a week at most; COORDD_TIMEOUT does
    not end it. HorovodInternalError: as allreduce(), and when nothing comes from the others for coordd's --stall-abort.
    """
    del device
    member = worker()
    pointer = c_void_p()
    status = function("coordd_join_async")(member.pointer, None, byref(pointer))
    if status != 0:
        raise _native.call_error(status, "join")
    work = Work((pointer.value or 0,), "join")
    work.wait()
    names.reset()
    return c_int32.from_buffer_copy(work.result().buffer()).value
