"""Whatever comes of a request becomes an answer: the one place where exceptions turn into problem documents."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from rota.api.http.rendered import CallerGone, Rendered, render_problem, render_rejection
from rota.observability import tracing
from rota.observability.metrics import Metrics
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.replica.ports import StoreUnavailable

_log = logging.getLogger(__name__)

_NOBODY_THERE = Rendered(499, (), b"")
"""Never seen by anybody: the connection is gone."""


async def outcome_of(work: Awaitable[Rendered], operation: str, metrics: Metrics) -> Rendered:
    """Await the answer, or make one of what was raised instead. Counts it."""
    rendered = await (_rendered(work, operation) if tracing.spans is None else _traced(tracing.spans, work, operation))
    metrics.request_answered(operation, "GONE" if rendered is _NOBODY_THERE else rendered.code)
    return rendered


async def _rendered(work: Awaitable[Rendered], operation: str) -> Rendered:
    try:
        return await work
    except Exception as error:
        return render_failure(error, operation)


async def _traced(spans: tracing.Spans, work: Awaitable[Rendered], operation: str) -> Rendered:
    with spans.within(operation, tracing.Kind.SERVER) as span:
        rendered = await _rendered(work, operation)
        span.note("http.response.status_code", rendered.status)
        span.note("rota.code", rendered.code.name)
        if rendered.status >= 500:
            span.failed(rendered.code.name)
        return rendered


def render_failure(error: Exception, operation: str) -> Rendered:
    """The answer for what was raised instead of one."""
    match error:
        case RejectedRequest():
            return render_rejection(error)
        case CallerGone():
            return _NOBODY_THERE
        case StoreUnavailable():
            return render_problem(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the store cannot be reached")
        case _:
            # A bug of ours. What came of the request is unknown, which is what this code means to a client.
            _log.error("a request failed", exc_info=error, extra={"operation": operation})
            return render_problem(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "an internal error; see the log", http_status=500
            )
