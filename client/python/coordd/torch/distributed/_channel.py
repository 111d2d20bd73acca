"""How the members of one group reach each other. Everything else of this package asks a Channel.

Today a group is a job of its own with a worker of its own, since coordd makes a process set only when all ranks of a job ask, while
torch asks the members alone. Its collectives are those of a comm, in one order; sends and receives are named operations.

Members are counted as torch counts them: coordd may number them otherwise (ranks of one node are neighbours), and what a comm delivers
in the order of its members is put into torch's.
"""

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from coordd import _library, _native, _store
from coordd.exceptions import CoorddError
from coordd.torch.distributed import _bootstrap
from coordd.torch.distributed._errors import as_backend_error, backend_error

_BYTES = 1  # coordd_dtype_t: who only moves does not look at the dtype
_GOODBYE_S = 60.0  # for others that are still in the last collective
_SHUTDOWN_S = 10.0

_COMM_CALLS: Dict[str, List[Any]] = {
    "allreduce": [c_void_p, c_void_p, c_int64, c_int32, c_int32],
    "reducescatter": [c_void_p, c_void_p, c_int64, c_int32, c_int32],
    "broadcast": [c_void_p, c_int64, c_int32, c_int32],
    "allgather": [c_void_p, c_void_p, c_int64, c_int32],
    "alltoall": [c_void_p, c_void_p, c_int64, c_int32],
    "barrier": []}


def _declared():
    """Functions of comms, with their prototypes; the interpreter's lock is released in them."""
    library = _library.library()
    create = library.function("coordd_comm_create")
    create.argtypes = [c_void_p, c_int32, c_char_p, c_double, POINTER(c_void_p)]
    free = library.function("coordd_comm_free")
    free.argtypes, free.restype = [c_void_p], None
    calls = {}
    for name, arguments in _COMM_CALLS.items():
        calls[name] = library.function(f"coordd_comm_{name}")
        calls[name].argtypes = [c_void_p, *arguments]
    return create, free, calls


class Channel:
    """Collectives: one thread at a time. The rest is thread-safe. DistBackendError: coordd's sentence."""

    def __init__(self, store, rank: int, size: int, timeout_s: float):
        """Collective: all members."""
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._pid, self._leaving = os.getpid(), threading.Lock()
        self._comm = c_void_p()
        create, self._free, self._calls = _declared()
        try:
            self.worker, self.job = _bootstrap.join(store, rank, size, timeout_s)
        except CoorddError as error:
            raise as_backend_error(error) from None
        self._over = False
        self._check(create(self.worker.pointer, 0, b"torch", timeout_s, byref(self._comm)))
        self.allreduce: Callable[[int, int, int, int], None] = self._in_place_allreduce()
        self.order = self._torch_ranks()  # by coordd's rank; None: the same
        self._coordd_ranks = None if self.order is None else [self.order.index(one) for one in range(size)]
        _channels.append(self)

    def _check(self, status: int) -> None:
        if status != 0:
            raise backend_error(status, self.timeout_s)

    def _torch_ranks(self) -> Optional[List[int]]:
        own, everyone = c_int64(self.rank), (c_int64 * self.size)()
        self._check(self._calls["allgather"](self._comm, ctypes.addressof(own), ctypes.addressof(everyone), 8, _BYTES))
        order = list(everyone)
        return None if order == list(range(self.size)) else order

    def coordd_rank(self, rank: int) -> int:
        return rank if self._coordd_ranks is None else self._coordd_ranks[rank]

    # --- collectives, in the order of the group

    def _in_place_allreduce(self):
        call, comm, timeout_s = self._calls["allreduce"], self._comm, self.timeout_s

        def allreduce(address: int, count: int, dtype: int, op: int) -> None:
            status = call(comm, address, address, count, dtype, op)
            if status != 0:
                raise backend_error(status, timeout_s)

        return allreduce

    def reducescatter(self, output: torch.Tensor, input_: torch.Tensor, dtype: int, op: int, count: int) -> None:
        """`count` elements of `dtype` for each member. Both are dense."""
        if self.order is not None:
            input_ = input_.reshape(self.size, -1)[self.order].contiguous()
        self._check(self._calls["reducescatter"](self._comm, input_.data_ptr(), output.data_ptr(), count, dtype, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self._check(self._calls["broadcast"](self._comm, tensor.data_ptr(), tensor.numel() * tensor.element_size(), _BYTES,
                                             self.coordd_rank(root)))

    def allgather(self, output: torch.Tensor, input_: torch.Tensor) -> None:
        """Both are dense; output: a block for each member."""
        into = output if self.order is None else torch.empty_like(output)
        self._check(self._calls["allgather"](self._comm, input_.data_ptr(), into.data_ptr(),
                                             input_.numel() * input_.element_size(), _BYTES))
        if self._coordd_ranks is not None:
            output.copy_(into.reshape(self.size, -1)[self._coordd_ranks].view(output.shape))

    def alltoall(self, output: torch.Tensor, input_: torch.Tensor) -> None:
        """A block of each for each member; both are dense."""
        into, out_of = output, input_
        if self.order is not None:
            out_of = input_.reshape(self.size, -1)[self.order].contiguous()
            into = torch.empty_like(output)
        block = input_.numel() * input_.element_size() // self.size
        self._check(self._calls["alltoall"](self._comm, out_of.data_ptr(), into.data_ptr(), block, _BYTES))
        if self._coordd_ranks is not None:
            output.copy_(into.reshape(self.size, -1)[self._coordd_ranks].view(output.shape))

    def barrier(self) -> None:
        self._check(self._calls["barrier"](self._comm))

    # --- by name

    def exchange(self, name: str, into: torch.Tensor, out_of: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> None:
        """An alltoall of so many bytes to and from each member; both are dense. Waits."""
        if self.order is not None:
            out_of = torch.cat([out_of.split(list(sent))[one] for one in self.order])
        splits = [sent[one] for one in self.order or range(self.size)]
        target = into if self.order is None else torch.empty_like(into)
        prepared = _native.Prepared(name, [out_of.numel()], _BYTES)
        prepared.words[_native.INPUT_WORD] = out_of.data_ptr() or 64
        prepared.words[_native.OUTPUT_WORD] = target.data_ptr() or 64
        prepared.words[_native.CAPACITY_WORD] = target.numel()
        work = self._submit("coordd_alltoall_async", prepared, (c_int64 * self.size)(*splits), c_size_t(self.size))
        try:
            _native.wait_or_keep(work, (target, out_of))
        except CoorddError as error:
            raise as_backend_error(error) from None
        if self.order is not None:
            at = target.split([received[one] for one in self.order])
            into.copy_(torch.cat([at[one] for one in self._coordd_ranks or ()]))

    def send(self, name: str, tensor: torch.Tensor, destination: int) -> _native.Work:
        return self._one_to_one("coordd_send_async", name, tensor, destination)

    def receive(self, name: str, tensor: torch.Tensor, source: int) -> _native.Work:
        return self._one_to_one("coordd_receive_async", name, tensor, source)

    def _one_to_one(self, function: str, name: str, tensor: torch.Tensor, peer: int) -> _native.Work:
        prepared = _native.Prepared(name, [tensor.numel() * tensor.element_size()], _BYTES)
        prepared.words[_native.INPUT_WORD] = prepared.words[_native.OUTPUT_WORD] = tensor.data_ptr() or 64
        return self._submit(function, prepared, c_int32(self.coordd_rank(peer)))

    def _submit(self, function: str, prepared: _native.Prepared, *arguments: Any) -> _native.Work:
        status = _library.library().function(function)(self.worker.pointer, prepared.reference, *arguments, None,
                                                       prepared.work_reference)
        self._check(status)
        return _native.Work((prepared.work.value,), prepared.structure.name.decode(errors="replace"))

    # --- small values

    def put(self, key: str, value: bytes) -> None:
        try:
            _store.put(self.worker, key, value, self.timeout_s)
        except CoorddError as error:
            raise as_backend_error(error) from None

    def get(self, key: str, timeout_s: float) -> Optional[bytes]:
        """None: nobody has put it there in time."""
        try:
            return _store.get(self.worker, key, timeout_s)
        except CoorddError as error:
            if error.code == "DEADLINE_EXCEEDED":
                return None
            raise as_backend_error(error) from None

    # --- the end

    def leave(self, others_first: bool = True) -> None:
        """Not a collective. Says goodbye once all members do, since a goodbye ends the group for those who are still in its last
        collective; after a minute in any case."""
        with self._leaving:
            if self._over or self._pid != os.getpid():
                return
            self._over = True
        work = None
        if others_first:
            try:
                work = self._goodbye()
            except Exception:
                work = None
        thread = threading.Thread(target=self._end, args=(work,), name="coordd-c10d-leave", daemon=True)
        _ends.append(thread)
        thread.start()

    def _goodbye(self) -> Optional[_native.Work]:
        pointer = c_void_p()
        options = _native.call_options(0, 1.0, 1.0, _GOODBYE_S)
        status = _library.library().function("coordd_barrier_async")(self.worker.pointer, c_char_p(b"torch.goodbye"), options,
                                                                     byref(pointer))
        return None if status != 0 else _native.Work((pointer.value or 0,), "torch.goodbye")

    def _end(self, work: Optional[_native.Work]) -> None:
        try:
            if work is not None:
                work.wait()
        except CoorddError:
            pass  # somebody has left, or was lost
        del work
        comm, self._comm = self._comm, c_void_p()
        self._free(comm)
        self.worker.shutdown(_SHUTDOWN_S)
        if self in _channels:
            _channels.remove(self)

    def fail(self, what: str) -> None:
        """Instead of leave(): an error ends the program."""
        self._over = True
        self.worker.fail(what, 2.0)


_channels: List[Channel] = []
_ends: List[threading.Thread] = []


def leave_all() -> None:
    """At the end of the process."""
    for channel in list(_channels):
        channel.leave()
    for thread in list(_ends):
        thread.join(_GOODBYE_S + _SHUTDOWN_S)
    _ends.clear()


def fail_all(what: str) -> None:
    for channel in list(_channels):
        channel.fail(what)


def _abandon() -> None:
    _kept.extend(_channels)  # the parent's: nothing of them is touched in the child of a fork
    _channels.clear()
    _ends.clear()


_kept: List[Channel] = []
os.register_at_fork(after_in_child=_abandon)
