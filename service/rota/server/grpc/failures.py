"""Errors as gRPC says them: a status, or an event of a session stream."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import nullcontext
from typing import Any, NoReturn, TypeVar

import grpc

from rota.core.replica.ports import Answer
from rota.protocol import tracing
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.wire.rpc_status import DETAILS_KEY, rpc_status
from rota.protocol.wire.status import STATUS
from rota.server.failures import rejection_in, rejection_of
from rota.v1.coordinator_pb2 import SessionError, SessionEvent

Outcome = TypeVar("Outcome")


def checked(answer: Answer) -> Answer:
    """An answer without an error; raises the rejection that it is otherwise."""
    if answer.reply.error is not ErrorCode.NONE:
        raise rejection_in(answer)
    return answer


async def outcome_of(work: Awaitable[Outcome], operation: str) -> Outcome | RejectedRequest:
    """Await the result of a call, or the rejection that its exception means; within a span if spans are switched on."""
    spans = tracing.spans
    with nullcontext() if spans is None else spans.within(operation, tracing.Kind.SERVER) as span:
        outcome: Outcome | RejectedRequest
        try:
            outcome = await work
        except Exception as error:
            outcome = rejection_of(error, operation)
        if span is not None:
            code = outcome.code if isinstance(outcome, RejectedRequest) else ErrorCode.NONE
            span.note("rota.code", code.name)
            if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                span.failed(code.name)
        return outcome


def error_event(call: int, rejected: RejectedRequest) -> SessionEvent:
    """The answer on a session stream to a call that has failed."""
    row = STATUS[rejected.code]
    error = SessionError(
        code=rejected.code.value,
        detail=rejected.detail or row.title,
        retry_after_ms=None if row.retry_after_s is None else row.retry_after_s * 1000,
        **{name: value for name, value in rejected.facts.items() if name in SessionError.DESCRIPTOR.fields_by_name},
    )
    return SessionEvent(call=call, error=error)


async def abort(context: grpc.aio.ServicerContext[Any, Any], rejected: RejectedRequest) -> NoReturn:
    """End the call with the rejection's status."""
    status = rpc_status(rejected.code, rejected.detail, **{"revision": 0, "epoch": 0, **rejected.facts})
    code = grpc.StatusCode[STATUS[rejected.code].grpc]
    await context.abort(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))
