"""torch's reduction operators as coordd's, and those that coordd does not have."""

from typing import Optional, Tuple

import torch
import torch.distributed as dist

from coordd import _library

_R = dist.ReduceOp
_NATIVE = {_R.SUM: 1, _R.AVG: 2, _R.MIN: 3, _R.MAX: 4, _R.PRODUCT: 5}  # coordd_op_t
_BITWISE = {_R.BAND: torch.bitwise_and, _R.BOR: torch.bitwise_or, _R.BXOR: torch.bitwise_xor}
_OF_COMPLEX = (_R.SUM, _R.AVG)
DTYPES = _library.dtypes_of(torch)


class Reduction:
    """One of torch's ReduceOp. `native`: coordd_op_t; None: `combine` two tensors at a time. `factor`: multiplied in first. `direct`:
    `native` is all that it takes, else 0."""

    __slots__ = ("op", "native", "combine", "factor", "direct")

    def __init__(self, op, native: Optional[int], combine=None, factor=None):
        self.op, self.native, self.combine, self.factor = op, native, combine, factor
        self.direct: int = native or 0 if factor is None else 0


_plain = {op: Reduction(op, number) for op, number in _NATIVE.items()}
_plain.update({op: Reduction(op, None, combine) for op, combine in _BITWISE.items()})


def reduction_of(reduce_op) -> Reduction:
    """ValueError: there is no such operator here."""
    op = getattr(reduce_op, "op", reduce_op)
    found = _plain.get(op)
    if found is not None:
        return found
    if op == getattr(_R, "PREMUL_SUM", None):
        factor = getattr(reduce_op, "factor", None)
        if factor is None:  # torch before 2.15 does not show it, but keeps it in what it pickles
            factor = reduce_op.__getstate__()[1]
        return Reduction(op, _NATIVE[_R.SUM], None, factor)
    raise ValueError(f"the reduction {op} is not there: expected SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR, BXOR or PREMUL_SUM")


def check_reducible(tensor: torch.Tensor, reduction: Reduction) -> None:
    """ValueError, RuntimeError: not this dtype."""
    if tensor.is_complex():
        if reduction.op not in _OF_COMPLEX and reduction.factor is None:
            raise ValueError(f"all_reduce does not support {reduction.op} on complex tensors: expected SUM or AVG")
    elif tensor.dtype not in DTYPES:
        raise ValueError(f"a tensor of {tensor.dtype}: coordd does not reduce it")
    elif reduction.combine is not None and tensor.is_floating_point():
        raise RuntimeError(f"Cannot use {reduction.op} with tensors of {tensor.dtype}: expected integers or bool")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy; of what is conjugated or negated when it is read, what it gives."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg().contiguous()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def flat_real(tensor: torch.Tensor) -> Tuple[int, int, int]:
    """(address, elements, coordd_dtype_t) of a dense tensor; complex numbers count as two."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.data_ptr(), tensor.numel(), DTYPES[tensor.dtype]
