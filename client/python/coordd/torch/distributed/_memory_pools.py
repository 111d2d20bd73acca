"""GPU memory that NCCL is told of, as torch's own NCCL backend offers it for a torch.cuda.MemPool."""

import os
from ctypes import c_double, c_int32, c_int64, c_void_p
from typing import Any, Dict, List, Tuple

import torch
from torch._C import _distributed_c10d as c10d

from coordd import _library, _native
from coordd.exceptions import CoorddError
from coordd.torch._gpu_memory import mem_allocator
from coordd.torch.distributed._calls import Calls
from coordd.torch.distributed._errors import as_backend_error

_SEGMENTS_MAX = 64  # that a process set has registered


class MemoryPools(Calls):
    """Mixin of a group."""

    @property
    def mem_allocator(self) -> Any:
        """For `torch.cuda.MemPool(backend.mem_allocator)`, as torch's own NCCL backend has it: memory of NCCL's."""
        return mem_allocator()

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Collective: NCCL may move from and to the segments that the pool has now, without a copy of its own, until
        deregister_mem_pool() or the end of the group. Each rank gives a pool of its own, with as many segments; then all ranks give
        to a collective tensors of their pools, or none does. What the pool gets later is not registered. The pool stays as long.

        With COORDD_GPU_REGISTER=symmetric on all ranks the segments of a pool of `mem_allocator` are symmetric windows of NCCL's,
        where the ranks' are of equal sizes; symm=True: they have to be.

        ValueError: the ranks' pools have different segments, or more than 64. DistBackendError: coordd's sentence, when a rank cannot register
        (COORDD_GPU_REGISTER=0, NCCL before 2.19)."""
        if symm and os.environ.get("COORDD_GPU_REGISTER") != "symmetric":
            raise ValueError("register_mem_pool(symm=True): there are symmetric windows with COORDD_GPU_REGISTER=symmetric on all "
                             "ranks, without it expected symm=False")
        self._register_pool("register_mem_pool", pool, alike=symm)

    def _register_pool(self, what: str, pool: Any, alike: bool) -> None:
        """alike: the ranks' segments have to be of equal sizes."""
        segments = _segments_of(pool)
        counts = [int(count) for count in self._everyones([len(segments)])]
        if len(set(counts)) > 1:
            raise ValueError(f"{what}: the pools of the ranks have {', '.join(map(str, counts))} segments, "
                             "expected one number on all ranks")
        if counts[0] > _SEGMENTS_MAX:
            raise ValueError(f"{what}: the pools have {counts[0]} segments, expected at most {_SEGMENTS_MAX}: larger ones (of "
                             "DistributedDataParallel: bucket_cap_mb)")
        if alike and segments:
            sizes = [one.tolist() for one in self._everyones([size for _, _, size in segments])]
            for rank, of_rank in enumerate(sizes):
                if of_rank != sizes[0]:
                    raise ValueError(f"{what}: rank {rank}'s pool has segments of {_text(of_rank)} bytes, rank 0's of "
                                     f"{_text(sizes[0])}, expected equal sizes on all ranks")
        _, registered = self._registered_pools().setdefault(pool.id, (pool, []))
        for device, address, size_bytes in segments:
            self._call_memory("coordd_register_device", c_int32(device), c_void_p(address), c_int64(size_bytes))
            registered.append(address)

    def deregister_mem_pool(self, pool: Any) -> None:
        """Before the pool's memory is freed, or is given to anything else. Of this rank alone, once no collective uses it."""
        _, registered = self._registered_pools().pop(pool.id, (None, None))
        if registered is None:
            raise ValueError("deregister_mem_pool: expected a pool that register_mem_pool() was given")
        self._finish_gpu()
        for address in registered:
            self._call_memory("coordd_unregister_device", c_void_p(address))

    def _registered_pools(self) -> Dict[Any, Tuple[Any, List[int]]]:
        """The pools, so that torch does not free their segments, and the addresses of these."""
        return self.__dict__.setdefault("_pools", {})

    def _everyones(self, numbers: List[int]) -> List[torch.Tensor]:
        own = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        everyone = [torch.empty_like(own) for _ in range(self._size_)]
        self.allgather([everyone], [own], c10d.AllgatherOptions()).wait()  # type: ignore[attr-defined]
        return everyone

    def _call_memory(self, function_name: str, *arguments: Any) -> None:
        channel = self._channel
        function = _library.library().function(function_name)
        status = function(channel.worker.pointer, c_int32(channel.set), *arguments, c_double(channel.timeout_s))
        if status != 0:
            error = _native.call_error(status, None)
            raise as_backend_error(error) if isinstance(error, CoorddError) else error


def _segments_of(pool: Any) -> List[Tuple[int, int, int]]:
    """Device, address and size, in the order of the addresses. torch 2.6 and later tell them."""
    return sorted((int(segment["device"]), int(segment["address"]), int(segment["total_size"])) for segment in pool.snapshot())


def _text(sizes: List[int]) -> str:
    return ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")
