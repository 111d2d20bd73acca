"""Buffers of coordd's that torch's fully_shard (FSDP2) communicates in, made once and registered by all ranks, and taken in turns."""

from typing import Any, Callable, List, Optional

import torch
from torch.distributed.fsdp import FSDPModule

from coordd.torch.distributed._agreement import require_one
from coordd.torch.distributed._known_memory import BeforeForward, let_go, new_pool, own_half, refusal_of, try_memory

BUFFERS_MAX = 64  # regions of a group


class Buffer:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.owner = memory, None  # type: torch.Tensor, Any


class Kind:
    """What is registered of a model. `comm`, `group`: names of attributes of torch's FSDPParamGroup; `own`: torch's class of the first."""

    def __init__(self, what: str, plural: str, comm: str, group: str, own: str, attributes: List[str]) -> None:
        self.what, self.plural, self.comm, self.group, self.own = what, plural, comm, group, own
        self.attributes = [comm, group, "comm_ctx", *attributes]

    def comm_of(self, owner: Any) -> Any:
        return getattr(owner, self.comm)

    def unknown(self) -> NotImplementedError:
        return NotImplementedError(f"{self.what}: torch {torch.__version__} holds its buffers in another way than is known")

    def check(self, owners: List[Any], buffers: Any, least: int, device_type: str) -> None:
        if isinstance(buffers, bool) or not isinstance(buffers, int):
            raise TypeError(f"{self.what}: buffers is {buffers!r}, expected a whole number, {least} to {BUFFERS_MAX}")
        if not least <= buffers <= BUFFERS_MAX:
            raise ValueError(f"{self.what}: buffers is {buffers}, expected {least} to {BUFFERS_MAX}")
        groups = {id(getattr(owner, self.group)) for owner in owners}
        if len(groups) > 1:
            raise ValueError(f"{self.what}: the model is sharded over {len(groups)} process groups, expected one")
        if device_type != "cuda":
            raise ValueError(f"{self.what}: expected a model on GPUs, found one on {owners[0].device.type}")
        for owner in owners:
            comm = self.comm_of(owner)
            if isinstance(comm, OfCoordd):
                raise ValueError(f"{self.what}: the model's {self.plural} are registered already, or will be: expected deregister() "
                                 "before it is called again")
            if type(comm).__name__ != self.own:
                raise ValueError(f"{self.what}: the model has {self.plural} of its own, {type(comm).__name__}")


class OfCoordd:
    """A communication of coordd's in torch's place, of one FSDPParamGroup."""

    def __init__(self, all_of_them: "Registered", owner: Any) -> None:
        self._all, self._owner = all_of_them, owner

    def is_of(self, all_of_them: "Registered") -> bool:
        return self._all is all_of_them


class Registered:
    """Of register_all_gathers() or register_reduce_scatters(), which say what it is. Also a context: its end is deregister()."""

    kind: Kind
    make: Any  # an OfCoordd

    def __init__(self, model: Any, param_groups: List[Any], group: Any, device: torch.device, buffers: int) -> None:
        self._group, self._device, self._count = group, device, buffers
        self._owners = param_groups
        self._largest = 0  # bytes that were asked for
        self._buffers: List[Buffer] = []
        self._pool: Any = None
        self._torchs = [self.kind.comm_of(owner) for owner in param_groups]
        for owner in param_groups:
            setattr(owner, self.kind.comm, self.make(self, owner))
        self._hook = BeforeForward(model, self._before_forward, prepend=True)

    @property
    def registered(self) -> bool:
        return self._pool is not None

    def _before_forward(self, _model: Any) -> None:
        if self._largest == 0:  # the first step tells
            return
        self._hook.remove()
        try:
            self._register()
        except Exception:
            self._restore()
            raise

    def _register(self) -> None:
        if not all(self.is_known(owner.comm_ctx) for owner in self._owners):  # which torch makes in the first step
            raise self.kind.unknown()
        pool = new_pool(self._group)
        with torch.cuda.use_mem_pool(pool, self._device):
            buffers = [Buffer(torch.empty(self._largest, dtype=torch.uint8, device=self._device)) for _ in range(self._count)]
        self._group._register_pool(self.kind.what, pool, alike=True)
        self._pool, self._buffers = pool, buffers

    def is_known(self, comm_ctx: Any) -> bool:
        raise NotImplementedError

    def is_free(self, buffer: Buffer) -> bool:
        """Equal on all ranks: a matter of the order of calls alone."""
        raise NotImplementedError

    def _restore(self) -> None:
        """What was torch's, where nobody has set others meanwhile."""
        for owner, one in zip(self._owners, self._torchs):
            comm = self.kind.comm_of(owner)
            if isinstance(comm, OfCoordd) and comm.is_of(self):
                setattr(owner, self.kind.comm, one)

    def _take(self, size_bytes: int, owner: Any) -> Optional[torch.Tensor]:
        self._largest = max(self._largest, size_bytes)
        for buffer in self._buffers:
            if size_bytes <= buffer.memory.numel() and self.is_free(buffer):
                buffer.owner = owner
                return buffer.memory[:size_bytes]
        return None

    def deregister(self) -> None:
        """Between the same steps on all ranks; does nothing the second time, nor, but to let go of the memory, where the group has
        ended (recover(), destroy_process_group()). The model goes on with communications and memory of torch's."""
        self._hook.remove()
        self._restore()
        self._buffers = []
        pool, self._pool = self._pool, None
        if pool is not None:
            let_go(self._group, pool)

    def __enter__(self) -> "Registered":
        return self

    def __exit__(self, *_error: Any) -> None:
        self.deregister()


def register(kind: Kind, made: Any, model: Any, buffers: Any, least: int, device_type_of: Callable[[Any], str]) -> Any:
    if not isinstance(model, FSDPModule):
        raise ValueError(f"{kind.what}: expected a model of fully_shard(), found {type(model).__name__}")
    modules: Any = model
    states = [module._get_fsdp_state() for module in modules.modules() if isinstance(module, FSDPModule)]
    if not all(hasattr(state, "_fsdp_param_groups") for state in states):
        raise kind.unknown()
    param_groups = [one for state in states for one in state._fsdp_param_groups]
    if not param_groups:
        raise ValueError(f"{kind.what}: expected a model with parameters that are sharded")
    if not all(hasattr(owner, name) for owner in param_groups for name in kind.attributes):
        raise kind.unknown()
    first = param_groups[0]
    group = own_half(kind.what, getattr(first, kind.group), first.device)
    refusal = refusal_of(lambda: kind.check(param_groups, buffers, least, device_type_of(first)))
    told = try_memory(kind.what, group, first.device, refusal, 0 if refusal is not None else buffers)
    require_one(kind.what, "buffers", [one for one, in told])
    return made(model, param_groups, group, first.device, buffers)
