"""coordd for JAX on the host (CPU): collectives inside and outside of jax.jit, differentiable, on trees of arrays.

    import coordd.jax as hvd

    hvd.init()
    params = hvd.broadcast(params, root_rank=0)                    # any tree of arrays: all ranks start alike
    gradients = hvd.allreduce(gradients, name="gradients")        # any tree of arrays, in one call

Inside jax.jit and jax.grad give names: ranks agree by name, and a name that is counted is the same on all ranks only if they trace
alike; without jax.jit each step would have another one, and be compiled.

XLA chooses the order in which it executes the calls of a program, and one may wait for another: programs have their calls and their
results in the same order on all ranks. One call for a tree has none.

Each rank has one device. Arrays that lie on several, shard_map and pmap are refused (NotImplementedError).

What is compiled is for the ranks that there are: with others, allgather and reducescatter say that they have to be traced anew.
"""

from coordd._basics import (Average, Max, Min, Product, Sum, cross_rank, cross_size, init, is_initialized, local_rank, local_size,
                            rank, shutdown, size)
from coordd.exceptions import HorovodInternalError
from coordd.jax._calls import allgather, allreduce, alltoall, broadcast, grouped_allreduce, reducescatter
from coordd.jax._initialize import initialize
from coordd.jax.compression import Compression
from coordd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["Average", "Max", "Min", "Product", "Sum", "cross_rank", "cross_size", "init", "is_initialized", "local_rank",
           "local_size", "rank", "shutdown", "size", "HorovodInternalError", "allgather", "allreduce", "alltoall", "broadcast",
           "grouped_allreduce", "reducescatter", "initialize", "Compression", "ProcessSet", "add_process_set",
           "global_process_set", "remove_process_set"]
