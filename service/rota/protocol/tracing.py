"""Spans, if a server is configured to create them; otherwise each instrumented call only checks one variable."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol

Value = str | int | bool
TRACEPARENT = "traceparent"
"""The header of W3C's Trace Context, in HTTP and in the metadata of gRPC."""


class Kind(Enum):
    """The side of a call that a span shows, as in OpenTelemetry."""

    INSIDE = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span(Protocol):
    """The operation in progress."""

    def note(self, name: str, value: Value) -> None:
        """Add an attribute that is neither a secret nor a member's metadata."""

    def failed(self, code: str) -> None:
        """Mark the operation as failed because of the server."""


class Spans(Protocol):
    """The creation of spans. The active span is that of the asyncio task."""

    def adopt(self, traceparent: str) -> None:
        """Continue the trace of this task's caller."""

    def within(
        self, name: str, kind: Kind = Kind.INSIDE, noted: Mapping[str, Value] | None = None, links: Iterable[Any] = ()
    ) -> AbstractContextManager[Span]:
        """Create a span while the block runs; `links` are results of `here` for spans of other traces."""

    def here(self) -> Any:
        """Return the active span, for the links of another one; None without a recorded span."""


spans: Spans | None = None
"""None until `install`, which means no tracing."""


def install(made: Spans | None) -> None:
    """Create all spans of this process with `made`."""
    global spans  # noqa: PLW0603 — as with logging, there is one place for a process
    spans = made


def adopt(spans: Spans, carrier: Iterable[tuple[Any, Any]]) -> None:
    """Continue the trace that a call's headers or metadata name."""
    for name, value in carrier:
        if name in (TRACEPARENT, b"traceparent"):
            spans.adopt(value.decode("latin-1") if isinstance(value, bytes) else value)


def traceparent() -> str | None:
    """Return the active span for the next call, also in programs with their own tracing.

    None without tracing, or if the active span has ended: background tasks still have the span in which they were
    started, but are not part of it.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    span = api.get_current_span()
    context = span.get_span_context()
    if not context.is_valid or not (span.is_recording() or isinstance(span, api.NonRecordingSpan)):
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def carried() -> tuple[tuple[str, str], ...]:
    """Return the headers, or the metadata, that carry `traceparent`."""
    parent = traceparent()
    return () if parent is None else ((TRACEPARENT, parent),)
