"""Results of calls that did not succeed: the one place where exceptions become error codes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc

from rota.observability import tracing
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import JoinReply
from rota.replica.ports import Answer, StoreUnavailable
from rota.v1.coordinator_pb2 import SessionError, SessionEvent
from rota.wire.rpc_status import DETAILS_KEY, rpc_status
from rota.wire.status import STATUS

_log = logging.getLogger(__name__)
Outcome = TypeVar("Outcome")


@dataclass(eq=False)
class Failure(Exception):
    """A call that did not succeed, as a status or a stream's error will say it."""

    code: ErrorCode
    detail: str = ""
    revision: int = 0
    epoch: int = 0
    member_id: str = ""
    owner: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """Those of a `RejectedRequest`."""


def failure_of(rejected: RejectedRequest) -> Failure:
    return Failure(rejected.code, rejected.detail, facts=rejected.facts)


def checked(answer: Answer) -> Answer:
    """An answer without an error; raises the `Failure` that it is otherwise."""
    reply = answer.reply
    if reply.error is ErrorCode.NONE:
        return answer
    member_id = reply.member_id if isinstance(reply, JoinReply) else ""
    raise Failure(reply.error, reply.detail, answer.revision, answer.epoch, member_id, answer.owner)


async def outcome_of(work: Awaitable[Outcome], operation: str) -> Outcome | Failure:
    """Await the result of a call, or convert its exception to a failure; within a span if spans are switched on."""
    spans = tracing.spans
    with nullcontext() if spans is None else spans.within(operation, tracing.Kind.SERVER) as span:
        outcome: Outcome | Failure
        try:
            outcome = await work
        except Exception as error:
            outcome = converted(error, operation)
        if span is not None:
            code = outcome.code if isinstance(outcome, Failure) else ErrorCode.NONE
            span.note("rota.code", code.name)
            if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                span.failed(code.name)
        return outcome


def converted(error: Exception, operation: str) -> Failure:
    """The failure that an exception means; to be called where it is handled."""
    match error:
        case Failure():
            return error.with_traceback(None)  # Its frames have the request.
        case RejectedRequest():
            return failure_of(error)
        case StoreUnavailable():
            return Failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the store cannot be reached")
        case MemoryError():
            _log.error("the server is short of memory, so it rejects a request", extra={"operation": operation})
            return Failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the server is short of memory")
        case _:
            # A bug of ours. What came of the request is unknown, which is what this code means to a client.
            _log.exception("a request failed", extra={"operation": operation})
            return Failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, "an internal error; see the log")


def error_event(call: int, failure: Failure) -> SessionEvent:
    """The answer on a session stream to a call that has failed."""
    row = STATUS[failure.code]
    error = SessionError(
        code=failure.code.value,
        detail=failure.detail or row.title,
        member_id=failure.member_id,
        owner=failure.owner,
        retry_after_ms=None if row.retry_after_s is None else row.retry_after_s * 1000,
        revision=failure.revision,
        epoch=failure.epoch,
    )
    return SessionEvent(call=call, error=error)


async def abort(context: grpc.aio.ServicerContext[Any, Any], failure: Failure) -> NoReturn:
    """End the call with the failure's status."""
    status = rpc_status(
        failure.code,
        failure.detail,
        revision=failure.revision,
        epoch=failure.epoch,
        member_id=failure.member_id,
        owner=failure.owner,
        **failure.facts,
    )
    code = grpc.StatusCode[STATUS[failure.code].grpc]
    await context.abort(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))
