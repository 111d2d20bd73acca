"""Sends and receives.

A receive from any source asks every rank for its next message of that tag, and takes the first that comes; what it has asked the others
for stays asked, and is what the next receive from them gets. So all messages of such a tag have one size.
"""

import collections
import threading
import time
from typing import Any, Deque, Dict, List, Tuple

import torch
import torch.distributed as dist

from coordd import _native
from coordd.torch.distributed._calls import Calls, on_gpu, profiling, require_one, write_back
from coordd.torch.distributed._ops import dense
from coordd.torch.distributed._works import Named, Several, Work

_FIRST_LOOK_S, _LONGEST_LOOK_S = 20e-6, 1e-3


class _AnySource(Work):
    """A receive from whoever sends first."""

    def __init__(self, group: "PointToPoint", tensor: torch.Tensor, tag: int):
        super().__init__([tensor])
        self._group, self._tensor, self._tag = group, tensor, tag
        self._looks = threading.Lock()

    def is_completed(self):
        if not self._complete:
            self._look()
        return self._complete

    def _look(self) -> None:
        with self._looks:
            if self._complete:
                return
            try:
                # Another receive from any source may have taken what a source was asked for.
                self._group._ask_all(self._tensor.numel() * self._tensor.element_size(), self._tag)
                found = self._group._first_of(self._tag)
                if found is None:
                    return
                source, work, received = found
                self.source = source
                work.wait()
                with torch.no_grad():
                    self._tensor.detach().copy_(received.view(self._tensor.dtype).view(self._tensor.shape))
            except Exception as error:
                self.finish(error)
            else:
                self.finish()

    def wait(self, timeout=None):
        pause, end = _FIRST_LOOK_S, time.monotonic() + (timeout.total_seconds() if timeout else self._group._channel.timeout_s)
        while not self.is_completed():
            if time.monotonic() > end:
                raise dist.DistBackendError("coordd: the timeout is over: no rank has sent anything [DEADLINE_EXCEEDED]")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_S)
        return self._checked()

    def get_future(self):
        future = super().get_future()
        if not self._complete:
            threading.Thread(target=self._wait_quietly, name="coordd-c10d-any", daemon=True).start()
        return future

    def _wait_quietly(self):
        try:
            self.wait()
        except Exception as error:
            if not self._complete:
                self.finish(error)


class PointToPoint(Calls):
    """Mixin of a group."""

    _asked: Dict[Tuple[int, int], Tuple[Named, torch.Tensor]]  # (source, tag): receives that nobody has taken
    _under_way: Deque[Tuple[_native.Work, torch.Tensor]]  # whose memory the library uses

    def _setup_point_to_point(self) -> None:
        self._asked, self._under_way = {}, collections.deque()
        self._asking = threading.Lock()

    def _hold(self, native: _native.Work, tensor: torch.Tensor) -> None:
        self._under_way.append((native, tensor))
        while self._under_way and self._under_way[0][0].done():
            self._under_way.popleft()

    def send(self, tensors: List[torch.Tensor], dst: int, tag: int = 0):
        tensor = dense(require_one("send", tensors).detach())
        self._require_rank("send", "destination", dst)
        name = self._name("torch.p2p", self._rank_, dst, tag)
        if on_gpu("send", tensors):
            return self._begun("send", self._gpu.send(name, tensor, dst, tensors))
        native = self._channel.send(name, tensor, dst)
        self._hold(native, tensor)
        return self._begun("send", Named(native, tensors, self._channel.timeout_s))

    def recv(self, tensors: List[torch.Tensor], src: int, tag: int = 0):
        target = require_one("recv", tensors).detach()
        self._require_rank("recv", "source", src)
        if on_gpu("recv", tensors):
            return self._begun("recv", self._gpu.receive(self._name("torch.p2p", src, self._rank_, tag), target, src, tensors))
        with self._asking:
            asked = self._asked.pop((src, tag), None)
        if asked is not None:
            work, received = asked
            work.result_to(tensors, lambda: target.copy_(received.view(target.dtype).view(target.shape)))
            return self._begun("recv", work)
        own = dense(target)
        native = self._channel.receive(self._name("torch.p2p", src, self._rank_, tag), own, src)
        self._hold(native, own)
        behind = None if own is target else lambda: write_back(own, target)
        return self._begun("recv", Named(native, tensors, self._channel.timeout_s, src, behind))

    def recv_anysource(self, tensors: List[torch.Tensor], tag: int = 0):
        tensor = require_one("recv", tensors)
        if on_gpu("recv", tensors):
            raise RuntimeError(f"recv: from any source into a tensor on {tensor.device}: expected a source, or host memory")
        self._ask_all(tensor.numel() * tensor.element_size(), tag)
        return self._begun("recvAnySource", _AnySource(self, tensor, tag))

    def _ask_all(self, size: int, tag: int) -> None:
        """Each source that is not asked already for its next message of the tag."""
        with self._asking:
            for source in range(self._size_):
                if source == self._rank_ or (source, tag) in self._asked:
                    continue
                received = torch.empty(size, dtype=torch.uint8)
                native = self._channel.receive(self._name("torch.p2p", source, self._rank_, tag), received, source)
                self._hold(native, received)
                self._asked[source, tag] = (Named(native, None, self._channel.timeout_s, source), received)

    def _first_of(self, tag: int) -> Any:
        """(source, work, bytes) of a receive that has ended, once; None: there is none yet."""
        with self._asking:
            for (source, of), (work, received) in self._asked.items():
                if of == tag and work._native.done():
                    del self._asked[source, of]
                    return source, work, received
        return None

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
