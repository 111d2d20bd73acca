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
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._layout import address
from coordd.torch._submit import set_number, size_bytes


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
    ranks, is what the switch of NVLink reduces in place. Errors as mem_allocator(); RuntimeError: torch's, where it has no GPU."""
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
    register (COORDD_GPU_REGISTER=0, no NCCL, one before 2.19), or the memory overlaps with what is registered.
    """
    memory = _memory("register_memory", tensor)
    _call("coordd_register_device", c_int32(set_number(process_set)), c_int32(tensor.device.index), memory,
          c_int64(size_bytes(tensor)), c_double(timeout))


def unregister_memory(tensor: torch.Tensor, process_set: ProcessSet = global_process_set, timeout: float = 0.0) -> None:
    """Before the tensor's memory is freed or used for anything else; no collective that is pending uses it. Of this rank alone.
    ValueError: it is not registered in the set."""
    memory = _memory("unregister_memory", tensor)
    _call("coordd_unregister_device", c_int32(set_number(process_set)), memory, c_double(timeout))


def _memory(function_name: str, tensor: torch.Tensor) -> c_void_p:
    place = address(tensor)
    if not tensor.is_cuda or place is None:
        raise ValueError(f"{function_name}: expected a contiguous tensor on a GPU, found one on {tensor.device}, contiguous: "
                         f"{tensor.is_contiguous()}")
    return c_void_p(place)


def _call(function_name: str, *arguments) -> None:
    status = _library.library().function(function_name)(_basics.worker().pointer, *arguments)
    if status != 0:
        raise _native.call_error(status, None)
