"""coordd for PyTorch, with the names of horovod.torch:

    import coordd.torch as hvd

    hvd.init()
    mean = hvd.allreduce(tensor, name="loss")

Operations are documented in coordd.torch.mpi_ops and at each function: help(hvd.allreduce). On GPUs beside them:

    memory that NCCL knows  mem_pool(), register_memory(), unregister_memory(): help(hvd.register_memory)
    CUDA graphs             prepare_graphs(), check_graphs(): help(hvd.prepare_graphs)
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Dict, List

import torch

from coordd.torch import _dynamo

if TYPE_CHECKING:
    from coordd._interrupted import finish_interrupted
    from coordd.torch import ddp_hook, elastic
    from coordd.torch._submit import mapped_zeros
    from coordd.torch.compression import Compression
    from coordd.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
    from coordd.torch.mpi_ops import *  # noqa: F401,F403
    from coordd.torch.mpi_ops import __all__ as _operations
    from coordd.torch.optimizer import DistributedOptimizer
    from coordd.torch.sync_batch_norm import SyncBatchNorm

    __all__ = ["Compression", "DistributedOptimizer", "SyncBatchNorm", "allgather_object", "broadcast_object",
               "broadcast_optimizer_state", "broadcast_parameters", "elastic", "finish_interrupted", "mapped_zeros", *_operations]

_dynamo.leave_out("coordd")

_MODULES = {  # of names that mpi_ops has not
    "Compression": "coordd.torch.compression", "DistributedOptimizer": "coordd.torch.optimizer",
    "SyncBatchNorm": "coordd.torch.sync_batch_norm", "allgather_object": "coordd.torch.functions",
    "broadcast_object": "coordd.torch.functions", "broadcast_optimizer_state": "coordd.torch.functions",
    "broadcast_parameters": "coordd.torch.functions", "finish_interrupted": "coordd._interrupted",
    "mapped_zeros": "coordd.torch._submit"}


def __getattr__(name: str) -> Any:
    """The names are imported when the first of them is used, all at once, as torch.compile looks for them in the module itself: each
    process of torch.distributed imports this package on the way to its backend, which needs none of them."""
    if name == "ddp_hook" and not torch.distributed.is_available():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: torch {torch.__version__} was built without torch.distributed")
    if name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    if not name.startswith("_") or name == "__all__":
        names = _names()
        globals().update(names, __all__=list(names))
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def _names() -> Dict[str, Any]:
    operations = importlib.import_module("coordd.torch.mpi_ops")
    names = {name: getattr(importlib.import_module(module), name) for name, module in _MODULES.items()}
    names["elastic"] = importlib.import_module("coordd.torch.elastic")
    return {**names, **{name: getattr(operations, name) for name in operations.__all__}}


def __dir__() -> List[str]:
    return sorted({*globals(), *__getattr__("__all__")})
