"""The two classes of horovod.data.data_loader_base, to derive data loaders from.

    class Loader(AsyncDataLoaderMixin, MyLoader):   # MyLoader is a BaseDataLoader with __len__() and _iterate()
        pass
"""

import queue
import threading
from typing import Any, Iterator, Optional

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

_POLL_S = 0.1  # how soon a thread notices that nobody wants its batches any more


class BaseDataLoader:
    """Batches of _iterate(), each as _process_batch() makes it."""

    def __len__(self) -> int:
        """How many batches a pass has."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """One pass over the data."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """For subclasses: what a batch becomes before it is handed out."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        return map(self._process_batch, self._iterate())


class _Pass:
    """One pass that is read ahead. What ends it, an exception or nothing, comes last through the queue."""

    def __init__(self, batches, capacity: int):
        self._queue: "queue.Queue" = queue.Queue(capacity)
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(batches,), name="async-loader", daemon=True)
        self._thread.start()

    def _read(self, batches) -> None:
        try:
            for batch in batches():
                if not self._put((True, batch)):
                    return
            self._put((False, None))
        except Exception as error:  # handed to whoever iterates
            self._put((False, error))

    def _put(self, item) -> bool:
        while not self._unwanted.is_set():
            try:
                self._queue.put(item, timeout=_POLL_S)
                return True
            except queue.Full:
                pass
        return False

    def batches(self) -> Iterator[Any]:
        while not self._unwanted.is_set():
            try:
                is_batch, value = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if not is_batch:
                if value is not None:
                    raise value
                return
            yield value

    def close(self) -> None:
        self._unwanted.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


class AsyncDataLoaderMixin:
    """In front of a BaseDataLoader among the bases: each pass is read by a thread, up to `async_loader_queue_size` batches ahead;
    0: it is not."""

    def __init__(self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any):
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader  # there for Horovod's sake
        self._pass: Optional[_Pass] = None
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends the pass that is under way, and its thread."""
        current, self._pass = self._pass, None
        if current is not None:
            current.close()

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        self.close_async_loader()
        current = self._pass = _Pass(self._iterate, self.async_loader_queue_size)  # type: ignore[attr-defined]
        try:
            for batch in current.batches():
                yield self._process_batch(batch)  # type: ignore[attr-defined]
        finally:
            current.close()
