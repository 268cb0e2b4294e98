"""The content of an HTTP answer: a reply, an error of Rota's, or an answer of another program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
from msgspec import structs

from rota.client.errors import CoordinatorError, CoordinatorUnreachable, error_in
from rota.client.transports.causes import foreign, foreign_status
from rota.client.transports.port import GroupEvent
from rota.protocol.calls import REPLY_OF, refuse
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import JoinReply, LeaveGroup, LeaveReply, LeftMember, Reply, Request
from rota.protocol.wire.documents import parse_document
from rota.protocol.wire.problems import Problem, decode_problem, detail_at, retry_after_ms, unknown_code
from rota.protocol.wire.replies import MalformedReply, Received, decode_reply

MAX_REPLY_BYTES = 256 * 1024 * 1024
"""Far larger than the members of the largest group with their metadata."""
MAX_PROBLEM_BYTES = 1024 * 1024
_OF_A_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A response that was read to its end, or to the bound on its size."""

    status: int
    headers: httpx.Headers
    body: bytes | None
    """Return None if the body is larger than any reply of Rota."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status <= 299

    @property
    def document(self) -> dict[str, Any] | None:
        try:
            return parse_document(self.body) if self.body else None
        except RejectedRequest:
            return None


async def read_answer(response: httpx.Response) -> HttpAnswer:
    """Read a response of any size in bounded memory."""
    bound = MAX_REPLY_BYTES if response.is_success else MAX_PROBLEM_BYTES
    chunks, size = [], 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > bound:
            return HttpAnswer(response.status_code, response.headers, None)
        chunks.append(chunk)
    return HttpAnswer(response.status_code, response.headers, b"".join(chunks))


def received_of(request: Request, answer: HttpAnswer, address: str) -> Received:
    """Return the reply in an answer; raise `CoordinatorUnreachable` for an answer of another program."""
    if not answer.is_success:
        problem = problem_in(answer, address)
        return Received(_refused(request, problem), problem.revision, problem.epoch, problem.retry_after_ms)
    document = answer.document
    if document is None:
        raise foreign(f"the answer from {address} is no JSON object")
    try:
        return decode_reply(REPLY_OF[type(request)], document)
    except MalformedReply as error:
        raise foreign(f"the answer from {address} is no reply of Rota's ({error})") from error


def refusal_in(answer: HttpAnswer, address: str) -> CoordinatorError:
    """Return the error in an answer to a call other than a request."""
    try:
        problem = problem_in(answer, address)
    except CoordinatorUnreachable as failure:
        return failure
    return error_in(problem)


def problem_in(answer: HttpAnswer, address: str) -> Problem:
    """Return Rota's own error in an answer. Of a proxy's errors only 429 is treated as Rota's.

    Raises `CoordinatorUnreachable` for every other answer, because the outcome of the request is unknown.
    """
    document, retry_after = answer.document or {}, answer.headers.get("retry-after", "")
    problem = decode_problem(answer.status, document, retry_after)
    if problem is not None:
        return structs.replace(problem, detail=detail_at(problem, answer.status, address))
    if code := unknown_code(document):
        raise foreign(f"HTTP status {answer.status} from {address} with {code}, an error code unknown to this release")
    failure = foreign_status(answer.status, address, answer.headers.get("location", ""))
    if answer.status == httpx.codes.TOO_MANY_REQUESTS:
        return Problem(ErrorCode.THROTTLED, failure.detail, retry_after_ms=retry_after_ms(retry_after))
    raise failure


def group_event(event: ServerSentEvent, address: str) -> GroupEvent:
    """Return a journal line of the stream; raise `CoordinatorUnreachable` if it is invalid."""
    try:
        document = parse_document(event.data.encode())
        return GroupEvent(
            revision=int(event.event_id),
            at=document["at_ms"] / 1000,
            generation_id=document["generation_id"],
            kind=document["kind"],
            reason=document["reason"],
            payload=document["payload"],
        )
    except (RejectedRequest, KeyError, TypeError, ValueError) as error:
        raise foreign(f"an event from {address} is no journal line of Rota's") from error


def pruned_in(event: ServerSentEvent, address: str) -> CoordinatorError:
    """Return the error of the event that ends a stream if the journal does not have the next lines."""
    answer = HttpAnswer(httpx.codes.GONE, httpx.Headers(), event.data.encode())
    return refusal_in(answer, address)


def _refused(request: Request, problem: Problem) -> Reply:
    if isinstance(request, LeaveGroup) and request.by_admin and problem.code in _OF_A_MEMBER:
        # The route addresses one member, so its error is the answer's error.
        (member,) = request.members
        return LeaveReply(members=(LeftMember(member.member_id, None, problem.code),))
    reply = refuse(request, problem.code, problem.detail)
    return structs.replace(reply, member_id=problem.member_id) if isinstance(reply, JoinReply) else reply


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event; events without an id are about the stream itself."""

    event: str
    event_id: str
    data: str


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[ServerSentEvent]:
    """Yield each event after its blank line; an incomplete last one is dropped. Comments are skipped."""
    fields: dict[str, str] = {}
    async for line in lines:
        if not line:
            if "data" in fields:
                yield ServerSentEvent(fields.get("event", "message"), fields.get("id", ""), fields["data"])
            fields = {}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and "data" in fields:
            value = f"{fields['data']}\n{value}"
        fields[name] = value
