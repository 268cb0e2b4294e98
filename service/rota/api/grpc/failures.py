"""Whatever comes of a call becomes an answer or a `Failure`: the one place where exceptions turn into error codes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that did not succeed, as a status or a stream's error will say it."""

    code: ErrorCode
    detail: str = ""
    revision: int = 0
    epoch: int = 0
    member_id: str = ""
    owner: str = ""
    first_revision: int = 0
    last_revision: int | None = None
    incarnation: str = ""


def failure_of(rejected: RejectedRequest) -> Failure:
    return Failure(
        rejected.code,
        rejected.detail,
        first_revision=rejected.first_revision,
        last_revision=rejected.last_revision,
        incarnation=rejected.incarnation,
    )


class CallFailed(Exception):
    """Raised where a reply carries an error; `outcome_of` catches it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


def failure_in(answer: Answer) -> Failure | None:
    """The failure that the answer is; None where it has no error."""
    reply = answer.reply
    if reply.error is ErrorCode.NONE:
        return None
    member_id = reply.member_id if isinstance(reply, JoinReply) else ""
    return Failure(reply.error, reply.detail, answer.revision, answer.epoch, member_id, answer.owner)


def checked(answer: Answer) -> Answer:
    """An answer without an error; raises `CallFailed` otherwise."""
    failure = failure_in(answer)
    if failure is not None:
        raise CallFailed(failure)
    return answer


def outcome_of(work: Awaitable[Outcome], operation: str) -> Coroutine[Any, Any, Outcome | Failure]:
    """Await the result of a call, or convert the exception to a failure."""
    return traced(_awaited(work, operation), operation)


def traced(work: Coroutine[Any, Any, Outcome | Failure], operation: str) -> Coroutine[Any, Any, Outcome | Failure]:
    """The same work, within a span where spans are switched on."""
    spans = tracing.spans
    return work if spans is None else _traced(spans, work, operation)


async def _traced(spans: tracing.Spans, work: Awaitable[Outcome | Failure], operation: str) -> Outcome | Failure:
    with spans.within(operation, tracing.Kind.SERVER) as span:
        outcome = await work
        code = outcome.code if isinstance(outcome, Failure) else ErrorCode.NONE
        span.note("rota.code", code.name)
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            span.failed(code.name)
        return outcome


async def _awaited(work: Awaitable[Outcome], operation: str) -> Outcome | Failure:
    try:
        return await work
    except Exception as error:
        return converted(error, operation)


def converted(error: Exception, operation: str) -> Failure:
    """The failure that an exception means; to be called where it is handled."""
    match error:
        case CallFailed():
            return error.failure
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
    retry_after_s = STATUS[failure.code].retry_after_s
    error = SessionError(
        code=failure.code.value,
        detail=failure.detail or STATUS[failure.code].title,
        member_id=failure.member_id,
        owner=failure.owner,
        retry_after_ms=None if retry_after_s is None else retry_after_s * 1000,
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
        first_revision=failure.first_revision,
        last_revision=failure.last_revision,
        incarnation=failure.incarnation,
    )
    code = grpc.StatusCode[STATUS[failure.code].grpc]
    await context.abort(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))
