"""All-gathers of torch's fully_shard (FSDP2) into memory that NCCL is told of.

torch takes a buffer from its allocator for each, and gives it back once the parameters have been copied out. Which memory that is
depends on when other streams are through, so it may be registered on one rank and not on another, of which NCCL has no result. Here
a few buffers, made once and registered by all ranks, are taken in turns: one is free when torch has let go of what it holds, which is
a matter of the order of calls alone, and so equal on all ranks. torch lets go of a buffer behind the copy, in the order of the stream
on which the next one is taken."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

from coordd.torch.distributed import _fsdp_buffers
from coordd.torch.distributed._fsdp_buffers import Buffer, Kind, OfCoordd, Registered


class _Gathers(OfCoordd, AllGather):
    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        taken = self._all._take(math.prod(int(one) for one in size) * dtype.itemsize, self._owner)
        return torch.empty(*size, dtype=dtype, device=device) if taken is None else taken.view(dtype).view(*size)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False) -> Any:
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class RegisteredAllGathers(Registered):
    kind = Kind("register_all_gathers", "all-gathers", "_all_gather_comm", "_all_gather_process_group", "DefaultAllGather",
                ["_all_gather_result"])
    make = _Gathers

    def is_known(self, comm_ctx: Any) -> bool:
        return hasattr(comm_ctx, "all_gather_state")

    def is_free(self, buffer: Buffer) -> bool:
        """Its owner, a FSDPParamGroup, holds it until it is copied out, and may leave that to the next one."""
        owner = buffer.owner
        if owner is None:
            return True
        deferred = owner.comm_ctx.all_gather_state
        held = (owner._all_gather_result, None if deferred is None else deferred.all_gather_result)
        return all(one is None or one.all_gather_output.data_ptr() != buffer.memory.data_ptr() for one in held)


def register(model: Any, buffers: Any) -> RegisteredAllGathers:
    return _fsdp_buffers.register(RegisteredAllGathers.kind, RegisteredAllGathers, model, buffers, 2, _device_type_of)


def _device_type_of(param_group: Any) -> str:
    return param_group.device.type
