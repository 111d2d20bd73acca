"""What has NCCL know memory of torch's: pools of memory of NCCL's, tried before they are needed."""

from typing import Any

import torch

from coordd.torch.distributed import _group


def new_pool(group: Any) -> Any:
    return torch.cuda.MemPool(group.mem_allocator)


def let_go(group: Any, pool: Any) -> None:
    """With a group that has ended went what was registered."""
    if group in _group.alive():
        group.deregister_mem_pool(pool)


def try_memory(what: str, group: Any, device: torch.device) -> None:
    """Collective: whether all ranks have memory of NCCL's, and can register it."""
    if not hasattr(getattr(torch.cuda, "MemPool", None), "snapshot"):
        raise NotImplementedError(f"{what}: torch {torch.__version__} does not tell what a pool has, expected 2.6 or later")
    pool, error = new_pool(group), None
    try:
        with torch.cuda.use_mem_pool(pool, device):
            torch.empty(1, device=device)
    except RuntimeError as refusal:  # torch.OutOfMemoryError is one
        error = refusal
    failed = [rank for rank, one in enumerate(group._everyones([0 if error is None else 1])) if int(one)]
    if failed:
        raise ValueError(f"{what}: rank {failed[0]} gets no memory of NCCL's, and its log says why (no NCCL, or one before 2.19): "
                         "expected it on all ranks") from error
    group._register_pool(what, pool, alike=True)
    group.deregister_mem_pool(pool)


def own_half(what: str, process_group: Any, device: torch.device) -> Any:
    """coordd's of a group of torch's."""
    group = process_group if isinstance(process_group, _group.Group) else process_group._get_backend(device)
    if not isinstance(group, _group.Group):
        raise ValueError(f"{what}: expected a model over coordd, found one over {process_group.name()}")
    return group
