"""Streams of a GPU on which gradients are made. See coordd.torch._gradients."""

from typing import Any, Dict

import torch


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
