"""How the members of one group reach each other. Everything else of this package asks a Channel.

The default group is a job of coordd's, and so is a group of which coordd's default group does not know the members. Other groups are
process sets of its job (_job.py), made by their members alone. The collectives of a group are those of a comm, in one order, and its
sends and receives are messages of the comm; sends of GPUs' memory are named operations.

Members are counted as torch counts them: coordd may number them otherwise (ranks of one node are neighbours), and what a comm delivers
in the order of its members is put into torch's.
"""

import ctypes
import os
import threading
import time
from ctypes import byref, c_int64, c_void_p
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from coordd import _ends, _library, _native, _store
from coordd.exceptions import CoorddError
from coordd.torch.distributed import _job
from coordd.torch.distributed._comm import CANCELLED, DEADLINE_EXCEEDED, Comm, await_status
from coordd.torch.distributed._errors import LOST, as_backend_error, backend_error
from coordd.torch.distributed._ops import DTYPES

_BYTES = 1  # coordd_dtype_t: who only moves does not look at the dtype
_NO_SET = ("ABORTED", "UNAVAILABLE", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED")  # what ends all members' attempts to be a set of a job


class Inside(NamedTuple):
    """Where the members of a group are: ranks of this job, in the group's order. `label`: what they all call it."""

    job: _job.Job
    ranks: List[int]
    label: str


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Elements that lie one after the other, as bytes: no copy."""
    return tensor.detach().view(-1).view(torch.uint8)


class Channel:
    """Collectives: one thread at a time. The rest is thread-safe. DistBackendError: coordd's sentence."""

    def __init__(self, store, rank: int, size: int, timeout_s: float, inside: Optional[Inside] = None, job: Optional[_job.Job] = None,
                 recovers: bool = False):
        """Collective: all members. They are all those of `job`, in its order; or, without it and `inside`, become a job of their own,
        which `recovers` when one is lost."""
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._counts = c_int64 * size
        self._pid, self._leaving = os.getpid(), threading.Lock()
        self._over = False
        try:
            made = self._join_all(job) if job is not None else None if inside is None else self._join_set(inside)
            self.comm = made if made is not None else self._join_job(store, recovers)
        except CoorddError as error:
            raise as_backend_error(error) from None
        self.comm.order = self.order
        self._coordd_ranks = None if self.order is None else [self.order.index(one) for one in range(size)]
        self.allreduce = self.comm.allreduce  # (kept, address, count, dtype, op)
        self.job.enter()
        _channels.append(self)

    # Waits so many seconds for the calls that are executed in Python, and says whether all of them have ended; a group with such calls
    # puts its Lane.finish here.
    calls_end: Callable[..., bool] = staticmethod(lambda seconds, in_vain=None: True)

    # By coordd's number of a member its rank in torch; None: they are the same.
    order: Optional[List[int]] = None
    _job_ranks: Optional[List[int]] = None  # by rank in the group; None: they are the same

    def _join_all(self, job: _job.Job) -> Comm:
        self.job, self.set = job, 0
        return Comm(job.worker, self.set, self.timeout_s)

    def _join_job(self, store, recovers: bool) -> Comm:
        self._job_ranks = None  # a set of a job has failed before
        self.job, self.set = _job.Job(store, self.rank, self.size, self.timeout_s, recovers), 0
        comm = Comm(self.job.worker, self.set, self.timeout_s)
        own, everyone = c_int64(self.rank), (c_int64 * self.size)()
        comm.run("allgather", (own, everyone), ctypes.addressof(own), ctypes.addressof(everyone), 8, _BYTES)
        order = list(everyone)
        if order != list(range(self.size)):
            self.order = order
            self._job_ranks = [order.index(one) for one in range(self.size)]
        return comm

    def _join_set(self, inside: Inside) -> Optional[Comm]:
        """None: the job has ended, or has no room for another set: then the members need one of their own."""
        self.job, self._job_ranks = inside.job, inside.ranks
        try:
            self.set = inside.job.add_set(inside.label, inside.ranks, self.timeout_s)
            comm = Comm(self.job.worker, self.set, self.timeout_s)
        except CoorddError as error:
            if error.code not in _NO_SET or self._has_lost(error, inside.ranks):
                raise
            return None
        by_rank = sorted(range(self.size), key=lambda one: inside.ranks[one])
        self.order = None if by_rank == list(range(self.size)) else by_rank
        return comm

    @staticmethod
    def _has_lost(error: CoorddError, ranks: Sequence[int]) -> bool:
        """Whether the job ended with the loss of one of these: nobody need wait for that one in another job."""
        lost = LOST.search(str(error))
        return lost is not None and int(lost[1]) in ranks

    @property
    def worker(self) -> _native.Worker:
        return self.job.worker

    def inside(self, ranks: Sequence[int], label: str) -> Inside:
        """For a group of these members."""
        return Inside(self.job, [self.job_rank(one) for one in ranks], label)

    def has_ended(self) -> bool:
        """Whether this rank has left it."""
        return self._over

    def _check(self, status: int) -> None:
        if status != 0:
            raise backend_error(status, self.timeout_s)

    def coordd_rank(self, rank: int) -> int:
        """Among the members of the comm."""
        return rank if self._coordd_ranks is None else self._coordd_ranks[rank]

    def job_rank(self, rank: int) -> int:
        return rank if self._job_ranks is None else self._job_ranks[rank]

    # --- collectives, in the order of the group

    def reducescatter(self, output: torch.Tensor, input_: torch.Tensor, dtype: int, op: int, count: int) -> None:
        """`count` elements of `dtype` for each member. Both are dense."""
        if self.order is not None:
            input_ = input_.reshape(self.size, -1)[self.order].contiguous()
        self.comm.run("reducescatter", (output, input_), input_.data_ptr(), output.data_ptr(), count, dtype, op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self.comm.run("broadcast", tensor, *self.broadcast_of(tensor, root))

    def broadcast_of(self, tensor: torch.Tensor, root: int):
        """Arguments of coordd's."""
        return tensor.data_ptr(), tensor.numel() * tensor.element_size(), _BYTES, self.coordd_rank(root)

    def allgather(self, output: torch.Tensor, input_: torch.Tensor) -> None:
        """Both are dense; output: a block for each member."""
        into = output if self.order is None else torch.empty_like(output)
        self.comm.run("allgather", (into, input_), *self.allgather_of(into, input_))
        if self._coordd_ranks is not None:
            output.copy_(into.reshape(self.size, -1)[self._coordd_ranks].view(output.shape))

    @staticmethod
    def allgather_of(output: torch.Tensor, input_: torch.Tensor):
        """Likewise."""
        return input_.data_ptr(), output.data_ptr(), input_.numel() * input_.element_size(), _BYTES

    def alltoall(self, output: torch.Tensor, input_: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> None:
        """So many bytes to and from each member; both are dense. Each member makes this call, also if it sends and receives nothing."""
        if self.order is None:
            self._alltoall(output, input_, sent, received)
            return
        parts, come = bytes_of(input_).split(list(sent)), [received[one] for one in self.order]
        into = torch.empty(sum(come), dtype=torch.uint8)
        self._alltoall(into, torch.cat([parts[one] for one in self.order]), [sent[one] for one in self.order], come)
        at = into.split(come)
        bytes_of(output).copy_(torch.cat([at[one] for one in self._coordd_ranks or ()]))

    def _alltoall(self, output: torch.Tensor, input_: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> None:
        self.comm.run("alltoallv", (output, input_), input_.data_ptr() or 64, self._counts(*sent), output.data_ptr() or 64,
                      self._counts(*received), _BYTES)

    def barrier(self) -> None:
        self.comm.run("barrier", None)

    # --- messages

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> _native.Work:
        return self._message("send", tensor, self.coordd_rank(destination), tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> _native.Work:
        """`source` -1: from any."""
        return self._message("receive", tensor, -1 if source < 0 else self.coordd_rank(source), tag)

    def _message(self, function: str, tensor: torch.Tensor, peer: int, tag: int) -> _native.Work:
        dtype = DTYPES.get(tensor.dtype)
        count = tensor.numel() if dtype is not None else tensor.numel() * tensor.element_size()
        return self.comm.message(function, tensor.data_ptr(), count, _BYTES if dtype is None else dtype, peer, tag)

    def await_receive(self, receive: _native.Work, deadline: float) -> int:
        """What it has ended with. DEADLINE_EXCEEDED: nothing has come for it, and it takes nothing that comes later. What is under way
        when the time is over is waited for. Can be interrupted by Ctrl-C; it then goes on."""
        status = await_status(receive, deadline)
        if status != DEADLINE_EXCEEDED or not self.comm.withdraw(receive):
            return status
        status = await_status(receive)
        return DEADLINE_EXCEEDED if status == CANCELLED else status

    def await_send(self, send: _native.Work, deadline: float) -> int:
        """Likewise. DEADLINE_EXCEEDED: the message is there for whoever receives it, and its memory is in use until then."""
        return await_status(send, deadline)

    def await_messages(self, call: str, messages: Sequence[Tuple[_native.Work, torch.Tensor, int]], receives: bool) -> None:
        """Of a call that consists of them, each with its memory and the other rank. When one fails no other one takes what comes later.
        Can be interrupted by Ctrl-C; they then go on."""
        deadline, at = time.monotonic() + self.timeout_s, 0
        wait = self.await_receive if receives else self.await_send
        try:
            while at < len(messages):
                status = wait(messages[at][0], deadline)
                if status == DEADLINE_EXCEEDED:
                    raise dist.DistBackendError(  # type: ignore[attr-defined]
                        f"coordd: the timeout of {self.timeout_s:g} s is over: {call}: rank {messages[at][2]} of the group was not there "
                        "[DEADLINE_EXCEEDED]")
                if status != 0:
                    raise backend_error(status, self.timeout_s)
                at += 1
        except BaseException as error:
            for work, memory, _ in messages[at:]:
                if receives and isinstance(error, Exception):
                    self.comm.withdraw(work)
                _native.keep_until_done(work, memory)
            raise

    def sender_of(self, received: _native.Work) -> int:
        """Of a receive that has ended."""
        result = _library.initialised(_library.Result())
        self._check(_library.library().quick.coordd_work_result(c_void_p(received.pointers[0]), byref(result)))
        member = result.received_splits[0]
        return member if self.order is None else self.order[member]

    def name_between(self, name: str) -> str:
        """Of a message: two ranks may be in several groups."""
        return name if self.set == 0 else f"{self.set}/{name}"

    def _work(self, function: str, prepared: _native.Prepared, process_set: int, *arguments: Any) -> _native.Work:
        return _native.Work((self.submit(function, prepared, process_set, *arguments),), prepared.structure.name.decode(errors="replace"))

    def submit(self, function: str, prepared: _native.Prepared, process_set: int, *arguments: Any) -> Optional[int]:
        """A named operation of the library; its coordd_work_t."""
        return self.submit_prepared(_library.library().function(function), prepared, process_set, *arguments)

    def submit_prepared(self, function: Any, prepared: _native.Prepared, process_set: int, *arguments: Any) -> Optional[int]:
        """The same where the function has been looked up."""
        options = _native.call_options(process_set, 1.0, 1.0, self.timeout_s)
        status = function(self.job.worker.pointer, prepared.reference, *arguments, options, prepared.work_reference)
        if status != 0:
            self._check(status)
        return prepared.work.value

    # --- small values

    def _key(self, key: str) -> str:
        return key if self.set == 0 else f"torch.group/{self.set}/{key}"

    def put(self, key: str, value: bytes) -> None:
        try:
            _store.put(self.job.worker, self._key(key), value, self.timeout_s)
        except CoorddError as error:
            raise as_backend_error(error) from None

    def get(self, key: str, timeout_s: float, most_bytes: int = 1024) -> Optional[bytes]:
        """None: nobody has put it there in time."""
        try:
            return _store.get(self.job.worker, self._key(key), timeout_s, most_bytes)
        except CoorddError as error:
            if error.code == "DEADLINE_EXCEEDED":
                return None
            raise as_backend_error(error) from None

    def are_there(self, keys: Sequence[str]) -> bool:
        """Now, all of them."""
        try:
            return _store.are_there(self.job.worker, [self._key(key) for key in keys], self.timeout_s)
        except CoorddError as error:
            raise as_backend_error(error) from None

    def count(self, key: str) -> int:
        """How many have called this."""
        try:
            return _store.add(self.job.worker, self._key(key), 1, self.timeout_s)
        except CoorddError as error:
            raise as_backend_error(error) from None

    def delete(self, key: str) -> None:
        try:
            _store.delete(self.job.worker, self._key(key), self.timeout_s)
        except CoorddError as error:
            raise as_backend_error(error) from None

    # --- the end

    def leave(self, others_first: bool = True, unused: bool = True, exits: bool = False) -> None:
        """Not a collective. With `others_first` it waits for what was started here. What others have called with this rank and it has
        not fails at their timeout, or as soon as this rank has left the job: with the last of its groups (Job.leave). `unused`: no
        thread is in a call of the comm. `exits`: the program ends, and the job is left by leave_all."""
        with self._leaving:
            if self._over or self._pid != os.getpid():
                return
            self._over = True
        seconds = _job.GOODBYE_S if others_first else 0
        in_vain: Callable[[], bool] = lambda: False
        if exits:
            if not _ends.asked_to_fail():
                in_vain = self.job.come_to_the_end()
            unused = self.calls_end(seconds, in_vain)  # nobody has waited for what is executed in Python
        if unused and self.comm.finish(seconds, in_vain):
            self.comm.free()
        else:
            self.comm.abandon()
        if self in _channels:
            _channels.remove(self)
        if not exits:
            self.job.leave(others_first)


_channels: List[Channel] = []
fail_all = _job.fail_all


def leave_all() -> None:
    """At the end of the process."""
    for channel in reversed(list(_channels)):
        channel.leave(exits=True)
    _job.leave_all_at_exit()


def _abandon() -> None:
    _kept.extend(_channels)  # the parent's: nothing of them is touched in the child of a fork
    _channels.clear()


_kept: List[Channel] = []
os.register_at_fork(after_in_child=_abandon)
