"""Problem documents (RFC 9457): how an error looks over HTTP, in both directions."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from rota.protocol.errors import ErrorCode
from rota.protocol.wire.status import STATUS

PROBLEM_MEDIA_TYPE = "application/problem+json"
MAX_RETRY_AFTER_MS = 30_000
"""A client waits no longer than this because of an answer, no matter what the answer asks for."""
NO_ROUTE_STATUS = 404
"""With `INVALID_REQUEST`, whose own status is 400, it means that the server has no such path."""
PRUNED_EVENT = "revision-out-of-range"
"""The server-sent event that ends a stream of journal lines with a problem document: the journal does not have the next
lines, or not the last one."""
_TYPE_PREFIX = "urn:rota:error:"
_TYPE_IF_NONE = dict.fromkeys(
    (ErrorCode.INVALID_REQUEST, ErrorCode.UNAUTHENTICATED, ErrorCode.THROTTLED, ErrorCode.PAYLOAD_TOO_LARGE),
    "about:blank",
)
"""The `type` that RFC 9457 supposes where a document has none, for codes that other programs use as well."""


class Problem(Struct, frozen=True):
    """An error as a client reads it.

    `member_id` comes with MEMBER_ID_REQUIRED, `first_revision` with REVISION_OUT_OF_RANGE, and with it `last_revision`
    and `incarnation` where the reader is ahead of the journal.
    """

    code: ErrorCode
    detail: str
    member_id: str = ""
    revision: int = 0
    epoch: int = 0
    retry_after_ms: int = 0
    first_revision: int = 0
    last_revision: int | None = None
    incarnation: str = ""


def problem_document(code: ErrorCode, detail: str, http_status: int | None = None, **extra: Any) -> dict[str, Any]:
    """`http_status` overrides the table's for errors of HTTP itself, such as 405. Extra members go last."""
    status = STATUS[code]
    return {
        "type": _TYPE_PREFIX + code,
        "title": status.title,
        "status": http_status or status.http,
        "detail": detail or status.title,
        "code": code,
        "retriable": status.retriable,
        "remedy": status.remedy,
        **extra,
    }


def decode_problem(http_status: int, document: dict[str, Any], retry_after: str = "") -> Problem | None:
    """Read an error of Rota's; None for the answer of another program. `retry_after` is the header of that name.

    An error of Rota's has a `code` that this release knows and the `type` that goes with it. A small server of another
    make may leave `type` out, unless its `code` is a word that other programs use, too (`INVALID_REQUEST`).
    """
    known = {"detail": f"HTTP status {http_status}", **document, "retry_after_ms": retry_after_ms(retry_after)}
    try:
        problem = msgspec.convert(known, Problem)
    except msgspec.ValidationError:
        return None
    of_rota = _TYPE_PREFIX + problem.code
    is_of_rota = document.get("type", _TYPE_IF_NONE.get(problem.code, of_rota)) == of_rota
    return problem if is_of_rota and problem.code is not ErrorCode.NONE else None


def detail_at(problem: Problem, http_status: int, address: str) -> str:
    """The problem's text. Where the server has no such path, it names the address, whose own path may be the cause.

    A client's paths are right, unless the address adds to them or a proxy changes them.
    """
    if problem.code is not ErrorCode.INVALID_REQUEST or http_status != NO_ROUTE_STATUS:
        return problem.detail
    parts = urlsplit(address)
    if not parts.path.strip("/"):
        return f"{problem.detail} at {address}; is the server older than this client, or does a proxy change paths?"
    return (
        f"{problem.detail} at {address}; is the path {parts.path!r} in the address right?"
        f" Without a proxy the address is {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    )


def error_code(name: str) -> ErrorCode | None:
    """The error of this name; None if this release knows none, and for `NONE`, which is no error."""
    return ErrorCode(name) if name in ErrorCode.__members__ and name != ErrorCode.NONE else None


def unknown_code(document: dict[str, Any]) -> str:
    """The error code that a newer release of Rota answered with; empty for any other answer."""
    code = document.get("code")
    is_of_rota = isinstance(code, str) and document.get("type") == _TYPE_PREFIX + code
    return code[:64] if isinstance(code, str) and is_of_rota else ""


def retry_after_ms(header: str) -> int:
    """The wait that a `Retry-After` header asks for, within bounds; 0 for a header that is not a number of seconds.

    The header's other form, a date, counts as none: reading it needs clocks that agree.
    """
    if not (header.isascii() and header.isdigit()):
        return 0
    # More digits than these are beyond the bound, and int() rejects text of thousands of digits.
    return bounded_retry_after_ms(int(header.lstrip("0")[:9] or "0") * 1000)


def bounded_retry_after_ms(asked_ms: int) -> int:
    """A wait that an answer asks for, as far as a client accepts it."""
    return max(0, min(asked_ms, MAX_RETRY_AFTER_MS))
