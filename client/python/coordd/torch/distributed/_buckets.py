"""Buckets of torch's DistributedDataParallel in memory that NCCL is told of.

torch allocates buckets in the model's constructor, and again before the second forward pass (with static_graph the third), in the
order in which gradients were ready. Those stay, and only those are registered: a hook before the forward pass has them made in a pool
of their own, right before DistributedDataParallel would, on the thread whose allocations come from the pool."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from coordd.torch.distributed._agreement import require_in_use
from coordd.torch.distributed._known_memory import BeforeForward, let_go, new_pool, own_half, refusal_of, try_memory

_WHAT = "register_buckets"


class RegisteredBuckets:
    """Of register_buckets(), which says what it is. Also a context: its end is deregister()."""

    def __init__(self, model: DistributedDataParallel, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self._pool: Any = new_pool(group)
        self.registered = False
        self._hook = BeforeForward(model, self._before_forward)

    def _before_forward(self, model: Any) -> None:
        if model._join_config.enable:
            raise ValueError(f"{_WHAT}: the ranks of DistributedDataParallel.join() have no part in memory that all have "
                             "registered, expected no join() (torch leaves it on behind its end; `with model.join(enable=False)` "
                             "turns it off)")
        if self.registered or not torch.is_grad_enabled():
            return
        require_in_use(_WHAT, self._group)
        with torch.cuda.use_mem_pool(self._pool, self._device):
            if not model.reducer._rebuild_buckets():
                return
        model._has_rebuilt_buckets = True
        try:
            self._group._register_pool(_WHAT, self._pool, alike=True)
        except Exception:
            self._hook.remove()
            raise
        self.registered = True  # and the hook stays, for join()

    def deregister(self) -> None:
        """Before the model goes, between the same steps on all ranks; does nothing the second time, nor, but to let go of the
        memory, where the group has ended (recover(), destroy_process_group()): with it went what was registered."""
        self._hook.remove()
        if self.registered:
            let_go(self._group, self._pool)
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

    Everything that can be in the way is tried at once, with two MiB, and what is in the way of one rank is an error on all, which names
    it: ValueError: the model is not on GPUs, or is registered already; torch makes its buckets once only (find_unused_parameters without
    static_graph), or has made them anew. NotImplementedError, DistBackendError: coordd's sentence, where a rank cannot register
    (COORDD_GPU_REGISTER=0, NCCL before 2.19), torch before 2.6.

    On this rank alone: ValueError: it is no DistributedDataParallel, or one over another backend, so there is no group in which others
    could be told; or its group has ended. They wait for this rank, and then have a DistBackendError that names it ("rank 1 of the group
    has not come to it"), as where a rank leaves the call out. Their group goes on, and the next call that all make is in step.

    Later: ValueError on all ranks, where their buckets differ, and nothing is registered; join() is refused as long as they are
    registered. torch.OutOfMemoryError, on this rank alone."""
    if not isinstance(model, DistributedDataParallel) or not hasattr(model, "reducer"):
        raise ValueError(f"{_WHAT}: expected a DistributedDataParallel, found {type(model).__name__}")
    group = own_half(_WHAT, model.process_group, model.device)
    try_memory(_WHAT, group, model.device, refusal_of(lambda: _check(model)))
    return RegisteredBuckets(model, group, model.device)


def _check(model: DistributedDataParallel) -> None:
    if model.device_type != "cuda":
        raise ValueError(f"{_WHAT}: expected a model on GPUs, found one on {model.device_type}")
    if model.find_unused_parameters and not model.static_graph:
        raise ValueError(f"{_WHAT}: torch makes the buckets anew, where this registers them, unless it looks for unused "
                         "parameters: expected find_unused_parameters=False, or static_graph=True")
    if BeforeForward.is_on(model):
        raise ValueError(f"{_WHAT}: this model's buckets are registered already, or will be: expected deregister() before it is "
                         "called again")
    if model._has_rebuilt_buckets:
        raise ValueError(f"{_WHAT}: expected it before torch makes the buckets anew, in the second step")


def register_all_gathers(model: Any, buffers: int = 3) -> Any:
    """Collective, once a model on GPUs is sharded by torch's fully_shard (FSDP2):

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        gathers = coordd.torch.distributed.register_all_gathers(model)

    From the second forward pass on parameters are gathered into so many `buffers`, each as large as the largest gathered group of
    parameters, in memory of NCCL's (`mem_allocator`) that all ranks have registered: NCCL moves from and to it without a copy of its
    own. torch has two at work, and one more for each layer that set_modules_to_forward_prefetch() names; what finds none free
    takes torch's memory, on all ranks alike. deregister() ends that; after recover() the model is sharded anew.

    Errors as register_buckets(); ValueError also: it is sharded over several process groups, it has all-gathers of its own, or `buffers`
    is not 2 to 64 and equal on all ranks; TypeError: it is no whole number. On this rank alone also: ValueError: it is no model of
    fully_shard(). NotImplementedError: a torch without set_custom_all_gather, or that holds its buffers in another way than is known
    (2.15's is)."""
    _require_custom("register_all_gathers", "set_custom_all_gather")
    from coordd.torch.distributed import _all_gathers
    return _all_gathers.register(model, buffers)


def register_reduce_scatters(model: Any, buffers: int = 2) -> Any:
    """Collective, once a model on GPUs is sharded by torch's fully_shard (FSDP2); beside register_all_gathers(), before or behind that,
    or alone:

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        scatters = coordd.torch.distributed.register_reduce_scatters(model)

    From the forward pass behind the first reduced gradients on, gradients are reduced in so many `buffers`, each as large as the gradients
    of the largest group of parameters with their result, in memory of NCCL's (`mem_allocator`) that all ranks have registered: NCCL moves
    from and to it without a copy of its own. The result is copied to where torch has the gradients. torch has one buffer at work, or what
    set_reduce_scatter_max_input_buffers() says; what finds none free takes torch's memory, on all ranks alike. deregister() ends that;
    after recover() the model is sharded anew.

    Errors as register_all_gathers(), of the model's reduce-scatters and set_custom_reduce_scatter; `buffers` is 1 to 64."""
    _require_custom("register_reduce_scatters", "set_custom_reduce_scatter")
    from coordd.torch.distributed import _reduce_scatters
    return _reduce_scatters.register(model, buffers)


def _require_custom(what: str, method: str) -> None:
    try:
        from torch.distributed.fsdp import FSDPModule
        known = hasattr(FSDPModule, method)
    except ImportError:
        known = False
    if not known:
        raise NotImplementedError(f"{what}: torch {torch.__version__} has no {method}")
