"""Problem documents (RFC 9457): how an error looks over HTTP, in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rota.protocol.errors import ErrorCode
from rota.wire.status import STATUS

PROBLEM_MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "urn:rota:error:"


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a client reads it. `member_id` comes with MEMBER_ID_REQUIRED."""

    code: ErrorCode
    detail: str
    member_id: str = ""
    revision: int = 0
    epoch: int = 0
    retry_after_ms: int = 0


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


def decode_problem(http_status: int, document: dict[str, Any], retry_after: str = "") -> Problem:
    """Read an error answer, also one of a proxy that never heard of us. `retry_after` is the header of that name.

    An unknown code counts as THROTTLED where the status says 429, and as COORDINATOR_NOT_AVAILABLE where it says 5xx
    or 408: nobody knows what came of the request, so it must be tried again.
    """
    text = {name: value for name, value in document.items() if isinstance(value, str)}
    numbers = {name: value for name, value in document.items() if type(value) is int}
    try:
        code = ErrorCode(text.get("code", ""))
    except ValueError:
        code = _code_of_status(http_status)
    return Problem(
        code,
        text.get("detail", f"HTTP status {http_status}"),
        text.get("member_id", ""),
        numbers.get("revision", 0),
        numbers.get("epoch", 0),
        # The other form, a date, needs clocks that agree: who sends one is not told apart from who sends none.
        int(retry_after) * 1000 if retry_after.isascii() and retry_after.isdigit() else 0,
    )


def _code_of_status(http_status: int) -> ErrorCode:
    if http_status == 429:
        return ErrorCode.THROTTLED
    if http_status >= 500 or http_status == 408:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if http_status == 401:
        return ErrorCode.UNAUTHENTICATED
    if http_status == 403:
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.INVALID_REQUEST
