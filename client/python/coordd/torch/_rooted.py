"""reduce and gather to one rank; send and receive between two. Names as in torch.distributed. See coordd.torch.mpi_ops."""

import threading
from ctypes import c_int32
from typing import Dict, Optional, Tuple

import torch

from coordd._basics import Average, on_end, worker
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._exchanges import submit_pending
from coordd.torch._handles import Pending, finish, track
from coordd.torch._reductions import like
from coordd.torch._refused import checked
from coordd.torch._submit import kind_of, owned_tensor, reduction

# --- to one rank -----------------------------------------------------------------------------------------------------


def _reduce(tensor, root_rank, name, op, prescale_factor, postscale_factor, process_set) -> Pending:
    on_root = worker().place.rank == root_rank

    def prepare():
        return (c_int32(root_rank), *reduction(op, None, tensor)), like(tensor) if on_root else None

    extra, output = checked("reduce", name, process_set, prepare)
    return submit_pending("reduce", "coordd_reduce_async", extra, name, tensor, output, process_set, prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def reduce_async(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, op: int = Average,
                 prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                 process_set: ProcessSet = global_process_set) -> int:
    """Starts a reduce(); synchronize(handle) returns what it does."""
    return track(_reduce(tensor, root_rank, name, op, prescale_factor, postscale_factor, process_set))


def reduce(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, op: int = Average,
           prescale_factor: float = 1.0, postscale_factor: float = 1.0,
           process_set: ProcessSet = global_process_set) -> Optional[torch.Tensor]:
    """allreduce() whose result only the root gets, as a new tensor; None elsewhere. `root_rank`: a rank in the job, member
    of the process set. Not differentiable."""
    return finish(_reduce(tensor, root_rank, name, op, prescale_factor, postscale_factor, process_set))


def _gather(tensor, root_rank, name, process_set) -> Pending:
    kind = checked("gather", name, process_set, kind_of, tensor)
    on_root = worker().place.rank == root_rank
    return submit_pending("gather", "coordd_gather_async", (c_int32(root_rank),), name, tensor, None, process_set,
                          (lambda work: owned_tensor(work, 0, kind)) if on_root else None)


def gather_async(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                 process_set: ProcessSet = global_process_set) -> int:
    """Starts a gather(); synchronize(handle) returns what it does."""
    return track(_gather(tensor, root_rank, name, process_set))


def gather(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
           process_set: ProcessSet = global_process_set) -> Optional[torch.Tensor]:
    """allgather() whose result only the root gets; None elsewhere. `root_rank`: a rank in the job, member of the process
    set. Not differentiable."""
    return finish(_gather(tensor, root_rank, name, process_set))


# --- between two ranks -----------------------------------------------------------------------------------------------

MAX_UNNAMED = 1024  # messages under way between two ranks, in one direction

_Pair = Tuple[int, int]  # sender, receiver


class _Messages:
    """Numbers of messages without a name, for each sender and receiver; from 0 again after MAX_UNNAMED: not when none is
    under way, which the two may see at different moments. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._next: Dict[_Pair, int] = {}

    def take(self, pair: _Pair) -> int:
        with self._lock:
            number = self._next.get(pair, 0)
            self._next[pair] = (number + 1) % MAX_UNNAMED
        return number

    def withdraw(self, pair: _Pair, number: int) -> None:
        """As if it had never been taken: nothing was submitted, which the other side does not know."""
        with self._lock:
            if self._next.get(pair) == (number + 1) % MAX_UNNAMED:
                self._next[pair] = number

    def reset(self) -> None:
        with self._lock:
            self._next = {}


_messages = _Messages()
on_end(_messages.reset)


def _message(function_name: str, tensor, output, name: Optional[str], pair: _Pair, other: int) -> Pending:
    number = None if name is not None else _messages.take(pair)
    try:
        return submit_pending("message", function_name, (c_int32(other),),
                              f"{pair[0]}.{pair[1]}.{name if number is None else f'noname.{number}'}", tensor, output,
                              global_process_set)
    except BaseException:
        if number is not None:
            _messages.withdraw(pair, number)
        raise


def _other(rank: int, what: str) -> int:
    here = worker().place
    if not 0 <= rank < here.size or rank == here.rank:
        raise InvalidArgumentError(f"{what} is {rank}: expected another rank of the job, 0 to {here.size - 1}",
                                   "INVALID_ARGUMENT")
    return here.rank


def _send(tensor, dst, name) -> Pending:
    return _message("coordd_send_async", tensor, None, name, (_other(dst, "dst"), dst), dst)


def _recv(tensor, src, name) -> Pending:
    return _message("coordd_receive_async", tensor, tensor, name, (src, _other(src, "src")), src)


def isend(tensor: torch.Tensor, dst: int, name: Optional[str] = None) -> int:
    """Starts a send(); synchronize(handle) returns None. The tensor must not change before."""
    return track(_send(tensor, dst, name))


def send(tensor: torch.Tensor, dst: int, name: Optional[str] = None) -> None:
    """Sends a tensor to rank `dst`, and returns when that has received it.

    The two agree by name: without one, the n-th unnamed send of a rank to another meets the n-th unnamed recv there; 1024
    of them may be under way. Shape and dtype must be equal, otherwise both fail with HorovodInternalError. Not differentiable.
    """
    finish(_send(tensor, dst, name))


def irecv(tensor: torch.Tensor, src: int, name: Optional[str] = None) -> int:
    """Starts a recv(); synchronize(handle) returns the tensor."""
    return track(_recv(tensor, src, name))


def recv(tensor: torch.Tensor, src: int, name: Optional[str] = None) -> torch.Tensor:
    """Receives what rank `src` sends into `tensor`, which is contiguous and as large, and returns it. See send()."""
    return finish(_recv(tensor, src, name))
