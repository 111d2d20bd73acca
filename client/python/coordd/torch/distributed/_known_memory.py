"""What has NCCL know memory of torch's: pools of memory of NCCL's, tried before they are needed."""

from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.distributed as dist

from coordd.torch.distributed import _group
from coordd.torch.distributed._agreement import agree
from coordd.torch.distributed._memory_pools import tells_nothing

_not_compiled: Any = getattr(torch, "_disable_dynamo", lambda call: call)  # torch's own: not in each version


def new_pool(group: Any) -> Any:
    return torch.cuda.MemPool(group.mem_allocator)


def let_go(group: Any, pool: Any) -> None:
    """With a group that has ended went what was registered."""
    if group in _group.alive():
        group.deregister_mem_pool(pool)


def try_memory(what: str, group: Any, device: torch.device, refusal: Optional[Exception] = None, *numbers: int) -> List[List[int]]:
    """Collective: whether all ranks have memory of NCCL's, and can register it. `refusal`: why this rank does not; it is then an
    error of all, before anything is done. `numbers`, of each rank."""
    if refusal is None and not hasattr(getattr(torch.cuda, "MemPool", None), "snapshot"):
        refusal = tells_nothing(what)
    told = agree(what, group, refusal, *numbers)
    pool = None
    try:
        pool = new_pool(group)
        with torch.cuda.use_mem_pool(pool, device):
            torch.empty(1, device=device)
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        refusal = ValueError(f"{what}: rank {group._rank_} gets no memory of NCCL's, and its log says why (no NCCL, or one before 2.19): "
                             "expected it on all ranks")
        refusal.__cause__ = error
    agree(what, group, refusal)
    group._register_pool(what, pool, alike=True)
    group.deregister_mem_pool(pool)
    return told


def backend_of(group: Any = None) -> Any:
    """coordd's backend for GPUs of a group of torch's; None: of the default group. Not a collective. It has what torch's own NCCL backend
    has for memory that NCCL knows: `mem_allocator`, register_mem_pool() and deregister_mem_pool().

        backend = coordd.torch.distributed.backend_of()
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.empty(1 << 26, device="cuda")   # before it is registered: later ones are not
        backend.register_mem_pool(pool)                    # all ranks
        ... dist.all_reduce(tensor) ...
        backend.deregister_mem_pool(pool)                  # before the memory is freed

    ValueError: there is no default group, or coordd is not the group's backend for GPUs."""
    of = dist.group.WORLD if group is None else group
    if of is None:
        raise ValueError("backend_of: found no default group, expected init_process_group(\"coordd\") before")
    if isinstance(of, _group.Group):
        return of
    try:
        half = of._get_backend(torch.device("cuda"))
    except (AttributeError, RuntimeError):  # it is no group, or has none for GPUs
        half = None
    if not isinstance(half, _group.Group):
        found = f"{type(of).__name__} without one" if half is None else half.name()
        raise ValueError(f"backend_of: expected a group whose backend for GPUs is coordd, found {found}")
    return half


def own_half(what: str, process_group: Any, device: torch.device) -> Any:
    """coordd's of a group of torch's. ValueError, on this rank alone: it is another backend's, so there is nobody to tell."""
    group = process_group if isinstance(process_group, _group.Group) else process_group._get_backend(device)
    if not isinstance(group, _group.Group):
        raise ValueError(f"{what}: expected a model over coordd, found one over {process_group.name()}")
    return group


def refusal_of(check: Callable[[], None]) -> Optional[Exception]:
    """What it raises."""
    try:
        check()
    except (ValueError, TypeError, NotImplementedError) as error:
        return error
    return None


class BeforeForward:
    """Is called before the forward passes of a model until remove(). A copy of the model, or what is pickled of it, has in its place a
    function that changes nothing and that is Python's own, so that nothing of coordd is needed to load it."""

    def __init__(self, model: Any, call: Callable[[Any], None], prepend: bool = False) -> None:
        self._call = call
        self._handle = model.register_forward_pre_hook(self, prepend=prepend)

    @_not_compiled  # which would compile what the call does once
    def __call__(self, model: Any, _inputs: Any) -> None:
        self._call(model)

    def __reduce__(self) -> Tuple[Any, ...]:
        return getattr, ({}, "get")  # of the model: not there, so the inputs

    def remove(self) -> None:
        self._handle.remove()

    @staticmethod
    def is_on(model: Any) -> bool:
        return any(isinstance(one, BeforeForward) for one in model._forward_pre_hooks.values())
