"""Errors as `google.rpc.Status`: what problem documents are to HTTP, in both directions. Knows no gRPC library."""

from __future__ import annotations

import msgspec
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from rota.protocol.errors import ErrorCode
from rota.protocol.wire.problems import Problem, bounded_retry_after_ms
from rota.protocol.wire.status import STATUS

DOMAIN = "rota"
DETAILS_KEY = "grpc-status-details-bin"
"""The trailing header that all gRPC libraries look for a `google.rpc.Status` in."""
MESSAGE_MAX_BYTES = 300
"""A status's message also travels percent-encoded in a header, and clients admit 8 KiB of headers in all."""


def rpc_status(code: ErrorCode, detail: str, **facts: str | int | None) -> Status:
    """The status of an error: an `ErrorInfo`, and a `RetryInfo` where the table knows how long to wait.

    `facts` are the other fields of a `Problem`. A long detail is cut in the message, and whole in the metadata.
    """
    row = STATUS[code]
    detail = detail or row.title
    status = Status(code=Code.Value(row.grpc), message=_short(detail))
    metadata = {name: str(value) for name, value in facts.items() if value not in (None, "")}
    if status.message != detail:
        metadata["detail"] = detail
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
    facts: dict[str, object] = {"detail": status.message, **info.metadata, "code": info.reason}
    facts["retry_after_ms"] = bounded_retry_after_ms(retry.retry_delay.ToMilliseconds())
    try:
        problem = msgspec.convert(facts, Problem, strict=False)
    except msgspec.ValidationError:
        return None
    return problem if info.domain == DOMAIN and problem.code is not ErrorCode.NONE else None
