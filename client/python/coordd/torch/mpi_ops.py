"""Every operation of coordd.torch, under the name of the module where Horovod has them; MPI is not involved.

Forms. ``allreduce`` returns a new tensor and is differentiable; ``allreduce_`` works in place; ``..._async`` and
``..._async_`` return a handle for poll() and synchronize(); ``grouped_...`` takes a list of tensors as one operation.

Tensors are dense, in host memory or on a GPU. Memory formats do not matter, and may differ between ranks: what is not
contiguous (channels_last, transposed, a part of another tensor, conjugated or negated when it is read) travels as a copy, and is
written back where the operation is in place, which an expanded tensor cannot be (ValueError). They belong to the library from the
call until the operation is complete: do not change an input, nor read or write a buffer that is worked on in place, before.

Threads. Every function may be called from every thread. Ranks agree by name, so they may submit in different orders;
unnamed operations are named by the order of their submission (coordd.torch._handles).
"""

from coordd._basics import (Adasum, Average, Max, Min, Product, Sum, ccl_built, check_extension, cross_rank, cross_size, cuda_built,
                            ddl_built, gloo_built, gloo_enabled, init, is_homogeneous, is_initialized, local_rank,
                            local_size, mpi_built, mpi_enabled, mpi_threads_supported, nccl_built, rank, rocm_built,
                            shutdown, size, start_timeline, stop_timeline)
from coordd.exceptions import HorovodInternalError
from coordd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from coordd.torch._exchanges import (allgather, allgather_async, allgather_into_tensor, allgather_into_tensor_async,
                                     alltoall, alltoall_async, barrier, broadcast, broadcast_, broadcast_async,
                                     broadcast_async_, grouped_allgather, grouped_allgather_async, join)
from coordd.torch._gpu_memory import mem_allocator, mem_pool, register_memory, unregister_memory
from coordd.torch._graphs import check_graphs, prepare_graphs
from coordd.torch._handles import poll, synchronize
from coordd.torch._reductions import (allreduce, allreduce_, allreduce_async, allreduce_async_, grouped_allreduce,
                                      grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_)
from coordd.torch._reducescatters import (grouped_reducescatter, grouped_reducescatter_async, reduce_scatter_tensor,
                                          reduce_scatter_tensor_async, reducescatter, reducescatter_async)
from coordd.torch._rooted import gather, gather_async, irecv, isend, recv, reduce, reduce_async, send
from coordd.torch._sparse import sparse_allreduce_async
from coordd.torch.compression import Compression

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "ccl_built", "check_extension", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank", "local_size",
    "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size",
    "start_timeline", "stop_timeline", "HorovodInternalError", "ProcessSet", "add_process_set", "global_process_set",
    "remove_process_set", "Compression", "allgather", "allgather_async", "allgather_into_tensor",
    "allgather_into_tensor_async", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "grouped_allgather", "grouped_allgather_async", "join", "poll", "synchronize", "allreduce",
    "allreduce_", "allreduce_async", "allreduce_async_", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "reduce_scatter_tensor", "reduce_scatter_tensor_async",
    "reducescatter", "reducescatter_async", "sparse_allreduce_async", "grouped_reducescatter",
    "grouped_reducescatter_async", "prepare_graphs", "check_graphs", "mem_allocator", "mem_pool", "register_memory",
    "unregister_memory", "gather",
    "gather_async", "irecv", "isend", "recv", "reduce", "reduce_async", "send"]
