"""coordd for Keras 3 on TensorFlow, JAX and torch, and for Keras 2 (tf_keras, with TF_USE_LEGACY_KERAS=1), with the names of
horovod.keras:

    import coordd.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), ...)
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])
"""

from coordd._basics import (Adasum, Average, Max, Min, Product, Sum, ccl_built, check_extension, cross_rank,
                            cross_size, cuda_built, ddl_built, gloo_built, gloo_enabled, init, is_homogeneous,
                            is_initialized, local_rank, local_size, mpi_built, mpi_enabled, mpi_threads_supported,
                            nccl_built, rank, rocm_built, shutdown, size, start_timeline, stop_timeline)
from coordd.exceptions import HorovodInternalError
from coordd.keras import callbacks, elastic
from coordd.keras._reduce import Compression
from coordd.keras.functions import (allgather, allgather_object, allreduce, broadcast, broadcast_global_variables, broadcast_object,
                                    broadcast_variables, load_model, reducescatter)
from coordd.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from coordd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "ccl_built", "check_extension", "cross_rank",
           "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "init", "is_homogeneous",
           "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported",
           "nccl_built", "rank", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
           "HorovodInternalError", "callbacks", "elastic", "Compression", "allgather", "allgather_object", "allreduce",
           "broadcast", "broadcast_global_variables", "broadcast_object", "broadcast_variables", "load_model",
           "reducescatter", "DistributedOptimizer", "PartialDistributedOptimizer", "ProcessSet", "add_process_set",
           "global_process_set", "remove_process_set"]
