"""Futures of what a GPU does, completed while the program goes on."""

import contextlib
import queue
import threading
from typing import Any, Callable, Dict, Optional

import torch

from coordd.torch._futures import Promise


class Completions:
    """A thread that waits for works in their order and completes their futures, and runs their callbacks. Thread-safe."""

    def __init__(self, name: str):
        self._name = name
        self._lock = threading.Lock()
        self._queue: "Optional[queue.SimpleQueue[Any]]" = None
        self._thread: Optional[threading.Thread] = None
        self._streams: Dict[torch.device, torch.cuda.Stream] = {}  # used by the thread alone

    def add(self, device: torch.device, finish: Callable[[], Any], promise: Promise) -> None:
        """`finish`: waits, and returns the result, on that thread. On a GPU a stream of the thread's own is current then and waits for
        the result, and the future carries that on to whoever waits for it: no thread waits for the device."""
        with self._lock:
            if self._thread is threading.current_thread():  # in a callback, which may wait for this one
                return Completions(self._name).add(device, finish, promise)
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._run, args=(self._queue,), name=self._name, daemon=True)
                self._thread.start()
        self._queue.put((device, finish, promise))

    def _on_stream(self, device: torch.device):
        if device.type != "cuda":
            return contextlib.nullcontext()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return torch.cuda.stream(self._streams[device])

    def _run(self, pending) -> None:
        while True:
            device, finish, promise = pending.get()
            try:
                with self._on_stream(device):
                    promise.set_result(finish())
            except Exception as failure:  # handed to whoever waits for the future
                promise.set_exception(failure)
            del finish, promise
