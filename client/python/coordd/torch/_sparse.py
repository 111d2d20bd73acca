"""allreduce of sparse tensors. See coordd.torch.mpi_ops."""

from typing import Any, Dict

import torch

from coordd._basics import Average, Sum
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._exchanges import allgather_async
from coordd.torch._handles import synchronize

# torch 2 wants to be told that indices which came from valid tensors need no check.
KNOWN_TO_BE_VALID: Dict[str, Any] = {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: int,
                           process_set: ProcessSet = global_process_set):
    """Starts the sum or average of sparse COO tensors of equal shape, with different numbers of entries. Returns a
    callable handle: handle() or synchronize(handle) gives a sparse tensor of that shape, not coalesced: an index that
    several ranks have appears several times, and the values add up. `op`: Average or Sum. ValueError: another operator, or
    a dense tensor."""
    if not tensor.is_sparse:
        raise InvalidArgumentError("sparse_allreduce_async: the tensor is dense, use allreduce_async", "INVALID_ARGUMENT")
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"sparse_allreduce_async: op is {op!r}, expected Average or Sum", "INVALID_ARGUMENT")
    tensor = tensor.detach()
    ranks = process_set.size()
    indices = allgather_async(tensor._indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values().contiguous(), f"{name}.values", process_set)

    def handle() -> torch.Tensor:
        gathered_values = synchronize(values)
        gathered_indices = synchronize(indices)
        if op == Average:
            gathered_values = gathered_values / ranks
        return torch.sparse_coo_tensor(gathered_indices.t(), gathered_values, tensor.shape, **KNOWN_TO_BE_VALID)

    return handle
