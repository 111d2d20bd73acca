"""Equal starting points and small exchanges: parameters, optimizer state, and any object.

    coordd.torch.broadcast_parameters(model.state_dict(), root_rank=0)
    coordd.torch.broadcast_optimizer_state(optimizer, root_rank=0)

Objects travel as a pickle, by cloudpickle where it is installed: between ranks of one job, which trust each other.
"""

import io
import pickle
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

import torch

from coordd.exceptions import HorovodInternalError, InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch import mpi_ops
from coordd.torch._layout import bytes_of

try:
    import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError:
    cloudpickle = None

__all__ = ["broadcast_parameters", "broadcast_optimizer_state", "broadcast_object", "allgather_object"]


def _broadcast_tensors(named: Iterable[Tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """In place, all at once; any layout in memory, complex ones too."""
    handles = [mpi_ops.broadcast_async_(tensor.detach(), root_rank, name=name, process_set=process_set)
               for name, tensor in named]
    for handle in handles:
        mpi_ops.synchronize(handle)


def broadcast_parameters(params: Union[Dict[str, Any], Iterable[Any]], root_rank: int,
                         process_set: ProcessSet = global_process_set) -> None:
    """Gives everyone the root's parameters, in place.

    params: model.state_dict(), model.named_parameters(), or a list of tensors; the same on all ranks. Entries of a state
    dict that are no tensors stay as they are. ValueError: something else.
    """
    if isinstance(params, dict):
        items = sorted(params.items())
    else:
        try:
            items = [item if isinstance(item, tuple) else (f"parameter.{index}", item)
                     for index, item in enumerate(params)]
        except TypeError:
            raise InvalidArgumentError(f"params: expected a state dict or (name, tensor) pairs, found "
                                       f"{type(params).__name__}", "INVALID_ARGUMENT") from None
        wrong = [item for item in items if not (len(item) == 2 and (item[1] is None or torch.is_tensor(item[1])))]
        if wrong:
            raise InvalidArgumentError(f"params: expected (name, tensor) pairs or tensors, found {type(wrong[0][-1]).__name__}",
                                       "INVALID_ARGUMENT")
    _broadcast_tensors([(name, tensor) for name, tensor in items if torch.is_tensor(tensor)], root_rank, process_set)


# --- optimizer state ---------------------------------------------------------------------------------------------------


class _Tensor(NamedTuple):
    """Stands for a tensor in a structure that travels as an object."""
    place: int
    shape: Tuple[int, ...]
    dtype: torch.dtype


def _take_tensors_out(value: Any, tensors: List[torch.Tensor]) -> Any:
    """The structure with a _Tensor for each tensor, which is added to `tensors`."""
    if torch.is_tensor(value):
        tensors.append(value.detach().cpu())
        return _Tensor(len(tensors) - 1, tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _take_tensors_out(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_take_tensors_out(item, tensors) for item in value)
    return value


def _put_tensors_in(value: Any, tensors: List[torch.Tensor]) -> Any:
    """The reverse; makes the tensors, in the order of their indices."""
    if isinstance(value, _Tensor):
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[value.place]
    if isinstance(value, dict):
        return {key: _put_tensors_in(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_tensors_in(item, tensors) for item in value)
    return value


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model=None,
                              process_set: ProcessSet = global_process_set) -> None:
    """Gives everyone the root's optimizer state and options (learning rates and so on), as load_state_dict() would from a
    checkpoint. Every optimizer, also one that has not made a step yet on the root, on the others, or on both.

    model: ignored, there for Horovod's sake. ValueError: the optimizers have different parameter groups.
    """
    del model
    is_root = mpi_ops.rank() == root_rank
    tensors: List[torch.Tensor] = []
    structure = _broadcast_made(lambda: _take_tensors_out(optimizer.state_dict(), tensors), root_rank, "optimizer_state",
                                process_set)
    if not is_root:
        state = _put_tensors_in(structure, tensors)
    _broadcast_tensors([(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)], root_rank,
                       process_set)
    if not is_root:
        optimizer.load_state_dict(state)
        restore_dtypes(optimizer, state)


def restore_dtypes(optimizer: torch.optim.Optimizer, state: Dict[str, Any]) -> None:
    """load_state_dict() gives scalars such as NAdam's mu_product the dtype of their parameter: here they stay exact, or
    ranks would drift apart from the root."""
    for key, values in optimizer.state_dict()["state"].items():
        for name, value in values.items() if isinstance(values, dict) else ():
            exact = state["state"][key].get(name)
            if torch.is_tensor(exact) and torch.is_tensor(value) and exact.dtype != value.dtype:
                values[name] = exact.to(value.device)


# --- objects -----------------------------------------------------------------------------------------------------------


class _NotPickled(NamedTuple):
    """Travels in the place of an object that a rank cannot pickle: the others wait, and are to hear why."""
    rank: int
    kind: str
    why: str


class _Packed(NamedTuple):
    value: Any
    data: torch.Tensor  # its pickle, or that of a _NotPickled
    error: Optional[BaseException]


def _pack(make: Callable[[], Any]) -> _Packed:
    """The object that `make()` returns."""
    value: Any = None
    kind = "object"
    error: Optional[BaseException] = None
    try:
        value = make()
        kind = type(value).__name__
        data = (cloudpickle or pickle).dumps(value)
    except BaseException as found:  # pickle raises what it likes, and so do the objects' own methods; or it is Ctrl-C
        error = found
        data = pickle.dumps(_NotPickled(mpi_ops.rank(), kind, f"{type(found).__name__}: {found}"))
    return _Packed(value, torch.frombuffer(bytearray(data), dtype=torch.uint8), error)


def _from_bytes(data: torch.Tensor) -> Any:
    # Not through numpy, which torch from PyPI does not bring along.
    return pickle.loads(bytes_of(data))


def _refuse(found: Any, name: str) -> None:
    """HorovodInternalError: it stands for what a rank could not pickle."""
    if isinstance(found, _NotPickled):
        raise HorovodInternalError(f"rank {found.rank} could not pickle its {found.kind} that was to travel as {name}: {found.why}",
                                   "INVALID_ARGUMENT", rank=found.rank)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Returns the root's object; on the others `obj` does not matter. Any size: it travels with a 64-bit length.

    What pickle, or cloudpickle where the root has it, cannot represent is its error on the root, and HorovodInternalError on
    the others, which names the root, the object's type and that error."""
    return _broadcast_made(lambda: obj, root_rank, name or "object", process_set)


def _broadcast_made(make: Callable[[], Any], root_rank: int, name: str, process_set: ProcessSet) -> Any:
    """The object that `make()` returns on the root. If it raises there, so do all."""
    packed = _pack(make) if mpi_ops.rank() == root_rank else None
    size = torch.tensor([0 if packed is None else packed.data.numel()], dtype=torch.int64)
    mpi_ops.broadcast_(size, root_rank, name=f"{name}.size", process_set=process_set)
    data = torch.empty(int(size), dtype=torch.uint8) if packed is None else packed.data
    mpi_ops.broadcast_(data, root_rank, name=f"{name}.bytes", process_set=process_set)
    if packed is None:
        found = _from_bytes(data)
        _refuse(found, name)
        return found
    if packed.error is not None:
        raise packed.error
    return packed.value


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """Returns the objects of all ranks, in rank order; each rank's may be of any size. What a rank cannot pickle is its error
    there, and HorovodInternalError on the others, as with broadcast_object()."""
    packed, name = _pack(lambda: obj), name or "object"
    everything = mpi_ops.allgather(packed.data, name=f"{name}.bytes", process_set=process_set)
    if packed.error is not None:
        raise packed.error
    # A pickle says where it ends; the ranks of another collective, which could tell, may be others.
    pickles = io.BytesIO(bytes_of(everything))
    objects = []
    while pickles.tell() < everything.numel():
        objects.append(pickle.load(pickles))
    for found in objects:
        _refuse(found, name)
    return objects
