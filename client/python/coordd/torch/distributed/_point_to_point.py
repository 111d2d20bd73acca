"""Sends and receives: messages of the group's comm, which nothing is negotiated for."""

import collections
import threading
import time
from typing import Any, Callable, Deque, List, Optional, Tuple

import torch
import torch.distributed as dist

from coordd import _native
from coordd.torch.distributed._calls import Calls, on_gpu, plain, profiling, require_one, write_back
from coordd.torch.distributed._comm import DEADLINE_EXCEEDED
from coordd.torch.distributed._errors import backend_error
from coordd.torch.distributed._ops import dense
from coordd.torch.distributed._works import NOTHING, Native, Several, Work


class Message(Native):
    """A send or a receive of a comm, which has no deadline of its own."""

    _timed = False  # a thread waits for it

    def __init__(self, group: "PointToPoint", native: _native.Work, result: Any, tag: int, source: int = -1,
                 destination: Optional[int] = None, behind: Optional[Callable[[], Any]] = None):
        """`source` -1: any rank of the group. `destination`: of a send, None of a receive."""
        super().__init__(native, result, group._channel.timeout_s)
        self._group, self._behind, self.source = group, behind, source
        self._tag, self._destination = tag, destination
        self._deadline = time.monotonic() + self._timeout_s

    def _call(self) -> str:
        if self._destination is not None:
            return f"send of tag {self._tag} to rank {self._destination} of the group"
        return f"receive of tag {self._tag} from " + (f"rank {self.source} of the group" if self.source >= 0 else "any rank")

    def get_future(self):
        future = super().get_future()
        if future is not NOTHING and not self._complete and not self._timed:
            self._timed = True  # somebody has to see that its time is over
            threading.Thread(target=self._wait_quietly, name="coordd-c10d-message", daemon=True).start()
        return future

    def _wait_quietly(self) -> None:
        try:
            self.wait()
        except Exception:
            pass  # the future has it

    def _await(self) -> None:
        channel = self._group._channel
        status = (channel.await_receive if self._destination is None else channel.await_send)(self._native, self._deadline)
        if status == DEADLINE_EXCEEDED:
            raise dist.DistBackendError(  # type: ignore[attr-defined]
                f"coordd: the timeout of {self._timeout_s:g} s is over: {self._call()}, which was not there [DEADLINE_EXCEEDED]")
        if status != 0:
            raise backend_error(status, self._timeout_s)
        if self.source < 0:
            self.source = self._group._channel.sender_of(self._native)
        if self._behind is not None:
            with torch.no_grad():
                self._behind()


class PointToPoint(Calls):
    """Mixin of a group."""

    _under_way: Deque[Tuple[_native.Work, torch.Tensor]]  # whose memory the library uses

    def _setup_point_to_point(self) -> None:
        self._under_way = collections.deque()
        self._letting_go = threading.Lock()

    def _hold(self, native: _native.Work, tensor: torch.Tensor) -> None:
        under_way = self._under_way
        if under_way and self._letting_go.acquire(False):  # of two threads one: the other would take what is still in use
            try:
                while under_way and under_way[0][0].done():
                    under_way.popleft()
            finally:
                self._letting_go.release()
        under_way.append((native, tensor))

    def _is_simple(self, tensors: List[torch.Tensor], peer: int) -> bool:
        """Whether there is nothing to check or to copy first, nor anybody who looks."""
        return len(tensors) == 1 and 0 <= peer < self._size_ and not profiling() and plain(tensors[0])

    def send(self, tensors: List[torch.Tensor], dst: int, tag: int = 0):
        if self._is_simple(tensors, dst):
            native = self._channel.send(tensors[0], dst, tag)
            self._hold(native, tensors[0])
            return self._note(Message(self, native, tensors, tag, self._rank_, dst))
        tensor = dense(require_one("send", tensors).detach())
        self._require_rank("send", "destination", dst)
        if on_gpu("send", tensors):
            return self._begun("send", self._gpu.send(self._name("torch.p2p", self._rank_, dst, tag), tensor, dst, tensors))
        native = self._channel.send(tensor, dst, tag)
        self._hold(native, tensor)
        return self._begun("send", Message(self, native, tensors, tag, self._rank_, dst))

    def recv(self, tensors: List[torch.Tensor], src: int, tag: int = 0):
        if self._is_simple(tensors, src):
            native = self._channel.receive(tensors[0], src, tag)
            self._hold(native, tensors[0])
            return self._note(Message(self, native, tensors, tag, src))
        target = require_one("recv", tensors).detach()
        self._require_rank("recv", "source", src)
        if on_gpu("recv", tensors):
            return self._begun("recv", self._gpu.receive(self._name("torch.p2p", src, self._rank_, tag), target, src, tensors))
        return self._begun("recv", self._receive(target, src, tag, tensors))

    def recv_anysource(self, tensors: List[torch.Tensor], tag: int = 0):
        target = require_one("recv", tensors).detach()
        if on_gpu("recv", tensors):
            raise RuntimeError(f"recv: from any source into a tensor on {target.device}: expected a source, or host memory")
        return self._begun("recvAnySource", self._receive(target, -1, tag, tensors))

    def _receive(self, target: torch.Tensor, source: int, tag: int, tensors: List[torch.Tensor]) -> Message:
        own = dense(target)
        native = self._channel.receive(own, source, tag)
        self._hold(native, own)
        return Message(self, native, tensors, tag, source, None, None if own is target else lambda: write_back(own, target))

    def _begun(self, event: str, work: Work) -> Work:
        if profiling():
            with torch.autograd.profiler.record_function(f"coordd:{event}"):
                pass
        return self._note(work)

    # --- several at a time: nothing is saved, the works are waited for together

    def start_coalescing(self):
        self._coalescing = []

    def end_coalescing(self):
        works, self._coalescing = self._coalescing or [], None
        return self._note(Several(works))

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing
