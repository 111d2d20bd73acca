"""Spans for OpenTelemetry: which, with a provider that only remembers; and over OTLP/HTTP, where its library is."""

import http.server
import importlib.util
import os
import sys
import threading
import types
import unittest
import unittest.mock
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))

from coordd import _basics, _native, _running, opentelemetry  # noqa: E402

HAS_SDK = all(importlib.util.find_spec(name) for name in ("google.protobuf", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto")) \
    if importlib.util.find_spec("opentelemetry") and importlib.util.find_spec("google") else False


class Provider:
    """OpenTelemetry's, as far as it is used: keeps what it is told."""

    def __init__(self):
        self.said = []
        self.ended = False

    def get_tracer(self, _name):
        return self

    def start_span(self, name, start_time, attributes):
        return types.SimpleNamespace(end=lambda end_time: self.said.append((name, start_time, end_time, attributes)))

    def shutdown(self):
        self.ended = True


def place(rank, size, generation):
    return _native.Place(**{**{name: 0 for name in _native.Place._fields}, "rank": rank, "size": size, "generation": generation})


def of(rank, size, generation, **more):
    return {"coordd.rank": rank, "coordd.size": size, "coordd.generation": generation,
            **{f"coordd.{name}": value for name, value in more.items()}}


class Worker:
    """A member whose next generation has one rank less."""

    def await_generation(self, _timeout):
        return place(1, 3, 8)

    place = place(1, 3, 8)


class Spans(unittest.TestCase):
    def setUp(self):
        held = unittest.mock.patch.multiple(_running.state, worker=Worker(), place=place(2, 4, 7), own_job=True)
        followed = unittest.mock.patch.object(_basics._process_sets, "follow")
        for one in (held, followed):
            one.start()
            self.addCleanup(one.stop)
        cleared = {name: "" for name in opentelemetry._ENDPOINTS}
        environment = unittest.mock.patch.dict(os.environ, cleared)
        environment.start()
        self.addCleanup(environment.stop)

    def made(self):
        provider = Provider()
        spans = opentelemetry.Spans(provider)
        self.addCleanup(spans.close)
        spans._clock = iter(range(100, 200)).__next__
        return provider, spans

    def test_a_step_is_from_the_end_of_the_one_before(self):
        provider, spans = self.made()
        spans.step()
        spans.step()
        spans.step(41)
        self.assertEqual(provider.said, [("coordd.step", 100, 101, of(2, 4, 7, step=0)), ("coordd.step", 101, 102, of(2, 4, 7, step=41))])

    def test_a_recovery_is_the_wait_for_the_next_generation(self):
        provider, spans = self.made()
        spans.step()
        _basics.await_generation()
        self.assertEqual(provider.said, [("coordd.recovery", 101, 102, of(1, 3, 8, size_before=4))])
        spans.step()
        spans.step()
        self.assertEqual(provider.said[1:], [("coordd.step", 103, 104, of(1, 3, 8, step=0))], "none is of before and after")

    def test_an_end_that_nobody_waits_for_is_none(self):
        provider, _ = self.made()
        _basics._change_membership()
        self.assertEqual(provider.said, [])

    def test_a_closed_one_says_nothing_and_leaves_the_provider_to_its_giver(self):
        provider, spans = self.made()
        spans.step()
        spans.close()
        spans.close()
        spans.step()
        _basics.await_generation()
        self.assertEqual((provider.said, provider.ended), ([], False))

    def test_without_the_variable_nothing_is_loaded(self):
        with unittest.mock.patch.dict(sys.modules, {"opentelemetry": None}), warnings.catch_warnings():
            warnings.simplefilter("error")
            with opentelemetry.Spans() as spans:
                spans.step()
                spans.step()

    def test_without_the_library_it_is_a_warning(self):
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
        absent = {"opentelemetry": None, "opentelemetry.exporter.otlp.proto.http.trace_exporter": None}
        with unittest.mock.patch.dict(sys.modules, absent), self.assertWarnsRegex(UserWarning, "no spans are sent"):
            opentelemetry.Spans().step()

    @unittest.skipUnless(HAS_SDK, "no opentelemetry-sdk here")
    def test_a_collector_gets_them_over_http(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        bodies = []

        class Collector(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bodies.append((self.path, body, self.headers.get("Content-Encoding")))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
        threading.Thread(target=server.serve_forever, name="collector", daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        os.environ.update(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}", OTEL_SERVICE_NAME="train7", NO_PROXY="*")
        with opentelemetry.Spans() as spans:
            spans.step()
            spans.step()
        path, body, encoding = bodies[0]
        self.assertEqual((path, encoding), ("/v1/traces", None))
        sent = ExportTraceServiceRequest.FromString(body).resource_spans[0]
        self.assertIn("train7", [one.value.string_value for one in sent.resource.attributes if one.key == "service.name"])
        span = sent.scope_spans[0].spans[0]
        self.assertEqual((span.name, {one.key: one.value.int_value for one in span.attributes}), ("coordd.step", of(2, 4, 7, step=0)))


if __name__ == "__main__":
    unittest.main()
