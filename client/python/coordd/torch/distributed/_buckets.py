"""Buckets of torch's DistributedDataParallel in memory that NCCL is told of.

torch allocates buckets in the model's constructor, and again before the second forward pass (with static_graph the third), in the
order in which gradients were ready. Those stay, and only those are registered: a hook before the forward pass has them made in a pool
of their own, right before DistributedDataParallel would, on the thread whose allocations come from the pool."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from coordd.torch.distributed import _group


class RegisteredBuckets:
    """Of register_buckets(), which says what it is. Also a context: its end is deregister()."""

    def __init__(self, model: DistributedDataParallel, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self._pool: Any = torch.cuda.MemPool(group.mem_allocator)
        self.registered = False
        self._hook = model.register_forward_pre_hook(self._before_forward)

    def _before_forward(self, model: Any, _inputs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if model._join_config.enable:
            raise ValueError("register_buckets: the ranks of DistributedDataParallel.join() have no part in memory that all have "
                             "registered, expected no join()")
        with torch.cuda.use_mem_pool(self._pool, self._device):
            if not model.reducer._rebuild_buckets():
                return
        model._has_rebuilt_buckets = True
        self._hook.remove()
        self._group._register_pool("register_buckets", self._pool, alike=True)
        self.registered = True

    def deregister(self) -> None:
        """Before the model goes, between the same steps on all ranks; does nothing the second time, nor, but to let go of the
        memory, where the group has ended (recover(), destroy_process_group()): with it went what was registered."""
        self._hook.remove()
        if self.registered and self._group in _group.alive():
            self._group.deregister_mem_pool(self._pool)
        self.registered, self._pool = False, None

    def __enter__(self) -> "RegisteredBuckets":
        return self

    def __exit__(self, *_error: Any) -> None:
        self.deregister()


def register_buckets(model: DistributedDataParallel) -> RegisteredBuckets:
    """Collective, once a model on GPUs is wrapped and before its second step:

        model = DistributedDataParallel(model, device_ids=[device])
        buckets = coordd.torch.distributed.register_buckets(model)

    Its buckets of gradients are then in memory of NCCL's (`mem_allocator`) that all ranks register (register_mem_pool) when torch has
    made them anew, before the second or third forward pass: NCCL moves from and to them without a copy of its own, NVLink's switch reduces
    them in place, and with COORDD_GPU_REGISTER=symmetric they are symmetric windows. deregister() ends that. After recover() the
    model is wrapped anew, and so are its buckets.

    Everything that can be in the way is tried at once, with two MiB, and is an error on all ranks: ValueError: it is no
    DistributedDataParallel of GPUs over coordd, or torch makes its buckets once only (find_unused_parameters without static_graph),
    or it has made them anew; or the ranks' buckets differ. NotImplementedError, DistBackendError: coordd's sentence, where a rank
    cannot register (COORDD_GPU_REGISTER=0, NCCL before 2.19), torch before 2.6. torch.OutOfMemoryError, on this rank alone."""
    device = _device_of(model)
    group = _group_of(model, device)
    if model.find_unused_parameters and not model.static_graph:
        raise ValueError("register_buckets: torch makes the buckets anew, where this registers them, unless it looks for unused "
                         "parameters: expected find_unused_parameters=False, or static_graph=True")
    if model._has_rebuilt_buckets:
        raise ValueError("register_buckets: expected it before torch makes the buckets anew, in the second step")
    if not hasattr(getattr(torch.cuda, "MemPool", None), "snapshot"):
        raise NotImplementedError(f"register_buckets: torch {torch.__version__} does not tell what a pool has, expected 2.6 or later")
    _try(group, device)
    return RegisteredBuckets(model, group, device)


def _try(group: Any, device: torch.device) -> None:
    pool, error = torch.cuda.MemPool(group.mem_allocator), None
    try:
        with torch.cuda.use_mem_pool(pool, device):
            torch.empty(1, device=device)
    except RuntimeError as refusal:  # torch.OutOfMemoryError is one
        error = refusal
    failed = [rank for rank, one in enumerate(group._everyones([0 if error is None else 1])) if int(one)]
    if failed:
        raise ValueError(f"register_buckets: rank {failed[0]} gets no memory of NCCL's, and its log says why (no NCCL, or one "
                         "before 2.19): expected it on all ranks") from error
    group._register_pool("register_buckets", pool, alike=True)
    group.deregister_mem_pool(pool)


def _device_of(model: Any) -> torch.device:
    if not isinstance(model, DistributedDataParallel) or not hasattr(model, "reducer"):
        raise ValueError(f"register_buckets: expected a DistributedDataParallel, found {type(model).__name__}")
    if model.device_type != "cuda":
        raise ValueError(f"register_buckets: expected a model on GPUs, found one on {model.device_type}")
    return model.device


def _group_of(model: Any, device: torch.device) -> Any:
    group = model.process_group
    if not isinstance(group, _group.Group):
        group = group._get_backend(device)
    if not isinstance(group, _group.Group):
        raise ValueError(f"register_buckets: expected a model over coordd, found one over {model.process_group.name()}")
    return group
