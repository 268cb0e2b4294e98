"""Errors for gRPC statuses without an error of Rota's. gRPC reports many causes only as text."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import grpc

from rota.client.errors import CoordinatorUnreachable, UnreachableKind
from rota.client.transports.causes import (
    NO_TLS,
    broken,
    cannot_connect,
    foreign,
    foreign_status,
    no_answer,
    tls_distrust,
)
from rota.protocol.defaults import CONNECT_TIMEOUT_MS

_MAX_QUOTED = 200
_NOT_SENT = ("failed to connect", "errors resolving", "DNS resolution failed", "Name resolution failure")
_NO_CONNECTION_IN_TIME = ("tcp handshaker shutdown", "FD Shutdown", "timed out")
_BROKEN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)
"""Statuses of gRPC itself when a connection or a stream ends early."""
_WAITS = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED})
_TOO_LARGE = "message larger than max"
_HTTP_STATUS = re.compile(r"http2 header with status: ([0-9]{3})")
_LAST_ERROR = re.compile(r"last error: [A-Z_]+: (?:ipv[46]|unix):\S+: (.*)", re.DOTALL)
_DISTRUST = re.compile(r"CERTIFICATE_VERIFY_FAILED:? ?([^:\]]*)")


def rpc_cause(error: grpc.aio.AioRpcError, address: str, timeout_ms: int | None = None) -> CoordinatorUnreachable:
    """Return the error for a status; `timeout_ms` is the call's timeout, None for a stream."""
    code, details = error.code(), error.details() or ""
    if was_not_sent(error):
        return _of_connecting(details, address)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout_ms is not None:
        return no_answer(address, timeout_ms)
    if status := _HTTP_STATUS.search(details):
        return foreign_status(int(status[1]), address)
    quoted = details[:_MAX_QUOTED]
    if code in _BROKEN:
        return broken(address, quoted or code.name)
    what = f"gRPC status {code.name} from {address} without an error code of Rota's ({quoted})"
    return foreign(what, is_lasting=code not in _WAITS or _TOO_LARGE in details)


def was_not_sent(error: grpc.aio.AioRpcError) -> bool:
    """Return whether no connection could be opened, so that the call may be made at another address."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NOT_SENT)


def _of_connecting(details: str, address: str) -> CoordinatorUnreachable:
    if not details.startswith("failed to connect"):
        cause = f"cannot resolve host name {urlsplit(address).hostname}"
        return cannot_connect(address, cause, UnreachableKind.DNS)
    last = _LAST_ERROR.search(details)
    cause = last[1] if last else details
    if distrust := _DISTRUST.search(cause):
        return cannot_connect(address, tls_distrust(distrust[1].strip() or "unknown reason"), UnreachableKind.TLS)
    if "WRONG_VERSION_NUMBER" in cause:
        return cannot_connect(address, NO_TLS, UnreachableKind.TLS)
    if "andshake failed" in cause or "Handshake read failed" in cause:
        return cannot_connect(address, f"TLS handshake failed: {cause[:_MAX_QUOTED]}", UnreachableKind.TLS)
    if "http1.x server" in cause:
        return cannot_connect(address, "the server does not speak gRPC", UnreachableKind.FOREIGN_ANSWER)
    if any(text in cause for text in _NO_CONNECTION_IN_TIME):
        return cannot_connect(address, f"no connection within {CONNECT_TIMEOUT_MS} ms")
    return cannot_connect(address, _plain(cause))


def _plain(cause: str) -> str:
    """Remove the repeated start of `Failed to connect to remote host: Connection refused`."""
    plain = cause.removeprefix("Failed to connect to remote host: ").removeprefix("connect: ")
    return plain[:_MAX_QUOTED].lower()
