"""Errors as `google.rpc.Status`: what problem documents are to HTTP, in both directions. Knows no gRPC library."""

from __future__ import annotations

from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from rota.protocol.errors import ErrorCode
from rota.wire.problems import Problem, bounded_retry_after_ms, error_code
from rota.wire.status import STATUS

DOMAIN = "rota"
DETAILS_KEY = "grpc-status-details-bin"
"""The trailing header that all gRPC libraries look for a `google.rpc.Status` in."""
_MAX_DIGITS = 19
MESSAGE_MAX_BYTES = 300
"""A status's message also travels percent-encoded in a header, and clients admit 8 KiB of headers in all."""


def rpc_status(
    code: ErrorCode,
    detail: str,
    *,
    revision: int = 0,
    epoch: int = 0,
    member_id: str = "",
    owner: str = "",
    first_revision: int = 0,
    last_revision: int | None = None,
    incarnation: str = "",
) -> Status:
    """The status of an error: an `ErrorInfo`, and a `RetryInfo` where the table knows how long to wait.

    A long detail is cut in the message, and whole in the metadata.
    """
    row = STATUS[code]
    detail = detail or row.title
    status = Status(code=Code.Value(row.grpc), message=_short(detail))
    metadata = {"revision": str(revision), "epoch": str(epoch)}
    if status.message != detail:
        metadata["detail"] = detail
    if first_revision:
        metadata["first_revision"] = str(first_revision)
    if last_revision is not None:
        metadata["last_revision"] = str(last_revision)
    texts = {"member_id": member_id, "owner": owner, "incarnation": incarnation}
    metadata |= {name: text for name, text in texts.items() if text}
    status.details.add().Pack(ErrorInfo(reason=code.value, domain=DOMAIN, metadata=metadata))
    if row.retry_after_s is not None:
        retry = RetryInfo()
        retry.retry_delay.seconds = row.retry_after_s
        status.details.add().Pack(retry)
    return status


def _short(detail: str) -> str:
    encoded = detail.encode()
    if len(encoded) <= MESSAGE_MAX_BYTES:
        return detail
    return encoded[:MESSAGE_MAX_BYTES].decode(errors="ignore") + " …"


def problem_of(status: Status) -> Problem | None:
    """What our own server meant by a status; None if it is not one of ours, or has a code of a newer release."""
    info, retry = ErrorInfo(), RetryInfo()
    for detail in status.details:
        # Each ignores values of another type.
        detail.Unpack(info)
        detail.Unpack(retry)
    code = error_code(info.reason) if info.domain == DOMAIN else None
    return None if code is None else _problem(code, info, status.message, retry.retry_delay.ToMilliseconds())


def _problem(code: ErrorCode, info: ErrorInfo, detail: str, retry_after_ms: int) -> Problem:
    return Problem(
        code,
        info.metadata.get("detail", detail),
        info.metadata.get("member_id", ""),
        _number(info.metadata.get("revision", "")),
        _number(info.metadata.get("epoch", "")),
        bounded_retry_after_ms(retry_after_ms),
        _number(info.metadata.get("first_revision", "")),
        _number(info.metadata["last_revision"]) if "last_revision" in info.metadata else None,
        info.metadata.get("incarnation", ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0
