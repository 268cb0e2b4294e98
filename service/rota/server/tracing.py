"""Export of spans to a collector."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from rota.protocol import tracing
from rota.server.http_server import CannotListen


@contextmanager
def traced(otlp: str | None) -> Iterator[None]:
    """Send the spans of this process to a collector while the block runs; raises `CannotListen` without `rota[otel]`.

    OpenTelemetry's own environment variables configure the sampling and the name of the service.
    """
    if otlp is None:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from rota.server.observability.otel import OtelSpans
    except ImportError as error:
        raise CannotListen(f"tracing is not installed ({error}): pip install 'rota[otel]'") from error

    named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "rota"), "service.version": version("rota")}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{otlp.rstrip('/')}/v1/traces")))
    tracing.install(OtelSpans(provider))
    try:
        yield
    finally:
        tracing.install(None)
        provider.shutdown()
