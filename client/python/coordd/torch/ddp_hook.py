"""coordd under torch's own DistributedDataParallel: its buckets are averaged by coordd.

    model = DistributedDataParallel(model)
    coordd.torch.ddp_hook.register(model)

The process group that DistributedDataParallel asks for may be Gloo's: it is used to compare and to broadcast parameters at
the start, and not for gradients. The ranks of both are the same processes; their numbers may differ.
"""

import contextlib
import queue
import threading
from typing import Dict, Optional

import torch
import torch.distributed as dist

from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch import mpi_ops
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


class _Completions:
    """One thread that waits for submitted buckets, in their order, and completes their futures: the backward pass goes on
    meanwhile, and DistributedDataParallel waits for the futures at its end."""

    def __init__(self):
        self._lock = threading.Lock()
        self._queue = None
        self._streams: Dict[torch.device, torch.cuda.Stream] = {}  # used by the thread alone

    def add(self, handle: int, device: torch.device, finish, promise: Promise) -> None:
        with self._lock:
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._queue,), name="coordd-ddp", daemon=True).start()
        self._queue.put((handle, device, finish, promise))

    def _on_stream(self, device: torch.device):
        """On a GPU a stream of this thread's own waits for the result, and the future carries that on to whoever waits for
        it: no thread waits for the device."""
        if device.type != "cuda":
            return contextlib.nullcontext()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return torch.cuda.stream(self._streams[device])

    def _run(self, pending) -> None:
        while True:
            handle, device, finish, promise = pending.get()
            try:
                with self._on_stream(device):
                    mpi_ops.synchronize(handle)
                    promise.set_result(finish())
            except Exception as failure:  # handed to whoever waits for the future
                promise.set_exception(failure)
            del handle, finish, promise


_completions = _Completions()


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
        if submitted is not buffer:
            buffer.copy_(state.compression.decompress(submitted, context))
        return buffer

    if is_captured(buffer):  # a thread of ours, on a stream of its own, has no part in the capture
        mpi_ops.synchronize(handle)
        promise.set_result(finish())
        return promise.future
    _completions.add(handle, buffer.device, finish, promise)
    return promise.future


def register(model: torch.nn.parallel.DistributedDataParallel, name: str = "ddp",
             process_set: ProcessSet = global_process_set, compression=Compression.none) -> None:
    """Has coordd average the gradients of `model`. coordd.torch.init() comes before. Arguments as those of HookState; a name
    that another model has already gets a number behind it, so that both can be under way."""
    number = owner_numbers.take([f"hook.{name}"], process_set)
    model.register_comm_hook(HookState(f"{name}{number}" if number else name, process_set, compression), allreduce_hook)
