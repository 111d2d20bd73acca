"""coordd under torch's own DistributedDataParallel: its buckets are averaged by coordd.

    model = DistributedDataParallel(model)
    coordd.torch.ddp_hook.register(model)

The process group that DistributedDataParallel asks for may be Gloo's: it is used to compare and to broadcast parameters at
the start, and not for gradients. The ranks of both are the same processes; their numbers may differ.
"""

from typing import Optional

import torch
import torch.distributed as dist

from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch import mpi_ops
from coordd.torch._completions import Completions
from coordd.torch._futures import Promise
from coordd.torch._graphs import is_captured
from coordd.torch._usage import owner_numbers
from coordd.torch.compression import Compression

__all__ = ["HookState", "allreduce_hook", "register"]


class HookState:
    """What a hook needs to know. `name` sets several models of one program apart, and is equal on all ranks."""

    def __init__(self, name: str = "ddp", process_set: ProcessSet = global_process_set, compression=Compression.none):
        self.name = name
        self.process_set = process_set
        self.compression = compression


_DEFAULT = HookState()


_completions = Completions("coordd-ddp")


def allreduce_hook(state: Optional[HookState], bucket: dist.GradBucket  # type: ignore[name-defined]
                   ) -> torch.futures.Future[torch.Tensor]:
    """A communication hook for register_comm_hook: averages a bucket over the ranks, in place. `state`: a HookState, or
    None for the defaults. A failure surfaces in the backward pass."""
    state = state or _DEFAULT
    buffer = bucket.buffer()
    submitted, context = state.compression.compress(buffer)
    handle = mpi_ops.allreduce_async_(submitted, name=f"{state.name}.bucket.{bucket.index()}", op=mpi_ops.Average,
                                      process_set=state.process_set)
    devices = [buffer.device] if buffer.is_cuda else None
    promise = Promise(devices)

    def finish() -> torch.Tensor:
        mpi_ops.synchronize(handle)
        if submitted is not buffer:
            buffer.copy_(state.compression.decompress(submitted, context))
        return buffer

    if is_captured(buffer):  # a thread of ours, on a stream of its own, has no part in the capture
        promise.set_result(finish())
        return promise.future
    _completions.add(buffer.device, finish, promise)
    return promise.future


def register(model: torch.nn.parallel.DistributedDataParallel, name: str = "ddp",
             process_set: ProcessSet = global_process_set, compression=Compression.none) -> None:
    """Has coordd average the gradients of `model`. coordd.torch.init() comes before. Arguments as those of HookState; a name
    that another model has already gets a number behind it, so that both can be under way."""
    number = owner_numbers.take([f"hook.{name}"], process_set)
    model.register_comm_hook(HookState(f"{name}{number}" if number else name, process_set, compression), allreduce_hook)
