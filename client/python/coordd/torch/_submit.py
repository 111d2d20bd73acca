"""Tensors of torch as the library's: checked, described, submitted."""

from array import array
from ctypes import c_int32
from operator import attrgetter
from typing import Any, List, Optional, Sequence, Tuple

import torch

from coordd import _basics, _library, _memory, _native
from coordd._native import CAPACITY_WORD, INPUT_WORD, OUTPUT_WORD, BlockingCall, Prepared, PreparedGroup, Work
from coordd._prepared_store import PreparedStore
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet
from coordd.torch._layout import MAX_DIMENSIONS, address, addresses, all_staged, check, staged, wire_shape
from coordd.torch._streams import on_device, place_on_device

_store = PreparedStore()
_groups = PreparedStore()
_calls = PreparedStore()
_basics.on_end(_calls.clear)  # they hold the worker


OPS = {op: (c_int32(op),) for op in range(1, 6)}  # the argument as C takes it, made once
_MAY_BE_COMPLEX = {_basics.native_op(op) for op in (_basics.Sum, _basics.Average)}


def reduction(op: Any, average: Optional[bool], *tensors: torch.Tensor) -> Tuple[c_int32]:
    """OPS of the operator that Horovod calls `op` or `average`. ValueError: no such operator, or not of complex numbers."""
    number = _basics.native_op(op, average)
    if number not in _MAY_BE_COMPLEX and any([getattr(tensor, "dtype", torch.float32).is_complex for tensor in tensors]):
        name = next(name for name in ("Min", "Max", "Product") if _basics.native_op(getattr(_basics, name)) == number)
        raise InvalidArgumentError(f"{name} of complex numbers: expected Sum or Average, which are those of their real and "
                                   "imaginary parts", "INVALID_ARGUMENT")
    return OPS[number]


def set_number(process_set: ProcessSet) -> int:
    """ValueError: the set is not registered."""
    number = process_set.process_set_id
    if number is None:
        raise InvalidArgumentError(f"{process_set} is not registered: give it to init() or to add_process_set()",
                                   "INVALID_ARGUMENT")
    return number


def _check_name(name: str) -> None:
    if "\0" in name:
        raise InvalidArgumentError(f"the name {name!r} has a zero character in it", "INVALID_ARGUMENT")


def size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def submit(function, extra: Tuple, name: str, tensor: torch.Tensor, output: Optional[torch.Tensor], process_set: int,
           prescale_factor: float = 1.0, postscale_factor: float = 1.0, output_bytes: int = 0) -> Work:
    """Queues one tensor and returns. `extra`: ctypes arguments between the tensor and the options. `output`: where the
    result goes; None: the library allocates it. `output_bytes`: its size, where that is not the input's.

    ValueError: the tensor, or what the library says about the call. HorovodInternalError: not initialised, or the
    generation has ended."""
    worker = _basics.worker()
    options = _native.call_options(process_set, prescale_factor, postscale_factor)
    place = address(tensor)
    target = place if output is tensor else 0 if output is None else address(output)
    if place is None or target is None:
        stage = staged(tensor, output, name)
        work = submit(function, extra, name, stage.source, stage.target, process_set, prescale_factor, postscale_factor,
                      output_bytes)
        work.behind = stage.write_back
        return work
    key = (name, _shape_of(tensor, name), tensor.dtype)
    prepared = _store.take(key)
    if prepared is None or not tensor.is_cpu:
        prepared = _prepare(name, tensor)
    words = prepared.words
    words[INPUT_WORD] = place
    words[OUTPUT_WORD] = target
    words[CAPACITY_WORD] = output_bytes
    status = function(worker.pointer, prepared.reference, *extra, options, prepared.work_reference)
    if status != 0:
        raise _native.call_error(status, name)
    work = Work((prepared.work.value,), name, None if tensor.is_cpu else on_device((tensor, output)))
    if tensor.is_cpu:  # the next one of this name may be elsewhere, or come on another stream
        _store.give_back(key, prepared)
    return work


def _prepare(name: str, tensor: torch.Tensor) -> Prepared:
    """ValueError: the tensor cannot be submitted, or not under this name."""
    dtype = check(tensor, name)
    _check_name(name)
    prepared = Prepared(name, wire_shape(tensor), dtype)
    place_on_device(prepared.structure, tensor)
    return prepared


def _shape_of(tensor: torch.Tensor, name: str) -> torch.Size:
    """ValueError: it has none, as a nested one."""
    try:
        return tensor.shape
    except RuntimeError:
        check(tensor, name)
        raise


def run_allreduce(name: str, tensor: torch.Tensor, output: torch.Tensor, op: Any, average: Optional[bool],
                  process_set: int, prescale_factor: float, postscale_factor: float) -> None:
    """submit() and wait in one call into the library, for allreduces whose result is needed at once. `op` and `average`
    as Horovod has them; otherwise as submit()."""
    place = address(tensor)
    target = place if output is tensor else address(output)
    if place is None or target is None or tensor.is_cuda:  # where it is on a GPU, its stream waits, this thread does not
        work = submit(_library.library().function("coordd_allreduce_async"), reduction(op, average, tensor), name,
                      tensor, output, process_set, prescale_factor, postscale_factor)
        _native.wait_or_keep(work, (tensor, output))
        return
    worker = _basics.worker()
    key = (name, op, average, process_set, prescale_factor, postscale_factor)
    call = _calls.take(key)
    if (call is None or call.worker is not worker or call.shape != _shape_of(tensor, name) or call.dtype is not tensor.dtype
            or not tensor.is_cpu):
        call = BlockingCall(worker, _library.library().function("coordd_allreduce_for"), _prepare(name, tensor),
                            tensor.shape, tensor.dtype, reduction(op, average, tensor),
                            _native.call_options(process_set, prescale_factor, postscale_factor))
    words = call.words
    words[INPUT_WORD] = place
    words[OUTPUT_WORD] = target
    call.run(name, (tensor, output))
    if tensor.is_cpu:
        _calls.give_back(key, call)


def submit_group(function, extra: Tuple, name: str, tensors: Sequence[torch.Tensor],
                 outputs: Optional[Sequence[torch.Tensor]], process_set: int, prescale_factor: float = 1.0,
                 postscale_factor: float = 1.0) -> Work:
    """Queues tensors that are planned together or not at all; otherwise as submit()."""
    worker = _basics.worker()
    options = _native.call_options(process_set, prescale_factor, postscale_factor)
    inputs = addresses(tensors)
    places = inputs if outputs is tensors else array("Q", bytes(8 * len(tensors))) if outputs is None else addresses(outputs)
    if inputs is None or places is None:
        sources, targets, write_back = all_staged(tensors, outputs, name)
        work = submit_group(function, extra, name, sources, targets, process_set, prescale_factor, postscale_factor)
        work.behind = write_back
        return work
    try:
        shapes = list(map(_shape, tensors))
    except RuntimeError:
        shapes = [_shape_of(tensor, name) for tensor in tensors]
    dtypes = list(map(_dtype, tensors))
    key = (name, process_set)  # the size of an output may depend on the set's
    group = _groups.take(key)
    on_cpu = all(map(_is_cpu, tensors))
    if group is None or group.shapes != shapes or group.dtypes != dtypes or not on_cpu:
        group = _prepare_group(name, tensors, shapes, dtypes, outputs)
    group.prepared.place(inputs, places)
    place = None if on_cpu else on_device([*tensors, *(outputs or ())])
    work = group.prepared.submit(function, worker.pointer, extra, options, place)
    if on_cpu:
        _groups.give_back(key, group)
    return work


_shape, _dtype, _is_cpu = attrgetter("shape"), attrgetter("dtype"), attrgetter("is_cpu")


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
    prepared = PreparedGroup(name, own_names, list(map(wire_shape, tensors)), numbers)
    for index, tensor in enumerate(tensors):
        place_on_device(prepared.structure(index), tensor)
        if outputs is not None:  # its size follows from the shape
            prepared.structure(index).output_capacity_bytes = size_bytes(outputs[index])
    return _Group(prepared, shapes, dtypes)


Kind = Tuple[Any, Any, Optional[Tuple[int, ...]]]


def kind_of(tensor: torch.Tensor) -> Kind:
    """What a result of this tensor is made of: dtype, device, and the shape of its rows, where the library is told another;
    for what is no tensor, which is refused elsewhere, of nothing. ValueError: a single complex number."""
    dtype = getattr(tensor, "dtype", None)
    rows = None
    if isinstance(tensor, torch.Tensor) and not tensor.is_nested:
        if tensor.dim() == 0 and tensor.is_complex():  # the library would take it for a row of two
            raise InvalidArgumentError("a complex tensor of dimension 0 has no rows: expected at least one dimension",
                                       "INVALID_ARGUMENT")
        if tensor.dim() > MAX_DIMENSIONS or tensor.is_complex():
            rows = tuple(tensor.shape[1:])
    return dtype, getattr(tensor, "device", None), rows


class _DeviceBytes:
    """Memory of the library on a GPU, as torch takes it from others without a copy. torch keeps this object, and it keeps
    the work, as long as the tensor lives."""

    def __init__(self, result):
        self.result = result
        self.__cuda_array_interface__ = {"shape": (result.size_bytes,), "typestr": "|u1", "strides": None,
                                         "data": (result.address, False), "version": 2}


def owned_tensor(work: Work, index: int, kind: Kind) -> torch.Tensor:
    """The result that the library has allocated, as a tensor over the same memory: it is not copied, and lives until the
    tensor and all its views are gone. (A copy would double the memory and the time of a large gather.)

    On a GPU the library then uses it again, behind what is enqueued by then on the stream that was current when the result was
    waited for: a program that reads it on another stream lets that one wait for the other (Stream.wait_stream) before the
    tensor goes. Tensor.record_stream concerns memory of torch's own."""
    dtype, device, rows = kind
    result = work.result(index)
    shape = result.shape if rows is None else (result.shape[0], *rows)
    if result.size_bytes == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cuda":
        return torch.as_tensor(_DeviceBytes(result), device=device).view(dtype).view(shape)
    return torch.frombuffer(result.buffer(), dtype=dtype).view(shape)


def mapped_zeros(*size: Any, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """A tensor of zeros in host memory that the other ranks of the node have mapped: collectives on it, and on parts of it,
    need no copy. Size and dtype as of torch.zeros(). With one rank, or where ranks cannot map each other's memory or may not
    (COORDD_TRANSPORT=shm), it is like any other tensor; and it becomes one when a rank is lost. A child of a fork,
    such as a data loader, must not touch it.

    HorovodInternalError: not initialised, the generation has ended, or there is no memory."""
    dtype = dtype or torch.get_default_dtype()
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    count = shape.numel()
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    element_size = torch.empty((), dtype=dtype).element_size()
    memory = _memory.MappedMemory(_basics.worker(), count * element_size)
    return torch.frombuffer(memory.buffer(), dtype=dtype).view(shape)


def require_same_bytes(output: torch.Tensor, expected_elements: int, like: torch.Tensor, what: str) -> None:
    """ValueError: the caller's output does not hold exactly the result."""
    check(output, f"{what} (output)")
    if not output.is_contiguous():
        raise InvalidArgumentError(f"{what} (output): is not contiguous", "INVALID_ARGUMENT")
    if output.dtype != like.dtype or output.numel() != expected_elements:
        raise InvalidArgumentError(f"{what}: the output holds {output.numel()} elements of {output.dtype}, expected "
                                   f"{expected_elements} of {like.dtype}", "INVALID_ARGUMENT")

