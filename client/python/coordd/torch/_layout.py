"""Where the elements of a tensor lie. No other module asks a tensor for its address.

The library reads and writes memory: the elements in their logical order, one behind the other. Of many tensors the memory says
something else. One may be transposed, channels_last or a part of another; it may be negated or conjugated only when it is read
(z.conj().imag is both a view and negated); or it may have no memory at all. address() knows, and says None. Such a tensor
travels as a copy in logical order, which is written back behind a collective that works in place: so it does not matter whether
ranks have the same memory format, and none has to know another's. (DistributedOptimizer avoids the copies: its buckets have the
order of the parameters, where all ranks have agreed on it.)
"""

import ctypes
from array import array
from math import prod
from operator import attrgetter
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from coordd import _library
from coordd.exceptions import InvalidArgumentError

MAX_DIMENSIONS = 8  # kMaxDimensions

# A complex number is a pair of floats: its dtype, and one more dimension.
_COMPLEX = {torch.complex32: "float16", torch.complex64: "float32", torch.complex128: "float64"}
DTYPES = {**_library.dtypes_of(torch), **{dtype: _library.DTYPES[part] for dtype, part in _COMPLEX.items()}}

_data_ptr, _is_contiguous = torch.Tensor.data_ptr, torch.Tensor.is_contiguous
_is_neg, _is_conj, _dtype = torch.Tensor.is_neg, torch.Tensor.is_conj, attrgetter("dtype")


def address(tensor: torch.Tensor) -> Optional[int]:
    """Where the elements lie as the library takes them. None: they lie otherwise, or nowhere."""
    try:
        if not tensor.is_contiguous() or tensor.is_neg() or (tensor.dtype in _COMPLEX and tensor.is_conj()):
            return None
        place = tensor.data_ptr()
        return place if place or not tensor.numel() else None
    except (AttributeError, RuntimeError):  # no tensor, or one without memory
        return None


def addresses(tensors: Sequence[torch.Tensor]) -> Optional["array[int]"]:
    """address() of each; None: one of them has none. With functions of C: a third of the time of a loop."""
    try:
        if (not all(map(_is_contiguous, tensors)) or any(map(_is_neg, tensors))
                or (not _COMPLEX.keys().isdisjoint(map(_dtype, tensors)) and any(map(_is_conj, tensors)))):
            return None
        places = array("Q", map(_data_ptr, tensors))
        if 0 in places and any(not place and tensor.numel() for place, tensor in zip(places, tensors)):
            return None
        return places
    except (AttributeError, TypeError, RuntimeError):
        return None


def is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether what is written to the one is in the other; of two tensors of one layout."""
    return one.data_ptr() == other.data_ptr()


def bytes_of(tensor: torch.Tensor) -> Any:
    """Those of a tensor that the library or this package has made, without a copy; the caller keeps the tensor."""
    return (ctypes.c_ubyte * tensor.numel()).from_address(tensor.data_ptr())


# --- what the library is told ----------------------------------------------------------------------------------------


def check(tensor: torch.Tensor, what: str) -> int:
    """coordd_dtype_t of a tensor that can travel, be it as a copy. ValueError: it cannot, and why."""
    if not isinstance(tensor, torch.Tensor):
        raise _refused(what, f"expected a torch tensor, found {type(tensor).__name__}")
    if tensor.is_nested:
        raise _refused(what, "is a nested tensor, expected a dense one: submit its values() and its offsets()")
    if tensor.layout != torch.strided:
        raise _refused(what, f"layout is {tensor.layout}, expected a dense tensor; sparse_allreduce_async takes sparse ones")
    if tensor.device.type not in ("cpu", "cuda"):
        raise _refused(what, f"is on device {tensor.device}, expected cpu or cuda")
    if tensor.dtype not in DTYPES:
        known = ", ".join(str(dtype)[6:] for dtype in DTYPES)
        raise _refused(what, f"dtype {tensor.dtype} is not supported; supported are {known}")
    return DTYPES[tensor.dtype]


def _refused(what: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what}: {why}", "INVALID_ARGUMENT")


def wire_shape(tensor: torch.Tensor) -> Sequence[int]:
    """Its shape as the library takes it: a pair for each complex number, and no more dimensions than there may be. The first
    one, which gathers and scatters count, stays what it is."""
    shape: Sequence[int] = tensor.shape
    if tensor.is_complex():
        shape = (*shape, 2)
    if len(shape) > MAX_DIMENSIONS:
        shape = (*shape[:MAX_DIMENSIONS - 1], prod(shape[MAX_DIMENSIONS - 1:]))
    return shape


# --- copies ----------------------------------------------------------------------------------------------------------


class Staged(NamedTuple):
    """Tensors that have an address, in the place of those of the program. Kept until the library is done with them."""
    source: torch.Tensor
    target: Optional[torch.Tensor]
    output: Optional[torch.Tensor]  # the program's, where that is not the target

    def write_back(self) -> None:
        """When the target holds the result."""
        if self.output is not None and self.target is not None:
            _write(self.output, self.target)


def staged(tensor: torch.Tensor, output: Optional[torch.Tensor], what: str) -> Staged:
    """What travels for `tensor` and receives the result for `output`, which may be the tensor itself or None. ValueError:
    the tensor cannot travel; or it is to be written in place, and cannot be."""
    check(tensor, what)
    source = tensor if address(tensor) is not None else _copy(tensor, what)
    if output is None:
        return Staged(source, None, None)
    if output is tensor:
        target = source
    else:
        check(output, what)
        target = output if address(output) is not None else torch.empty(output.shape, dtype=output.dtype,
                                                                         device=output.device)
    if target is output:
        return Staged(source, target, None)
    _require_writable(output, what)
    return Staged(source, target, output)


def all_staged(tensors: Sequence[torch.Tensor], outputs: Optional[Sequence[torch.Tensor]], what: str
               ) -> Tuple[List[torch.Tensor], Optional[List[torch.Tensor]], Callable[[], None]]:
    """staged() of each: sources, targets (the same list if the outputs are the tensors), and what is to be done behind."""
    pairs = [staged(tensor, None if outputs is None else outputs[index], f"{what}_{index + 1}of{len(tensors)}")
             for index, tensor in enumerate(tensors)]
    sources = [one.source for one in pairs]
    targets: Optional[List[torch.Tensor]] = sources
    if outputs is not tensors:
        targets = None if outputs is None else [one.target for one in pairs if one.target is not None]

    def write_back() -> None:
        for one in pairs:
            one.write_back()

    return sources, targets, write_back


def _copy(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """Its elements in memory of their own, in logical order. ValueError: nobody can say where they are."""
    if _is_freed(tensor):
        raise _refused(what, f"its memory was freed, as sharded training does with parameters that are not in use: it has "
                             f"{tensor.numel()} elements, and a storage of 0 bytes")
    copy = None
    if _has_its_elements(tensor):
        with torch.no_grad():
            copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    if copy is None or address(copy) is None:
        advice = "; submit its to_local()" if hasattr(tensor, "to_local") else ""
        raise _refused(what, f"is a {type(tensor).__name__} without memory of its own (a wrapper, or an argument inside of "
                             f"vmap, grad or a trace), expected a tensor with its elements{advice}")
    return copy


def _is_freed(tensor: torch.Tensor) -> bool:
    try:
        return tensor.data_ptr() == 0 and tensor.numel() > 0 and not tensor._is_zerotensor() and _has_its_elements(tensor)
    except RuntimeError:
        return False


def _has_its_elements(tensor: torch.Tensor) -> bool:
    """Not a class whose operations work on something else (DTensor, FakeTensor, AsyncCollectiveTensor)."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _require_writable(output: torch.Tensor, what: str) -> None:
    if _overlaps_itself(output):
        raise _refused(what, f"cannot be written in place: its elements share memory (shape {tuple(output.shape)}, strides "
                             f"{tuple(output.stride())}, as expand() makes them); submit tensor.clone()")
    if output._is_zerotensor():
        raise _refused(what, "cannot be written in place: it is a tensor of zeros without memory; submit tensor.clone()")


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two of its elements may lie in the same place."""
    reach = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size != 1):
        if stride < reach and size > 0:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _write(output: torch.Tensor, result: torch.Tensor) -> None:
    """Through whatever view the output is. What was made in inference mode is written in it; others bear no gradient of
    this, as with every collective in place."""
    with torch.inference_mode() if output.is_inference() else torch.no_grad():
        output.copy_(result)
