"""The trace of a call that another replica has passed on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import grpc

from rota.observability import tracing


def forwarded(context: grpc.aio.ServicerContext[Any, Any], name: str) -> AbstractContextManager[object]:
    """A span in the trace that the call's metadata names, if there is tracing."""
    spans = tracing.spans
    if spans is None:
        return nullcontext()
    tracing.adopt(spans, context.invocation_metadata() or ())
    return spans.within(f"forwarded {name}", tracing.Kind.SERVER)
