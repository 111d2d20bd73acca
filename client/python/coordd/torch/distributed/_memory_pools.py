"""GPU memory that NCCL is told of, as torch's own NCCL backend offers it for a torch.cuda.MemPool."""

import contextlib
import os
from ctypes import c_double, c_int32, c_int64, c_void_p
from typing import Any, Dict, List, Optional, Tuple

import torch

from coordd import _library, _native
from coordd.exceptions import CoorddError
from coordd.torch._gpu_memory import mem_allocator
from coordd.torch.distributed._agreement import agree, require_one
from coordd.torch.distributed._calls import Calls
from coordd.torch.distributed._errors import as_backend_error

_REGIONS_MAX = 64  # that a process set has registered; each group is one
_Segment = Tuple[int, int, int]  # device, address, size in bytes


class MemoryPools(Calls):
    """Mixin of a group."""

    @property
    def mem_allocator(self) -> Any:
        """For `torch.cuda.MemPool(backend.mem_allocator)`, as torch's own NCCL backend has it: memory of NCCL's."""
        return mem_allocator()

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Collective: NCCL may move from and to the segments that the pool has now, without a copy of its own, until
        deregister_mem_pool() or the end of the group: each is a region that the group has registered. Each rank gives a pool of its
        own, with as many segments; then all ranks give to a collective tensors of their pools, or none does. What the pool gets later
        is not registered. The pool stays as long.

        With COORDD_GPU_REGISTER=symmetric on all ranks the regions of a pool of `mem_allocator` become symmetric windows of NCCL's
        where all ranks' are of equal sizes. symm=True has all ranks require what they can know of that: the variable on every one, and
        equal sizes. It is no promise of a window: with NCCL before 2.27, memory of another allocator, or GPUs that do not reach each
        other's memory, NCCL has none, and the regions are registered as any other. Of an old NCCL and of such memory coordd's log
        has a warning then: "no symmetric windows", "becomes no symmetric window".

        What one rank refuses all raise, and nothing is registered. ValueError: the pool has no segments yet, the ranks' pools have
        different ones, the group would have more than 64 regions, what symm=True requires is not there, or the group has ended.
        TypeError: it is no pool. DistBackendError: coordd's sentence, when a rank cannot register (COORDD_GPU_REGISTER=0, NCCL before
        2.19), or has not come within three quarters of the group's timeout, and which; the group goes on, and the next call that all make is
        in step."""
        found, refusal = os.environ.get("COORDD_GPU_REGISTER"), None
        if symm and found != "symmetric":
            refusal = ValueError(f"register_mem_pool(symm=True): COORDD_GPU_REGISTER is {'not set' if found is None else repr(found)}, "
                                 "expected COORDD_GPU_REGISTER=symmetric in the environment of all ranks, or symm=False")
        self._register_pool("register_mem_pool", pool, bool(symm), refusal)

    def _register_pool(self, what: str, pool: Any, alike: bool, refusal: Optional[Exception] = None) -> None:
        """alike: the ranks' segments have to be of equal sizes."""
        segments: List[_Segment] = []
        try:
            segments = _segments_of(what, pool)
            refusal = refusal or self._refusal_of(what, segments)
        except (NotImplementedError, TypeError) as error:
            refusal = error
        told = agree(what, self, refusal, int(alike), *[size for _, _, size in segments])
        counts = [len(one) - 1 for one in told]
        if len(set(counts)) > 1:
            raise ValueError(f"{what}: the pools of the ranks have {', '.join(map(str, counts))} segments, "
                             "expected one number on all ranks")
        require_one(what, "symm", [one[0] for one in told])
        if alike:
            _require_equal(what, [one[1:] for one in told])
        done: List[_Segment] = []
        try:
            for segment in segments:
                device, address, size_bytes = segment
                self._call_memory("coordd_register_device", c_int32(device), c_void_p(address), c_int64(size_bytes))
                done.append(segment)
        except Exception as error:
            self._take_back(done)
            if len(segments) > 1:
                error.args = (f"{error} ({what}: segment {len(done) + 1} of {len(segments)}; none of them is registered)",)
            raise
        self._registered_pools().setdefault(pool.id, (pool, []))[1].extend(segments)

    def _refusal_of(self, what: str, segments: List[_Segment]) -> Optional[Exception]:
        if not segments:
            return ValueError(f"{what}: the pool has no segments, expected at least one: what is allocated from it later is not "
                              "registered, so allocate before (with torch.cuda.use_mem_pool(pool): ...)")
        there = [one for _, regions in self._registered_pools().values() for one in regions]
        if len(there) + len(segments) > _REGIONS_MAX:
            already = f", beside {len(there)} regions that the group has registered" if there else ""
            return ValueError(f"{what}: the pool has {len(segments)} segments{already}, expected at most {_REGIONS_MAX}: larger ones (of "
                              "DistributedDataParallel: bucket_cap_mb)")
        for device, address, size in segments:
            if any(device == other[0] and address < other[1] + other[2] and other[1] < address + size for other in there):
                return ValueError(f"{what}: the group has registered memory of this pool, expected deregister_mem_pool() before it is "
                                  "registered anew")
        return None

    def _take_back(self, segments: List[_Segment]) -> None:
        """Those of a call that has failed."""
        for _, address, _ in segments:
            with contextlib.suppress(Exception):  # with a generation they have ended
                self._call_memory("coordd_unregister_device", c_void_p(address))

    def deregister_mem_pool(self, pool: Any) -> None:
        """Before the pool's memory is freed, or is given to anything else. Of this rank alone, once no collective uses it. TypeError,
        ValueError: it is no pool, or none that is registered."""
        if not hasattr(pool, "id"):
            raise _no_pool("deregister_mem_pool", pool)
        _, registered = self._registered_pools().pop(pool.id, (None, None))
        if registered is None:
            raise ValueError("deregister_mem_pool: expected a pool that register_mem_pool() was given")
        self._finish_gpu()
        for _, address, _ in registered:
            self._call_memory("coordd_unregister_device", c_void_p(address))

    def _registered_pools(self) -> Dict[Any, Tuple[Any, List[_Segment]]]:
        """The pools, so that torch does not free their segments, and these, of which the group has registered each as a region."""
        return self.__dict__.setdefault("_pools", {})

    def _call_memory(self, function_name: str, *arguments: Any) -> None:
        channel = self._channel
        function = _library.library().function(function_name)
        status = function(channel.worker.pointer, c_int32(channel.set), *arguments, c_double(channel.timeout_s))
        if status != 0:
            error = _native.call_error(status, None)
            raise as_backend_error(error) if isinstance(error, CoorddError) else error


def _segments_of(what: str, pool: Any) -> List[_Segment]:
    """In the order of the addresses. torch 2.6 and later tell them."""
    if not hasattr(pool, "id"):
        raise _no_pool(what, pool)
    if not hasattr(pool, "snapshot"):
        raise tells_nothing(what)
    return sorted((int(segment["device"]), int(segment["address"]), int(segment["total_size"])) for segment in pool.snapshot())


def _require_equal(what: str, sizes: List[List[int]]) -> None:
    for rank, of_rank in enumerate(sizes):
        if of_rank != sizes[0]:
            raise ValueError(f"{what}: rank {rank}'s pool has segments of {_text(of_rank)} bytes, rank 0's of "
                             f"{_text(sizes[0])}, expected equal sizes on all ranks")


def _no_pool(what: str, found: Any) -> TypeError:
    return TypeError(f"{what}: expected a torch.cuda.MemPool, found {type(found).__name__}")


def tells_nothing(what: str) -> NotImplementedError:
    return NotImplementedError(f"{what}: torch {torch.__version__} does not tell what a pool has, expected 2.6 or later")


def _text(sizes: List[int]) -> str:
    return ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")
