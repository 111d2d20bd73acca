"""coordd as a backend of torch.distributed:

    import coordd.torch.distributed                      # not needed where torch is 2.14 or later and the package is installed
    torch.distributed.init_process_group("coordd")       # or "cpu:coordd,cuda:nccl"

Everything that torch.distributed offers for host memory, so DistributedDataParallel, FSDP, DTensor and what is built on them; and for
memory of GPUs, over NCCL, all but sparse tensors and receives from any source. Under coordrun its coordd is used; under torchrun, or
any other launcher, rank 0 starts one. Errors are torch's DistBackendError with coordd's sentence, which names rank, host and cause.

init_method="coordd://" has coordd keep what torch's stores keep, for groups of any backend; Store is what it gives.

recover() goes on without ranks that were lost, in a job of `coordrun --min-np`; share_newest() decides with whose state.

register_buckets() has NCCL know the buckets of a DistributedDataParallel, register_all_gathers() what fully_shard gathers into and
register_reduce_scatters() what it reduces gradients in, so that NCCL needs no copies of its own; backend_of() has what does so for other
memory.

replace("gloo") has that name mean coordd, for programs that accept only names that they know.
"""

import torch

if not torch.distributed.is_available():
    raise ImportError(f"coordd.torch.distributed: torch {torch.__version__} was built without torch.distributed")
if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit()) < (2, 1):
    raise ImportError(f"coordd.torch.distributed: torch {torch.__version__} does not let Python define a backend: expected 2.1 or "
                      "later; coordd.torch and coordd.torch.ddp_hook serve this one")

from coordd.torch.distributed._buckets import (  # noqa: E402
    RegisteredBuckets, register_all_gathers, register_buckets, register_reduce_scatters)
from coordd.torch.distributed._known_memory import backend_of  # noqa: E402
from coordd.torch.distributed._recovery import recover, share_newest  # noqa: E402
from coordd.torch.distributed._registration import register, replace  # noqa: E402
from coordd.torch.distributed._store import Store, connect  # noqa: E402

register()

__all__ = ["RegisteredBuckets", "Store", "backend_of", "connect", "recover", "register", "register_all_gathers", "register_buckets",
           "register_reduce_scatters", "replace", "share_newest"]
