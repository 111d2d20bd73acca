"""Scalars of a run for TensorBoard: step time, time in collectives, bytes, this rank's lag, size of the job.

    import coordd.tensorboard

    scalars = coordd.tensorboard.Scalars(log_dir="runs/digits")   # or Scalars(writer): whatever has add_scalar
    for batch in data:
        ...
        scalars.step()

The figures are this rank's own, as its metrics have them (``coordd_worker_*``, docs/METRICS.md): nothing is asked of other ranks or of
coordd. So each rank may write, and where one is slow its scalars say so.
"""

import os
import re
import time
import urllib.request
from typing import Any, Callable, Dict, Optional

from coordd import _running
from coordd.exceptions import InvalidArgumentError

__all__ = ["Scalars"]

_READ_TIMEOUT_S = 1.0  # for this process's own metrics, over loopback mostly
# A figure, and the metric whose values it adds up, over all labels.
_COUNTERS = {"collective_seconds": "coordd_worker_execution_seconds_sum", "payload_bytes": "coordd_worker_payload_bytes_total"}
_GAUGES = {"arrival_lag_seconds": "coordd_worker_arrival_lag_seconds"}
_SAMPLE = re.compile(r"^(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


def _sums(text: str) -> Dict[str, float]:
    """Prometheus's text: each name with the sum of its values over all labels."""
    found: Dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def _read_own_metrics() -> Dict[str, float]:
    """What this process's worker says of itself; nothing, where its metrics are off or do not answer: a picture of the run is no
    reason to end it."""
    address = _running.state.worker.metrics_address() if _running.state.worker is not None else ""
    if not address:
        return {}
    own = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy knows no way to it
    try:
        with own.open(f"http://{address}/metrics", timeout=_READ_TIMEOUT_S) as answer:
            return _sums(answer.read().decode())
    except (OSError, ValueError):
        return {}


def _made_writer(log_dir: Optional[str]) -> Any:
    """torch's, or tensorboardX's. ImportError: neither is there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as missing:
        try:
            from tensorboardX import SummaryWriter  # type: ignore[import-not-found, no-redef]
        except ImportError:
            raise ImportError("there is nothing here that writes for TensorBoard: pip install tensorboard beside torch, or "
                              "tensorboardX, or give Scalars a writer that has add_scalar(name, value, step)") from missing
    folder = os.path.join(log_dir or "runs", f"rank{_running.place().rank}")
    return SummaryWriter(folder)


class Scalars:
    """Writes scalars of this rank. One thread at a time calls it, while the process is a member (after init()).

    writer:  has ``add_scalar(name, value, step)``, as the SummaryWriter of torch.utils.tensorboard and of tensorboardX; it is left
             open. None: one of these is made, in the folder ``rankN`` of `log_dir` ("runs"), and closed by close(). ImportError:
             neither library is there.
    every:   a point is written each so many steps, and is their mean. Reading the figures takes a millisecond or so.
    prefix:  stands before the names.

    | scalar | meaning |
    |---|---|
    | ``step_seconds`` | time of a step |
    | ``collective_seconds`` | of it, from the launch of a batch of collectives to its end; batches that overlap count each |
    | ``payload_bytes`` | bytes of this rank's tensors in the collectives of a step |
    | ``arrival_lag_seconds`` | how late this rank comes to collectives, behind the first |
    | ``size`` | ranks of the job |

    Without metrics of the worker (COORDD_METRICS, which coordrun switches on) there are ``step_seconds`` and ``size`` alone.
    """

    def __init__(self, writer: Any = None, *, log_dir: Optional[str] = None, every: int = 10, prefix: str = "coordd/"):
        if every < 1:
            raise InvalidArgumentError(f"every is {every}, expected 1 or more steps", "INVALID_ARGUMENT")
        if writer is not None and not callable(getattr(writer, "add_scalar", None)):
            raise InvalidArgumentError(f"writer is a {type(writer).__name__} without add_scalar(name, value, step)", "INVALID_ARGUMENT")
        self._own_writer = writer is None
        self._writer = _made_writer(log_dir) if writer is None else writer
        self._every, self._prefix = every, prefix
        self._clock: Callable[[], float] = time.monotonic
        self._read: Callable[[], Dict[str, float]] = _read_own_metrics
        self._number = 0  # of the last step
        self._steps = 0  # since the last point
        self._began: Optional[float] = None
        self._before: Dict[str, float] = {}

    def step(self, number: Optional[int] = None) -> None:
        """At the end of a step; the first call only begins the measurement. `number`: where the point stands in the picture, as
        after a checkpoint; else steps are counted from 0. ValueError: the process is no member."""
        size = _running.place().size
        self._number = self._number + 1 if number is None else number
        if self._began is None:
            self._number = 0 if number is None else number
            self._began, self._before = self._clock(), self._read()
            return
        self._steps += 1
        if self._steps < self._every:
            return
        now, figures = self._clock(), self._read()
        self._add("step_seconds", (now - self._began) / self._steps)
        for name, metric in _COUNTERS.items():
            if metric in figures:
                self._add(name, self._grown(metric, figures[metric]) / self._steps)
        for name, metric in _GAUGES.items():
            if metric in figures:
                self._add(name, figures[metric])
        self._add("size", size)
        # The writing itself is no part of the next steps.
        self._steps, self._began = 0, self._clock()
        self._before = figures or self._before

    def _grown(self, metric: str, value: float) -> float:
        before = self._before.get(metric, 0.0)
        return value - before if value >= before else value  # another worker counts from 0

    def _add(self, name: str, value: float) -> None:
        self._writer.add_scalar(self._prefix + name, value, self._number)

    def close(self) -> None:
        """Closes the writer that was made here; one that was given is its giver's. Steps after the last point are not written."""
        if self._own_writer:
            self._writer.close()

    def __enter__(self) -> "Scalars":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
