"""coordd for PyTorch, with the names of horovod.torch:

    import coordd.torch as hvd

    hvd.init()
    mean = hvd.allreduce(tensor, name="loss")

Operations are documented in coordd.torch.mpi_ops and at each function: help(hvd.allreduce).
"""

from coordd.torch.compression import Compression
from coordd.torch.mpi_ops import *  # noqa: F401,F403
from coordd.torch.mpi_ops import __all__ as _operations

__all__ = ["Compression", *_operations]
