"""coordd for PyTorch, with the names of horovod.torch:

    import coordd.torch as hvd

    hvd.init()
    mean = hvd.allreduce(tensor, name="loss")

Operations are documented in coordd.torch.mpi_ops and at each function: help(hvd.allreduce).
"""

import torch

from coordd._interrupted import finish_interrupted
from coordd.torch.compression import Compression
from coordd.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from coordd.torch.mpi_ops import *  # noqa: F401,F403
from coordd.torch.mpi_ops import __all__ as _operations
from coordd.torch.optimizer import DistributedOptimizer
from coordd.torch.sync_batch_norm import SyncBatchNorm
from coordd.torch import _dynamo, elastic
from coordd.torch._submit import mapped_zeros

if torch.distributed.is_available():
    from coordd.torch import ddp_hook

_dynamo.leave_out("coordd")

__all__ = ["Compression", "DistributedOptimizer", "SyncBatchNorm", "allgather_object", "broadcast_object",
           "broadcast_optimizer_state", "broadcast_parameters", "elastic", "finish_interrupted", "mapped_zeros", *_operations]
