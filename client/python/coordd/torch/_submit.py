"""Tensors of torch as the library's: checked, described, submitted."""

from typing import List, Optional, Sequence, Tuple

import torch

from coordd import _basics, _library, _native
from coordd._native import Prepared, PreparedGroup, Work
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet

# torch 1.13 has neither uint16 nor uint32 nor uint64.
DTYPES = {getattr(torch, name): number for name, number in _library.DTYPES.items() if hasattr(torch, name)}

_store = _native.PreparedStore()
_groups = _native.PreparedStore()


def set_number(process_set: ProcessSet) -> int:
    """ValueError: the set is not registered."""
    number = process_set.process_set_id
    if number is None:
        raise InvalidArgumentError(f"{process_set} is not registered: give it to init() or to add_process_set()",
                                   "INVALID_ARGUMENT")
    return number


def check(tensor: torch.Tensor, what: str) -> int:
    """coordd_dtype_t of a tensor that can be submitted. ValueError: it cannot, and why."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(f"{what}: expected a torch tensor, found {type(tensor).__name__}", "INVALID_ARGUMENT")
    if tensor.layout != torch.strided:
        raise InvalidArgumentError(f"{what}: layout is {tensor.layout}, expected a dense tensor; sparse_allreduce_async "
                                   "takes sparse ones", "INVALID_ARGUMENT")
    if tensor.device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"{what}: is on device {tensor.device}, expected cpu or cuda", "INVALID_ARGUMENT")
    if not tensor.is_contiguous():
        raise InvalidArgumentError(f"{what}: is not contiguous; submit tensor.contiguous()", "INVALID_ARGUMENT")
    try:
        return DTYPES[tensor.dtype]
    except KeyError:
        known = ", ".join(str(dtype)[6:] for dtype in DTYPES)
        raise InvalidArgumentError(f"{what}: dtype {tensor.dtype} is not supported; supported are {known}",
                                   "INVALID_ARGUMENT") from None


def _check_name(name: str) -> None:
    if "\0" in name:
        raise InvalidArgumentError(f"the name {name!r} has a zero character in it", "INVALID_ARGUMENT")


def size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _place_on_device(structure, tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        structure.device_kind = _library.CUDA
        structure.device_index = tensor.device.index or 0
        structure.stream = torch.cuda.current_stream(tensor.device).cuda_stream


def submit(function, extra: Tuple, name: str, tensor: torch.Tensor, output: Optional[torch.Tensor], process_set: int,
           prescale_factor: float = 1.0, postscale_factor: float = 1.0, output_bytes: int = 0) -> Work:
    """Queues one tensor and returns. `extra`: ctypes arguments between the tensor and the options. `output`: where the
    result goes; None: the library allocates it. `output_bytes`: its size, where that is not the input's.

    ValueError: the tensor, or what the library says about the call. HorovodInternalError: not initialised, or the
    generation has ended."""
    worker = _basics.worker()
    options = _native.call_options(process_set, prescale_factor, postscale_factor)
    key = (name, tensor.shape, tensor.dtype)
    prepared = _store.take(key)
    if prepared is None or not (tensor.is_contiguous() and tensor.is_cpu):
        dtype = check(tensor, name)
        _check_name(name)
        prepared = Prepared(name, tensor.shape, dtype)
        _place_on_device(prepared.structure, tensor)
    structure = prepared.structure
    structure.input = tensor.data_ptr()
    structure.output = None if output is None else output.data_ptr()
    structure.output_capacity_bytes = output_bytes
    status = function(worker.pointer, prepared.reference, *extra, options, prepared.work_reference)
    if status != 0:
        raise _native.call_error(status, name)
    work = Work((prepared.work.value,), name)
    _store.give_back(key, prepared)
    return work


def submit_group(function, extra: Tuple, name: str, tensors: Sequence[torch.Tensor],
                 outputs: Optional[Sequence[torch.Tensor]], process_set: int, prescale_factor: float = 1.0,
                 postscale_factor: float = 1.0) -> Work:
    """Queues tensors that are planned together or not at all; otherwise as submit()."""
    worker = _basics.worker()
    options = _native.call_options(process_set, prescale_factor, postscale_factor)
    shapes = [tensor.shape for tensor in tensors]
    dtypes = [tensor.dtype for tensor in tensors]
    group = _groups.take(name)
    if (group is None or group.shapes != shapes or group.dtypes != dtypes
            or not all([tensor.is_contiguous() and tensor.is_cpu for tensor in tensors])):
        group = _prepare_group(name, tensors, shapes, dtypes, outputs)
    group.prepared.place([tensor.data_ptr() for tensor in tensors],
                         None if outputs is None else [output.data_ptr() for output in outputs])
    work = group.prepared.submit(function, worker.pointer, extra, options)
    _groups.give_back(name, group)
    return work


class _Group:
    """A prepared group with what it was prepared for."""

    __slots__ = ("prepared", "shapes", "dtypes")

    def __init__(self, prepared: PreparedGroup, shapes: List, dtypes: List):
        self.prepared = prepared
        self.shapes = shapes
        self.dtypes = dtypes


def _prepare_group(name: str, tensors: Sequence[torch.Tensor], shapes: List, dtypes: List,
                   outputs: Optional[Sequence[torch.Tensor]]) -> _Group:
    _check_name(name)
    count = len(tensors)
    own_names = [f"{name}_{index + 1}of{count}" for index in range(count)]
    numbers = [check(tensor, own) for tensor, own in zip(tensors, own_names)]
    prepared = PreparedGroup(name, own_names, shapes, numbers)
    for index, tensor in enumerate(tensors):
        _place_on_device(prepared.structure(index), tensor)
        if outputs is not None:  # its size follows from the shape
            prepared.structure(index).output_capacity_bytes = size_bytes(outputs[index])
    return _Group(prepared, shapes, dtypes)


def owned_tensor(work: Work, index: int, dtype: torch.dtype) -> torch.Tensor:
    """The result that the library has allocated, as a tensor over the same memory: it is not copied, and lives until the
    tensor and all its views are gone. (A copy would double the memory and the time of a large gather; nothing else ever
    writes there.)"""
    result = work.result(index)
    buffer = result.buffer()
    if buffer is None:
        return torch.empty(result.shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).view(result.shape)


def require_same_bytes(output: torch.Tensor, expected_elements: int, like: torch.Tensor, what: str) -> None:
    """ValueError: the caller's output does not hold exactly the result."""
    check(output, f"{what} (output)")
    if output.dtype != like.dtype or output.numel() != expected_elements:
        raise InvalidArgumentError(f"{what}: the output holds {output.numel()} elements of {output.dtype}, expected "
                                   f"{expected_elements} of {like.dtype}", "INVALID_ARGUMENT")

