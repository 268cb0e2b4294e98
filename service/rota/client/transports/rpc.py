"""Shared parts of both gRPC transports: channels to any of several addresses, and the errors of failed calls."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from msgspec.structs import replace

from rota.client.errors import CoordinatorUnreachable, UnreachableKind
from rota.client.transports.causes import (
    NO_TLS,
    broken,
    cannot_connect,
    closed,
    credentials_failed,
    foreign,
    foreign_status,
    no_answer,
    tls_distrust,
    unexpected,
)
from rota.credentials import Credentials, CredentialsError, Version
from rota.grpc_polling import check_not_forked, keep_polling
from rota.protocol.calls import refuse
from rota.protocol.defaults import CONNECT_TIMEOUT_MS
from rota.protocol.messages import JoinReply, Request
from rota.protocol.tracing import carried
from rota.protocol.wire.problems import Problem
from rota.protocol.wire.replies import Received
from rota.protocol.wire.rpc_status import DETAILS_KEY, problem_of

_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The first bounds the kernel's acknowledgement, this one the answer of the server's process.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A member list has the metadata of all members: the server bounds its size.
    ("grpc.max_receive_message_length", -1),
    # This finds a restarted server at once; the defaults grow to two minutes. The smallest backoff is also the timeout
    # of an attempt to connect.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", 500),
    # As over HTTP, `http_proxy` is ignored; only a proxy for gRPC is used.
    ("grpc.enable_http_proxy", int("grpc_proxy" in os.environ)),
)


class Channels:
    """One channel for each address.

    If certificates were renewed, another channel replaces it. Calls over the former one continue: gRPC closes an
    unreferenced channel after its last call has ended.
    """

    def __init__(self, headers: Mapping[str, str] | None = None, credentials: Credentials | None = None) -> None:
        check_not_forked()
        self._headers = tuple((name.lower(), value) for name, value in (headers or {}).items())
        self._credentials = credentials or Credentials()
        self.is_closed = False
        self._channels: dict[str, tuple[Version | None, grpc.aio.Channel]] = {}

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call, with the current credentials."""
        try:
            return (*self._headers, *self._credentials.headers().items(), *carried())
        except CredentialsError as error:
            raise credentials_failed(error) from error

    def to(self, url: str) -> grpc.aio.Channel:
        """Return the channel of a URL. Raises `CoordinatorUnreachable` after `close`, and if the certificates cannot be
        read.
        """
        if self.is_closed:
            raise closed()
        address = urlsplit(url)
        if address.scheme.removesuffix("+stream") == "grpcs":
            version, shown = self._channel_credentials()
        else:
            version, shown = None, None
        if url not in self._channels or self._channels[url][0] != version:
            self._channels[url] = version, _open(address.netloc, shown)
        return self._channels[url][1]

    async def close(self) -> None:
        self.is_closed = True
        channels, self._channels = self._channels, {}
        for _version, channel in channels.values():
            await channel.close()

    def failure(self, error: BaseException, url: str, timeout_ms: int | None = None) -> CoordinatorUnreachable:
        """Return the error for an exception of a call. Raises a cancellation of the calling task again."""
        if isinstance(error, CoordinatorUnreachable):
            return error
        if isinstance(error, asyncio.CancelledError) and (not self.is_closed or _is_being_cancelled()):
            raise error
        if self.is_closed:
            return closed(was_sent=True)
        if isinstance(error, grpc.aio.AioRpcError):
            return rpc_cause(error, url, timeout_ms)
        return unexpected(url, error)

    def _channel_credentials(self) -> tuple[Version, grpc.ChannelCredentials]:
        try:
            return self._credentials.channel_credentials()
        except CredentialsError as error:
            raise credentials_failed(error) from error


def refusal(request: Request, problem: Problem) -> Received:
    reply = refuse(request, problem.code, problem.detail)
    if isinstance(reply, JoinReply):
        reply = replace(reply, member_id=problem.member_id)
    return Received(reply, problem.revision, problem.epoch, problem.retry_after_ms)


def problem_in(error: BaseException) -> Problem | None:
    """Return the problem that one of our servers sent; None if the status is another program's."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            with suppress(DecodeError):
                return problem_of(Status.FromString(value))
    return None


def _is_being_cancelled() -> bool:
    """Return whether the current task is being cancelled: a closed channel cancels its calls, but not their tasks."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _open(address: str, shown: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    keep_polling()
    if shown is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, shown, options=_OPTIONS)


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
