"""Arguments of what is called once for a process set and a GPU, such as prepare_graphs(): what is wrong with one is said with the
function's name. TypeError: it is of another type; ValueError: it has another value."""

import numbers
from typing import Any

import torch

from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet
from coordd.torch._layout import address
from coordd.torch._submit import set_number


def set_of(what: str, process_set: Any) -> int:
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"{what}: process_set is {process_set!r}, expected a ProcessSet (hvd.global_process_set: all ranks)")
    if process_set.process_set_id is None:
        raise InvalidArgumentError(f"{what}: {process_set} is not registered, expected one that was given to init() or to "
                                   "add_process_set()", "INVALID_ARGUMENT")
    return set_number(process_set)


def seconds_of(what: str, timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"{what}: timeout is {timeout!r}, expected a number of seconds (0: COORDD_TIMEOUT)")
    seconds = float(timeout)
    if not seconds >= 0:  # nor NaN
        raise InvalidArgumentError(f"{what}: timeout is {timeout!r}, expected 0 or more seconds (0: COORDD_TIMEOUT)", "INVALID_ARGUMENT")
    return seconds


def gpu_of(what: str, device: Any) -> int:
    """The number of a GPU, as torch's users name it; None, or "cuda": torch's current one, which is 0 where torch finds none, so that the
    library says on all ranks why that one is not to be had."""
    expected = "expected this rank's GPU: its number from 0, torch.device(\"cuda\", 0), \"cuda:0\", or None for torch's current one"
    index = device
    if isinstance(device, (str, torch.device)):
        try:
            named = torch.device(device)
        except RuntimeError:
            raise InvalidArgumentError(f"{what}: device is {device!r}, {expected}", "INVALID_ARGUMENT") from None
        if named.type != "cuda":
            raise InvalidArgumentError(f"{what}: device is {device!r}, {expected}", "INVALID_ARGUMENT")
        index = named.index
    if index is None:
        return torch.cuda.current_device() if torch.cuda.is_available() else 0
    if isinstance(index, bool) or not isinstance(index, numbers.Integral):
        raise TypeError(f"{what}: device is {device!r}, {expected}")
    if index < 0:
        raise InvalidArgumentError(f"{what}: device is {device!r}, {expected}", "INVALID_ARGUMENT")
    return int(index)


def memory_of(what: str, tensor: Any) -> int:
    """Where a tensor lies on a GPU."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: found {type(tensor).__name__}, expected a contiguous torch tensor on a GPU")
    place = address(tensor)
    if not tensor.is_cuda or place is None:
        kind = "a tensor that is not contiguous" if place is None else "a tensor"
        raise InvalidArgumentError(f"{what}: found {kind} on {tensor.device}, expected a contiguous one on a GPU", "INVALID_ARGUMENT")
    return place
