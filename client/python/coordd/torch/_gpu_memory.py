"""GPU memory that is reduced again and again, such as flat buckets of gradients.

    pool = hvd.mem_pool()
    with torch.cuda.use_mem_pool(pool):                # NCCL's own memory, for NVLink's switch
        bucket = torch.empty(1 << 26, device="cuda")
    hvd.register_memory(bucket)                        # all ranks, outside of the steps
    ... hvd.allreduce_(bucket) ...
    hvd.unregister_memory(bucket)                      # before it is freed
"""

import functools
from ctypes import c_double, c_int32, c_int64, c_void_p

from typing import Any

import torch

from coordd import _basics, _library, _native
from coordd.exceptions import UnsupportedError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._arguments import memory_of, seconds_of, set_of
from coordd.torch._submit import size_bytes


@functools.lru_cache(maxsize=None)
def _allocator() -> Any:
    if not hasattr(torch.cuda, "MemPool"):
        raise NotImplementedError(f"mem_pool: torch {torch.__version__} has no torch.cuda.MemPool, expected torch 2.5 or later")
    library = _library.library()
    library.function("coordd_torch_alloc")  # an older library has none
    return torch.cuda.memory.CUDAPluggableAllocator(library.path, "coordd_torch_alloc", "coordd_torch_free")


def mem_allocator() -> Any:
    """What torch.cuda.MemPool takes: allocates by NCCL (ncclMemAlloc). Keep to pools: each allocation is at least 2 MiB and waits
    for the driver. NotImplementedError: torch before 2.5. Where NCCL has none torch raises OutOfMemoryError, and coordd's log says
    why (no NCCL, or one before 2.19)."""
    return _allocator().allocator()


def mem_pool() -> Any:
    """A new torch.cuda.MemPool of mem_allocator(), for `with torch.cuda.use_mem_pool(pool)`. Only such memory, registered by all
    ranks (register_memory), is what the switch of NVLink reduces in place. Errors as mem_allocator(); NotImplementedError also: torch
    finds no GPU."""
    if hasattr(torch.cuda, "MemPool") and not torch.cuda.is_available():
        raise UnsupportedError(f"mem_pool: torch {torch.__version__} finds no GPU, expected one on this rank, its driver, and a torch that was "
                               "built for it", "UNIMPLEMENTED")
    return torch.cuda.MemPool(mem_allocator())


def register_memory(tensor: torch.Tensor, process_set: ProcessSet = global_process_set, timeout: float = 0.0) -> None:
    """Lets NCCL move from and to the tensor's memory without a copy of its own, in collectives of the set; every rank of the set
    calls it, with a tensor of its own GPU that is contiguous. From then on all ranks give to a collective memory that they have
    registered, or none of them does, and no rank calls join(): NCCL has no defined result for anything else. Where reduced in
    place, registration helps with NVLink SHARP and not with rings.

    With COORDD_GPU_REGISTER=symmetric on all ranks a tensor that begins a segment of mem_pool() is a symmetric window of NCCL's, where
    all ranks' are as large; else one warning says whose is not.

    It ends with the generation: after HorovodInternalError, register again. timeout: seconds for the others to come; 0:
    COORDD_TIMEOUT. HorovodInternalError: a rank was lost or did not come, and which. NotImplementedError or ValueError: not all ranks can
    register (COORDD_GPU_REGISTER=0, no NCCL, one before 2.19), or the memory overlaps with what is registered. TypeError, ValueError, on
    this rank alone: a wrong argument.
    """
    what = "register_memory"
    place, seconds, number = memory_of(what, tensor), seconds_of(what, timeout), set_of(what, process_set)
    call(what, "coordd_register_device", c_int32(number), c_int32(tensor.device.index), c_void_p(place), c_int64(size_bytes(tensor)),
         c_double(seconds))


def unregister_memory(tensor: torch.Tensor, process_set: ProcessSet = global_process_set, timeout: float = 0.0) -> None:
    """Before the tensor's memory is freed or used for anything else; no collective that is pending uses it. Of this rank alone.
    ValueError: it is not registered in the set."""
    what = "unregister_memory"
    place, seconds, number = memory_of(what, tensor), seconds_of(what, timeout), set_of(what, process_set)
    call(what, "coordd_unregister_device", c_int32(number), c_void_p(place), c_double(seconds))


def call(what: str, function_name: str, *arguments) -> None:
    """The library's function, for one of this package that is called `what`."""
    status = _library.library().function(function_name)(_basics.worker().pointer, *arguments)
    if status != 0:
        error = _native.call_error(status, None)
        error.args = (f"{what}: {error}",)
        raise error
