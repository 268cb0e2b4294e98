"""Spans, where a server was configured to make them; otherwise each place that could make one looks at one variable."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol

Value = str | int | bool
TRACEPARENT = "traceparent"
"""The header of W3C's Trace Context, over HTTP and in the metadata of gRPC."""


class Kind(Enum):
    """Which side of a call a span shows, as OpenTelemetry has it."""

    INSIDE = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span(Protocol):
    """The operation in progress."""

    def note(self, name: str, value: Value) -> None:
        """Say something about it that is neither a secret nor a member's metadata."""

    def failed(self, code: str) -> None:
        """It failed because of the server."""


class Spans(Protocol):
    """Where spans are made. Which of them is active is known for each asyncio task."""

    def adopt(self, traceparent: str) -> None:
        """What this task does from now on belongs to the trace of its caller."""

    def within(
        self, name: str, kind: Kind = Kind.INSIDE, noted: Mapping[str, Value] | None = None, links: Iterable[Any] = ()
    ) -> AbstractContextManager[Span]:
        """A span for as long as the block runs; `links` came from `here`, from spans of other traces."""

    def here(self) -> Any:
        """The active span, for the links of another one; None where there is none that is recorded."""


spans: Spans | None = None
"""None until `install`: there is no tracing."""


def install(made: Spans | None) -> None:
    """Let all of this process make its spans there."""
    global spans  # noqa: PLW0603 — as with logging, there is one place for a process
    spans = made


def adopt(spans: Spans, carrier: Iterable[tuple[Any, Any]]) -> None:
    """What this task does from now on belongs to the trace that a call's headers, or its metadata, name."""
    for name, value in carrier:
        if name in (TRACEPARENT, b"traceparent"):
            spans.adopt(value.decode("latin-1") if isinstance(value, bytes) else value)


def traceparent() -> str | None:
    """The active span for the next call, also in programs with tracing of their own.

    None without tracing, or where the active span has ended: tasks in the background still have the one in which
    they were started, and are no part of it.
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
    """The headers, or the metadata, that carry `traceparent`."""
    parent = traceparent()
    return () if parent is None else ((TRACEPARENT, parent),)
