"""Reduce-scatters of torch's fully_shard (FSDP2) in memory that NCCL is told of.

torch copies gradients into a buffer, reduces it, and holds it until that is through: such buffers are coordd's, taken in turns, as in
_all_gathers.py. The result is the gradients, which stay as long as the program wants, so NCCL is given a part of the buffer for it, which
is copied to where torch wants it: one of as many parts as there are ranks."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from coordd.torch.distributed import _fsdp_buffers
from coordd.torch.distributed._fsdp_buffers import Buffer, Kind, OfCoordd, Registered

_ALIGNMENT = 256  # bytes, of what a buffer has behind the input


class _Scatters(OfCoordd, ReduceScatter):
    """torch asks for the input, then for the output."""

    _input: Any = None  # the elements of that for which the output has not been asked for yet
    _result: Any = None  # where NCCL leaves it; None: where torch wants it

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        count = math.prod(int(one) for one in size)
        group_size = getattr(self._owner, self._all.kind.group).size()
        if self._input == count * group_size:
            self._input = None
            return torch.empty(*size, dtype=dtype, device=device)
        self._input, self._result = count, None
        behind = -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        taken = self._all._take(behind + count // group_size * dtype.itemsize, self._owner)
        if taken is None:
            return torch.empty(*size, dtype=dtype, device=device)
        self._result = taken[behind:].view(dtype)
        return taken[:count * dtype.itemsize].view(dtype).view(*size)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        result = self._result
        if result is None:
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        # The copy is behind it on torch's stream, which nothing reads before.
        dist.reduce_scatter_tensor(result, input_tensor, op=op, group=group)
        output_tensor.copy_(result)
        return None


class RegisteredReduceScatters(Registered):
    kind = Kind("register_reduce_scatters", "reduce-scatters", "_reduce_scatter_comm", "_reduce_scatter_process_group",
                "DefaultReduceScatter", [])
    make = _Scatters

    def is_known(self, comm_ctx: Any) -> bool:
        return hasattr(comm_ctx, "reduce_scatter_states") or hasattr(comm_ctx, "reduce_scatter_state")

    def is_free(self, buffer: Buffer) -> bool:
        """Its owner, a FSDPParamGroup, shares with all others what torch holds until the stream has waited for the reduction."""
        owner = buffer.owner
        if owner is None:
            return True
        held = getattr(owner.comm_ctx, "reduce_scatter_states", None)
        if held is None:  # torch before it had several
            held = [owner.comm_ctx.reduce_scatter_state]
        return all(one is None or one.reduce_scatter_input.data_ptr() != buffer.memory.data_ptr() for one in held)


def register(model: Any, buffers: Any) -> RegisteredReduceScatters:
    return _fsdp_buffers.register(RegisteredReduceScatters.kind, RegisteredReduceScatters, model, buffers, 1, _device_type_of)


def _device_type_of(param_group: Any) -> str:
    return param_group.device.type
