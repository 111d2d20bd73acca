"""What all calls of a group have in common: what they ask of their arguments, and how they run."""

import collections
import threading
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Sequence

import torch

from coordd.torch.distributed._channel import Channel
from coordd.torch.distributed._lane import Lane
from coordd.torch.distributed._ops import DTYPES
from coordd.torch.distributed._works import Done, Started, Work

if TYPE_CHECKING:
    from coordd.torch.distributed._gpu import GpuCalls

profiling = torch.autograd._profiler_enabled  # type: ignore[attr-defined]

_MANY_NAMES = 1024  # operations with names of their own that may be under way at a time


def write_back(own: torch.Tensor, tensor: torch.Tensor) -> None:
    """What dense() has made."""
    if own is not tensor:
        tensor.copy_(own)


def on_gpu(what: str, *lists: Sequence[torch.Tensor]) -> bool:
    """Whether they are on a GPU, rather than in host memory. RuntimeError: not all on one, or on something else."""
    device = None
    for tensors in lists:
        for tensor in tensors:
            if not (tensor.is_cpu or tensor.is_cuda):
                raise RuntimeError(f"{what}: a tensor on {tensor.device}: expected cpu or cuda")
            if device is None:
                device = tensor.device
            elif tensor.device != device:
                raise RuntimeError(f"{what}: tensors on {device} and on {tensor.device}: expected one device")
    return device is not None and device.type == "cuda"


def require_one(what: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"{what}: a list of {len(tensors)} tensors: expected one")
    return tensors[0]


def plain(tensor: torch.Tensor) -> bool:
    """Whether the library may read and write its elements where they are."""
    return (tensor.is_cpu and not tensor.is_sparse and tensor.is_contiguous() and tensor.numel() > 0 and not tensor.is_neg()
            and not (tensor.dtype.is_complex and tensor.is_conj()))


def plain_on_gpu(tensor: torch.Tensor, other: Optional[torch.Tensor] = None) -> bool:
    """The same on a GPU, of two on the same one."""
    return (tensor.is_cuda and not tensor.is_sparse and tensor.is_contiguous() and tensor.numel() > 0 and not tensor.is_neg()
            and not (tensor.dtype.is_complex and tensor.is_conj())
            and (other is None or (plain_on_gpu(other) and other.device == tensor.device)))


def misplaced(block: torch.Tensor, whole: torch.Tensor, rank: int) -> bool:
    """Whether a dense block lies in the memory of all blocks, elsewhere than this rank's, where alone the library works in place."""
    size = block.numel() * block.element_size()
    offset = block.data_ptr() - whole.data_ptr()
    return -size < offset < whole.numel() * whole.element_size() and offset != rank * size


class Calls:
    """Base of the mixins. _setup() is called once."""

    _fast_dtypes: Dict[torch.dtype, int] = DTYPES

    def _setup(self, channel: Channel, keeps_works: bool) -> None:
        self._channel = channel
        self._rank_, self._size_ = channel.rank, channel.size
        self._lane = Lane()
        channel.calls_end = self._lane.finish
        self._gpu_calls: "Optional[GpuCalls]" = None
        self._first_gpu_call = threading.Lock()
        self._done = Done()
        self._sequence = 0
        self._coalescing: Optional[List[Work]] = None
        self._names: Dict[Any, int] = collections.Counter()
        # torch before 2.8 does not keep the Python half of a Work for its C++ callers: Work::wait() would then wait for ever. What
        # is kept keeps its tensors too, so there are few, and only where it is needed.
        self._kept: Optional[Deque[Work]] = collections.deque(maxlen=256) if keeps_works else None

    @property
    def _gpu(self) -> "GpuCalls":
        """Of calls on memory of GPUs; what is only for them is imported with the first."""
        if self._gpu_calls is None:
            from coordd.torch.distributed._gpu import GpuCalls
            with self._first_gpu_call:
                if self._gpu_calls is None:
                    self._gpu_calls = GpuCalls(self._channel)
        return self._gpu_calls

    def _finish_gpu(self) -> None:
        """Waits for all that was called on GPUs before."""
        if self._gpu_calls is not None:
            self._gpu_calls.finish()

    @staticmethod
    def _blocks(opts: Any) -> bool:
        """Whether the caller waits right after the call: torch before 2.8 does not say."""
        return getattr(opts, "asyncOp", True) is False

    def _submit(self, event: str, run: Callable[[], None], result: Any, opts: Any) -> Work:
        """Runs it in the group's order. `opts` None: now."""
        self._sequence += 1
        start = self._lane.at_once if opts is None or self._blocks(opts) else self._lane.later

        def behind() -> None:
            self._channel.comm.finish(self._channel.timeout_s)  # what is copied first may be what the library still writes
            run()

        if not profiling():
            return self._note(start(behind, result))
        with torch.autograd.profiler.record_function(f"coordd:{event}"):
            return self._note(start(behind, result))

    def _start(self, kept: Any, result: Any, opts: Any, name: str, *arguments: Any) -> Optional[Work]:
        """Has the library run it in the group's order, by itself: a call of a comm, with coordd's arguments. None: its caller waits
        for it, or something is before it that is executed here, or that is to be seen by the profiler."""
        return None if self._blocks(opts) or profiling() else self._start_seen(kept, result, name, *arguments)

    def _start_seen(self, kept: Any, result: Any, name: str, *arguments: Any) -> Optional[Work]:
        """The same where its caller does not wait, nor the profiler look."""
        lane, comm = self._lane, self._channel.comm
        if not lane.lock.acquire(False):
            return None
        try:
            if not lane.idle():
                return None
            native = comm.start(name, kept, *arguments)
        finally:
            lane.lock.release()
        self._sequence += 1
        return self._note(Started(native, result, comm))

    def _enqueued(self, work: Work) -> Work:
        """A call on memory of a GPU, whose order is that of torch's streams; the profiler does not look."""
        self._sequence += 1
        return self._note(work)

    def _enqueue(self, event: str, call: Callable[..., Work], *arguments: Any) -> Work:
        """The same, made here."""
        if not profiling():
            return self._enqueued(call(*arguments))
        self._sequence += 1
        with torch.autograd.profiler.record_function(f"coordd:{event}"):
            return self._note(call(*arguments))

    def _drain(self) -> None:
        """Waits for all that was called before."""
        self._finish_gpu()
        self._lane.drain()
        self._channel.comm.finish(self._channel.timeout_s)

    def _note(self, work: Work) -> Work:
        if self._kept is not None:
            self._kept.append(work)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _name(self, *kind: Any) -> str:
        """The same on all ranks that call this as often."""
        self._names[kind] += 1
        return ".".join(map(str, (*kind, self._names[kind] % _MANY_NAMES)))

    def _require_rank(self, what: str, role: str, rank: int) -> None:
        if not 0 <= rank < self._size_:
            raise ValueError(f"{what}: {role} {rank}: expected a rank of the group, 0 to {self._size_ - 1}")

    def _require_blocks(self, what: str, large: torch.Tensor, small: torch.Tensor) -> None:
        if large.numel() != small.numel() * self._size_:
            raise ValueError(f"{what}: {large.numel()} elements and {small.numel()}: expected {self._size_} times as many, one "
                             "block for each rank")
        if large.dtype != small.dtype:
            raise ValueError(f"{what}: tensors of {large.dtype} and of {small.dtype}: expected one dtype")

    def _require_length(self, what: str, role: str, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) != self._size_:
            raise ValueError(f"{what}: {len(tensors)} {role}: expected {self._size_}, one for each rank")
