"""All-gathers of torch's fully_shard (FSDP2) into memory that NCCL is told of.

torch takes a buffer from its allocator for each, and gives it back once the parameters have been copied out. Which memory that is
depends on when other streams are through, so it may be registered on one rank and not on another, of which NCCL has no result. Here
a few buffers, made once and registered by all ranks, are taken in turns: one is free when torch has let go of what it holds, which is
a matter of the order of calls alone, and so equal on all ranks. torch lets go of a buffer behind the copy, in the order of the stream
on which the next one is taken."""

import math
from typing import Any, List, Optional

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

from coordd.torch.distributed._agreement import require_one
from coordd.torch.distributed._known_memory import BeforeForward, let_go, new_pool, own_half, refusal_of, try_memory

_WHAT = "register_all_gathers"
_BUFFERS_MAX = 64  # regions of a group


class _Buffer:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.owner = memory, None  # type: torch.Tensor, Any

    def is_free(self) -> bool:
        """Its owner, a FSDPParamGroup, holds it until it is copied out, and may leave that to the next one."""
        owner = self.owner
        if owner is None:
            return True
        deferred = owner.comm_ctx.all_gather_state
        held = (owner._all_gather_result, None if deferred is None else deferred.all_gather_result)
        return all(one is None or one.all_gather_output.data_ptr() != self.memory.data_ptr() for one in held)


class _Gathers(AllGather):
    """Of one FSDPParamGroup."""

    def __init__(self, all_gathers: "RegisteredAllGathers", owner: Any) -> None:
        self._all, self._owner = all_gathers, owner

    def is_of(self, all_gathers: "RegisteredAllGathers") -> bool:
        return self._all is all_gathers

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        taken = self._all._take(math.prod(int(one) for one in size) * dtype.itemsize, self._owner)
        return torch.empty(*size, dtype=dtype, device=device) if taken is None else taken.view(dtype).view(*size)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False) -> Any:
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class RegisteredAllGathers:
    """Of register_all_gathers(), which says what it is. Also a context: its end is deregister()."""

    def __init__(self, model: Any, param_groups: List[Any], group: Any, device: torch.device, buffers: int) -> None:
        self._group, self._device, self._count = group, device, buffers
        self._owners = param_groups
        self._largest = 0  # bytes that were asked for
        self._buffers: List[_Buffer] = []
        self._pool: Any = None
        self._torchs = [owner._all_gather_comm for owner in param_groups]
        for owner in param_groups:
            owner._all_gather_comm = _Gathers(self, owner)
        self._hook = BeforeForward(model, self._before_forward, prepend=True)

    @property
    def registered(self) -> bool:
        return self._pool is not None

    def _before_forward(self, _model: Any) -> None:
        if self._largest == 0:  # the first forward pass tells
            return
        self._hook.remove()
        try:
            self._register()
        except Exception:
            self._restore()
            raise

    def _register(self) -> None:
        if not all(hasattr(owner.comm_ctx, "all_gather_state") for owner in self._owners):  # which torch makes in the first pass
            raise _unknown()
        pool = new_pool(self._group)
        with torch.cuda.use_mem_pool(pool, self._device):
            buffers = [_Buffer(torch.empty(self._largest, dtype=torch.uint8, device=self._device)) for _ in range(self._count)]
        self._group._register_pool(_WHAT, pool, alike=True)
        self._pool, self._buffers = pool, buffers

    def _restore(self) -> None:
        """torch's own all-gathers, where nobody has set others meanwhile."""
        for owner, one in zip(self._owners, self._torchs):
            if isinstance(owner._all_gather_comm, _Gathers) and owner._all_gather_comm.is_of(self):
                owner._all_gather_comm = one

    def _take(self, size_bytes: int, owner: Any) -> Optional[torch.Tensor]:
        self._largest = max(self._largest, size_bytes)
        for buffer in self._buffers:
            if size_bytes <= buffer.memory.numel() and buffer.is_free():
                buffer.owner = owner
                return buffer.memory[:size_bytes]
        return None

    def deregister(self) -> None:
        """Between the same steps on all ranks; does nothing the second time, nor, but to let go of the memory, where the group has
        ended (recover(), destroy_process_group()). The model goes on with all-gathers and memory of torch's."""
        self._hook.remove()
        self._restore()
        self._buffers = []
        pool, self._pool = self._pool, None
        if pool is not None:
            let_go(self._group, pool)

    def __enter__(self) -> "RegisteredAllGathers":
        return self

    def __exit__(self, *_error: Any) -> None:
        self.deregister()


def register(model: Any, buffers: Any) -> RegisteredAllGathers:
    if not isinstance(model, FSDPModule):
        raise ValueError(f"{_WHAT}: expected a model of fully_shard(), found {type(model).__name__}")
    modules: Any = model
    states = [module._get_fsdp_state() for module in modules.modules() if isinstance(module, FSDPModule)]
    if not all(hasattr(state, "_fsdp_param_groups") for state in states):
        raise _unknown()
    param_groups = [one for state in states for one in state._fsdp_param_groups]
    if not param_groups:
        raise ValueError(f"{_WHAT}: expected a model with parameters that are sharded")
    if not all(hasattr(owner, name) for owner in param_groups
               for name in ("_all_gather_comm", "_all_gather_process_group", "_all_gather_result", "comm_ctx")):
        raise _unknown()
    group = own_half(_WHAT, param_groups[0]._all_gather_process_group, param_groups[0].device)
    refusal = refusal_of(lambda: _check(param_groups, buffers))
    told = try_memory(_WHAT, group, param_groups[0].device, refusal, 0 if refusal is not None else buffers)
    require_one(_WHAT, "buffers", [one for one, in told])
    return RegisteredAllGathers(model, param_groups, group, param_groups[0].device, buffers)


def _check(param_groups: List[Any], buffers: Any) -> None:
    if isinstance(buffers, bool) or not isinstance(buffers, int):
        raise TypeError(f"{_WHAT}: buffers is {buffers!r}, expected a whole number, 2 to {_BUFFERS_MAX}")
    if not 2 <= buffers <= _BUFFERS_MAX:
        raise ValueError(f"{_WHAT}: buffers is {buffers}, expected 2 to {_BUFFERS_MAX}")
    groups = {id(owner._all_gather_process_group) for owner in param_groups}
    if len(groups) > 1:
        raise ValueError(f"{_WHAT}: the model is sharded over {len(groups)} process groups, expected one")
    if _device_type_of(param_groups[0]) != "cuda":
        raise ValueError(f"{_WHAT}: expected a model on GPUs, found one on {param_groups[0].device.type}")
    for owner in param_groups:
        if isinstance(owner._all_gather_comm, _Gathers):
            raise ValueError(f"{_WHAT}: the model's all-gathers are registered already, or will be: expected deregister() before it is "
                             "called again")
        if type(owner._all_gather_comm).__name__ != "DefaultAllGather":
            raise ValueError(f"{_WHAT}: the model has all-gathers of its own, {type(owner._all_gather_comm).__name__}")


def _unknown() -> NotImplementedError:
    return NotImplementedError(f"{_WHAT}: torch {torch.__version__} holds its buffers in another way than is known")


def _device_type_of(param_group: Any) -> str:
    return param_group.device.type
