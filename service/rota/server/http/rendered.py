"""Answers as bytes: status, headers and body of what goes back, for whichever way it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import DrainReply
from rota.protocol.wire.documents import dump_document
from rota.protocol.wire.problems import PROBLEM_MEDIA_TYPE, problem_document
from rota.protocol.wire.replies import OUTCOMES, write_reply
from rota.protocol.wire.status import STATUS, Remedy
from rota.server.failures import InternalError, rejection_in, rejection_of

Header = tuple[bytes, bytes]

_JSON: Header = (b"content-type", b"application/json")
_PROBLEM: Header = (b"content-type", PROBLEM_MEDIA_TYPE.encode())
_CHALLENGE: Header = (b"www-authenticate", b'Bearer realm="rota"')
_NO_STORE: Header = (b"cache-control", b"no-store")
JSON_HEADERS = (_JSON, _NO_STORE)
"""Of every document that is no problem."""


class HttpRefusal(RejectedRequest):
    """A request that HTTP itself forbids: no such route, no such method, no such encoding."""

    def __init__(
        self, http_status: int, detail: str, code: ErrorCode = ErrorCode.INVALID_REQUEST, headers: Iterable[Header] = ()
    ) -> None:
        super().__init__(code, detail)
        self.http_status = http_status
        self.headers = tuple(headers)


class CallerGone(Exception):
    """The caller disconnected; an answer has no recipient."""


class Rendered(Struct, frozen=True):
    """An answer, ready to be sent. `code` is what the metrics count it under."""

    status: int
    headers: tuple[Header, ...]
    body: bytes
    code: ErrorCode = ErrorCode.NONE

    async def send(self, send: Send) -> None:
        headers = [*self.headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})

    def as_bytes(self, default_headers: Sequence[Header], *, closes: bool = False) -> bytes:
        """The answer as it goes over the wire; with `closes` it is the last one of its connection."""
        head, end = STATUS_LINE[self.status], b"connection: close\r\n" if closes else b""
        for header in default_headers:
            head += b"%b: %b\r\n" % header
        lines = _JSON_LINES if self.headers is JSON_HEADERS else _lines_of(self.headers)
        return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (head, lines, len(self.body), end, self.body)

    def as_response(self) -> ApiResponse:
        return ApiResponse(self)


class ApiResponse(Response):
    """An answer as FastAPI sends it. `outcome` is the name under which metrics count it."""

    def __init__(self, rendered: Rendered) -> None:
        headers = {name.decode(): value.decode() for name, value in rendered.headers}
        super().__init__(rendered.body, rendered.status, headers)
        self.code = rendered.code
        self.outcome: ErrorCode | str = "GONE" if rendered is CALLER_GONE else rendered.code


def _lines_of(headers: Iterable[Header]) -> bytes:
    """The headers as lines of an answer's head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


_JSON_LINES = _lines_of(JSON_HEADERS)
CALLER_GONE = Rendered(499, (), b"")
"""No client sees it: the connection is gone."""


def render_document(document: dict[str, Any], status: int = 200) -> Rendered:
    return Rendered(status, JSON_HEADERS, dump_document(document))


def render_json(body: bytes) -> Rendered:
    """A document that is JSON already."""
    return Rendered(200, JSON_HEADERS, body)


def render_answer(answer: Answer) -> Rendered:
    """The reply's document with `revision` and `epoch`; a problem where the reply carries an error."""
    reply = answer.reply
    if reply.error is not ErrorCode.NONE:
        rejected = rejection_in(answer)
        if isinstance(reply, DrainReply) and reply.error is ErrorCode.UNKNOWN_MEMBER_ID:
            rejected.facts["remedy"] = Remedy.CHECK_NAME
        return render_rejection(rejected)
    is_pending = type(reply) in OUTCOMES and reply.pending  # type: ignore[attr-defined]
    return Rendered(202 if is_pending else 200, JSON_HEADERS, write_reply(reply, answer.revision, answer.epoch))


def render_problem(
    code: ErrorCode, detail: str = "", *, http_status: int | None = None, headers: Iterable[Header] = (), **extra: Any
) -> Rendered:
    """A problem document with the code's status, and `Retry-After` where the table has one."""
    document = problem_document(code, detail, http_status, **{"revision": 0, "epoch": 0, **extra})
    status = STATUS[code]
    if code is ErrorCode.UNAUTHENTICATED:
        headers = (*headers, _CHALLENGE)
    retry: tuple[Header, ...] = ()
    if status.retry_after_s is not None:
        retry = ((b"retry-after", b"%d" % status.retry_after_s),)
    return Rendered(document["status"], (_PROBLEM, _NO_STORE, *retry, *headers), dump_document(document), code)


def render_rejection(rejected: RejectedRequest) -> Rendered:
    http_status: int | None = None
    headers: tuple[Header, ...] = ()
    match rejected:
        case HttpRefusal():
            http_status, headers = rejected.http_status, rejected.headers
        case InternalError():
            http_status = 500
    return render_problem(rejected.code, rejected.detail, http_status=http_status, headers=headers, **rejected.facts)


def render_failure(error: Exception, operation: str) -> Rendered:
    """The answer to a request that raised this."""
    return CALLER_GONE if isinstance(error, CallerGone) else render_rejection(rejection_of(error, operation))
