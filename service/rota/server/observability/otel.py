"""Spans by OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rota.protocol.tracing import TRACEPARENT, Kind, Span, Value

_KINDS = {
    Kind.INSIDE: trace.SpanKind.INTERNAL,
    Kind.SERVER: trace.SpanKind.SERVER,
    Kind.CLIENT: trace.SpanKind.CLIENT,
}
_w3c = TraceContextTextMapPropagator()


class OtelSpans:
    """Spans of a tracer provider, under the instrumentation scope `rota`."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("rota")

    def adopt(self, traceparent: str) -> None:
        context.attach(_w3c.extract({TRACEPARENT: traceparent}))

    @contextmanager
    def within(
        self, name: str, kind: Kind = Kind.INSIDE, noted: Mapping[str, Value] | None = None, links: Iterable[Any] = ()
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            kind=_KINDS[kind],
            attributes=noted,
            links=[trace.Link(each) for each in links],
            # An exception's text may quote a caller's message.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield _OtelSpan(span)

    def here(self) -> Any:
        active = trace.get_current_span()
        return active.get_span_context() if active.is_recording() else None


class _OtelSpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def note(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, value)

    def failed(self, code: str) -> None:
        self._span.set_status(trace.StatusCode.ERROR, code)
