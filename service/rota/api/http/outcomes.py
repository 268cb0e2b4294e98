"""Whatever comes of a request becomes an answer: the one place where exceptions turn into problem documents."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from rota.api.http.rendered import CallerGone, Rendered, render_problem, render_rejection
from rota.observability.metrics import Metrics
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.runtime.ports import StoreUnavailable

_log = logging.getLogger(__name__)

_NOBODY_THERE = Rendered(499, (), b"")
"""Never seen by anybody: the connection is gone."""


async def outcome_of(work: Awaitable[Rendered], operation: str, metrics: Metrics) -> Rendered:
    """Await the answer, or make one of what was raised instead. Counts it."""
    try:
        rendered = await work
    except Exception as error:
        rendered = _render_failure(error, operation)
    metrics.request_answered(operation, "GONE" if rendered is _NOBODY_THERE else rendered.code)
    return rendered


def _render_failure(error: Exception, operation: str) -> Rendered:
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
