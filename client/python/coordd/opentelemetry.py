"""Spans of steps and recoveries for OpenTelemetry, over OTLP/HTTP.

    import coordd.opentelemetry

    spans = coordd.opentelemetry.Spans()
    for batch in data:
        ...
        spans.step()
    spans.close()

Nothing is sent, and nothing loaded, unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set. What is sent is
the work of OpenTelemetry's own library (``pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http``), so its other
variables hold too: OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, ...
"""

import os
import time
import warnings
from typing import Any, Callable, Optional

from coordd import _running

__all__ = ["Spans"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def _made_provider() -> Any:
    """A provider that sends by OTLP/HTTP; None: nobody wants it, or the library is not there, which is a warning."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # type: ignore[import-not-found, unused-ignore]
        from opentelemetry.sdk.resources import Resource  # type: ignore[import-not-found, unused-ignore]
        from opentelemetry.sdk.trace import TracerProvider  # type: ignore[import-not-found, unused-ignore]
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        warnings.warn(f"no spans are sent, although OTEL_EXPORTER_OTLP_ENDPOINT is set: {error}; expected opentelemetry-sdk and "
                      "opentelemetry-exporter-otlp-proto-http", stacklevel=3)
        return None
    named = os.environ.get("OTEL_SERVICE_NAME") or os.environ.get("COORDD_JOB_ID") or "coordd"
    provider = TracerProvider(resource=Resource.create({"service.name": named}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Spans:
    """Spans of this rank. One thread at a time calls it, while the process is a member (after init()).

    provider: OpenTelemetry's TracerProvider, which stays its giver's. None: one is made, as the variables say, and ended by close().

    | span | from, to | attributes, beside ``coordd.rank``, ``coordd.size``, ``coordd.generation`` |
    |---|---|---|
    | ``coordd.step`` | the end of the step before, the end of this one | ``coordd.step``, its number |
    | ``coordd.recovery`` | this rank begins to wait for the next generation, it is a member of it | ``coordd.size_before`` |

    A recovery is whatever coordd.elastic does when members are lost, or join; a step in which one happened is not sent.
    """

    def __init__(self, provider: Any = None):
        self._own_provider = provider is None
        self._provider = _made_provider() if provider is None else provider
        self._tracer = self._provider.get_tracer("coordd") if self._provider is not None else None
        self._clock: Callable[[], int] = time.time_ns
        self._step_began: Optional[int] = None
        self._number = -1  # of the last step
        self._waits_since: Optional[int] = None
        self._size_before = 0
        self._hooks = ((_running.state.before_change, self._wait), (_running.state.at_end, self._changed))
        for calls, hook in self._hooks if self._tracer is not None else ():
            calls.append(hook)

    def step(self, number: Optional[int] = None) -> None:
        """At the end of a step; the first call only begins. `number`: of the step, as after a checkpoint; else they are counted from
        0. ValueError: spans are sent, and the process is no member."""
        if self._tracer is None:
            return
        now = self._clock()
        if self._step_began is not None:
            self._number = self._number + 1 if number is None else number
            self._send("coordd.step", self._step_began, now, {"coordd.step": self._number})
        self._step_began = now

    def close(self) -> None:
        """Sends what is left, where the provider was made here. step() does nothing any more. May be called again."""
        if self._tracer is None:
            return
        for calls, hook in self._hooks:
            calls.remove(hook)
        self._tracer = None
        if self._own_provider:
            self._provider.shutdown()

    def __enter__(self) -> "Spans":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _wait(self) -> None:
        self._waits_since = self._clock()
        self._size_before = _running.state.place.size if _running.state.place is not None else 0

    def _changed(self) -> None:
        """Also called by shutdown(), which nobody waits for."""
        began, self._waits_since = self._waits_since, None
        self._step_began = None
        if began is not None and _running.state.place is not None:
            self._send("coordd.recovery", began, self._clock(), {"coordd.size_before": self._size_before})

    def _send(self, name: str, begin: int, end: int, more: dict) -> None:
        place = _running.place()
        attributes = {"coordd.rank": place.rank, "coordd.size": place.size, "coordd.generation": place.generation, **more}
        assert self._tracer is not None
        self._tracer.start_span(name, start_time=begin, attributes=attributes).end(end_time=end)
