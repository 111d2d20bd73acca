"""coordd for TensorFlow 2.13 and later, with the names of horovod.tensorflow:

    import coordd.tensorflow as hvd

    hvd.init()
    mean = hvd.allreduce(tensor, name="loss")

Operations are documented in coordd.tensorflow.mpi_ops and at each function: help(hvd.allreduce).
"""

from coordd._basics import (Adasum, Average, Max, Min, Product, Sum, ccl_built, check_extension, cross_rank, cross_size, cuda_built,
                            ddl_built, gloo_built, gloo_enabled, init, is_homogeneous, is_initialized, local_rank, local_size,
                            mpi_built, mpi_enabled, mpi_threads_supported, nccl_built, rank, rocm_built, shutdown, size,
                            start_timeline, stop_timeline)
from coordd.exceptions import HorovodInternalError
from coordd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from coordd.tensorflow import elastic
from coordd.tensorflow.compression import Compression
from coordd.tensorflow.functions import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables
from coordd.tensorflow.mpi_ops import *  # noqa: F401,F403
from coordd.tensorflow.mpi_ops import __all__ as _operations
from coordd.tensorflow.optimizer import DistributedOptimizer, broadcast_global_variables
from coordd.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "ccl_built", "check_extension", "cross_rank", "cross_size",
           "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank",
           "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown",
           "size", "start_timeline", "stop_timeline", "HorovodInternalError", "ProcessSet", "add_process_set",
           "global_process_set", "remove_process_set", "Compression", "allgather_object", "broadcast_object",
           "broadcast_object_fn", "broadcast_variables", "elastic", "DistributedOptimizer", "broadcast_global_variables",
           "DistributedGradientTape", "PartialDistributedGradientTape", *_operations]


def __getattr__(name: str):
    if name == "SyncBatchNormalization":  # the only part that needs Keras
        from coordd.tensorflow.sync_batch_norm import SyncBatchNormalization
        return SyncBatchNormalization
    hint = "; import coordd.keras as hvd for Keras's fit()" if name in ("callbacks", "load_model") else ""
    raise AttributeError(f"module 'coordd.tensorflow' has no attribute {name!r}{hint}")
