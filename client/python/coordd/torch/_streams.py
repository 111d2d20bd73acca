"""What the library is told of a GPU's streams, and the streams on which gradients are made (coordd.torch._gradients)."""

from typing import Any, Callable, Dict, Optional, Sequence

import torch

from coordd import _library, _native


# A place in a coordd_tensor_t seen as 64-bit numbers, as those of _native.
STREAM_WORD = _library.Tensor.stream.offset // 8


def raw_stream(device: torch.device) -> int:
    """torch's current stream of a GPU, a cudaStream_t."""
    return _raw_stream(device.index or 0)


# Costs a tenth of what a torch.cuda.Stream does, where torch has it.
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: torch.cuda.current_stream(index).cuda_stream)


class OnStream(_native.OnDevice):
    """Tensors on one GPU. Where the stream that uses the result is not the one on which memory was made, torch's allocator
    has to know, or it would give the memory away while the stream still uses it."""

    def __init__(self, device: torch.device, tensors: Sequence[Optional[torch.Tensor]]):
        self._device, self._tensors = device, tensors

    def current_stream(self) -> int:
        stream = torch.cuda.current_stream(self._device)
        for tensor in self._tensors:
            if tensor is not None and tensor.is_cuda:
                tensor.record_stream(stream)
        return stream.cuda_stream


def on_device(tensors: Sequence[Optional[torch.Tensor]]) -> Optional[OnStream]:
    """None: they are in host memory."""
    for tensor in tensors:
        if tensor is not None and tensor.is_cuda:
            return OnStream(tensor.device, tensors)
    return None


def place_on_device(structure, tensor: torch.Tensor) -> None:
    """In a coordd_tensor_t: where it is, and torch's current stream there."""
    if tensor.is_cuda:
        structure.device_kind = _library.CUDA
        structure.device_index = tensor.device.index or 0
        structure.stream = raw_stream(tensor.device)


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


class Streams:
    """The streams of a GPU on which the gradients of a unit are made: torch makes each where the forward pass was. Whoever
    submits them does so on one stream, which has to come behind all of them."""

    def __init__(self):
        self._events: Dict[Any, Any] = {}  # by stream: behind the last gradient there, whatever step it is of
        self._noted: Dict[Any, None] = {}  # those of this step

    def note(self, gradient: torch.Tensor) -> None:
        """What has been enqueued on the current stream until now belongs to a gradient of this step."""
        if not _is_on_gpu(gradient):
            return
        stream = torch.cuda.current_stream(gradient.device)
        event = self._events.get(stream)
        if event is None:
            event = self._events[stream] = torch.cuda.Event()
        event.record(stream)
        self._noted[stream] = None

    def join(self) -> None:
        """Lets the current stream wait for those of this step. This thread does not wait."""
        for stream in self._noted:
            current = torch.cuda.current_stream(stream.device)
            if stream != current:
                current.wait_event(self._events[stream])
        self._noted = {}
