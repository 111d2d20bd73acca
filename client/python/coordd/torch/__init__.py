"""coordd for PyTorch, with the names of horovod.torch:

    import coordd.torch as hvd

    hvd.init()
    mean = hvd.allreduce(tensor, name="loss")

Operations are documented in coordd.torch.mpi_ops and at each function: help(hvd.allreduce).
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, List

import torch

from coordd.torch import _dynamo

if TYPE_CHECKING:
    from coordd._interrupted import finish_interrupted
    from coordd.torch import ddp_hook, elastic
    from coordd.torch._submit import mapped_zeros
    from coordd.torch.compression import Compression
    from coordd.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
    from coordd.torch.mpi_ops import *  # noqa: F401,F403
    from coordd.torch.optimizer import DistributedOptimizer
    from coordd.torch.sync_batch_norm import SyncBatchNorm

_dynamo.leave_out("coordd")

_MODULES = {  # of names that mpi_ops has not
    "Compression": "coordd.torch.compression", "DistributedOptimizer": "coordd.torch.optimizer",
    "SyncBatchNorm": "coordd.torch.sync_batch_norm", "allgather_object": "coordd.torch.functions",
    "broadcast_object": "coordd.torch.functions", "broadcast_optimizer_state": "coordd.torch.functions",
    "broadcast_parameters": "coordd.torch.functions", "finish_interrupted": "coordd._interrupted",
    "mapped_zeros": "coordd.torch._submit"}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: each process of torch.distributed imports this package on the way to its backend,
    which needs none of them."""
    if name == "ddp_hook" and not torch.distributed.is_available():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: torch {torch.__version__} was built without torch.distributed")
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    operations = importlib.import_module("coordd.torch.mpi_ops")
    if name == "__all__":
        value: Any = [*_MODULES, "elastic", *operations.__all__]
    elif name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    elif name in operations.__all__:
        value = getattr(operations, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__getattr__("__all__")})
