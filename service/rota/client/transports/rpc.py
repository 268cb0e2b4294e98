"""What both gRPC transports share: channels to any of several addresses, and what a failed call means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import grpc
from google.rpc.status_pb2 import Status

from rota.client.errors import CoordinatorUnreachable
from rota.credentials import Credentials, Version
from rota.observability.tracing import carried
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinReply, Request, refuse
from rota.wire.problems import Problem
from rota.wire.replies import Received
from rota.wire.rpc_status import DETAILS_KEY, problem_of

SCHEMES = ("grpc", "grpcs")
"""Plain and with TLS."""
ELSEWHERE = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A member list holds the metadata of all: its server bounds it, not we.
    ("grpc.max_receive_message_length", -1),
    # A restarted server is found at once; the defaults grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_NOT_OURS = {
    grpc.StatusCode.UNAUTHENTICATED: ErrorCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    grpc.StatusCode.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: ErrorCode.INVALID_REQUEST,
    # The only thing that gRPC itself refuses for its size is a message.
    grpc.StatusCode.RESOURCE_EXHAUSTED: ErrorCode.PAYLOAD_TOO_LARGE,
}


class Channels:
    """One channel for each address; speaks to one address until it fails, then to the next.

    Where certificates have been renewed, another channel takes its place. What the former one carries goes on: gRPC
    closes a channel that nobody holds any more once the last call over it has ended.
    """

    def __init__(
        self, urls: Sequence[str], headers: Mapping[str, str] | None, credentials: Credentials | None = None
    ) -> None:
        if not urls:
            raise ValueError("at least one URL is needed")
        self.urls = list(urls)
        self._headers = tuple((name.lower(), value) for name, value in (headers or {}).items())
        self._credentials = credentials or Credentials()
        self._current = 0
        self._channels: dict[str, tuple[Version | None, grpc.aio.Channel]] = {}

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries: also what proves who we are, as it is now."""
        try:
            return (*self._headers, *self._credentials.headers().items(), *carried())
        except ValueError as error:
            raise CoordinatorUnreachable(str(error)) from error

    @property
    def url(self) -> str:
        return self.urls[self._current]

    def to(self, url: str) -> grpc.aio.Channel:
        address = urlsplit(url)
        if address.scheme.removesuffix("+stream") == "grpcs":
            version, shown = self._credentials.channel_credentials()
        else:
            version, shown = None, None
        if url not in self._channels or self._channels[url][0] != version:
            self._channels[url] = version, _open(address.netloc, shown)
        return self._channels[url][1]

    def in_order(self, first: str | None) -> list[str]:
        """Where to send something, in the order in which to try: the one that is known to be best, then as listed."""
        listed = self.urls[self._current :] + self.urls[: self._current]
        return listed if first is None else [first, *(url for url in listed if url != first)]

    def leave(self, url: str) -> None:
        """The next call goes to another address than this one."""
        if url == self.url:
            self._current = (self._current + 1) % len(self.urls)

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for _version, channel in channels.values():
            await channel.close()


def received_of(request: Request, error: grpc.aio.AioRpcError) -> Received:
    """The refusal that a status stands for; raises `CoordinatorUnreachable` where nobody knows what was done."""
    problem = problem_in(error)
    if problem is None:
        code = _NOT_OURS.get(error.code())
        if code is None:
            raise CoordinatorUnreachable(error.details() or error.code().name) from error
        problem = Problem(code, error.details() or error.code().name)
    return refusal(request, problem)


def refusal(request: Request, problem: Problem) -> Received:
    reply = refuse(request, problem.code, problem.detail)
    if isinstance(reply, JoinReply):
        reply = replace(reply, member_id=problem.member_id)
    return Received(reply, problem.revision, problem.epoch, problem.retry_after_ms)


def problem_in(error: grpc.aio.AioRpcError) -> Problem | None:
    """What one of our servers said; None if the status is somebody else's."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return problem_of(Status.FromString(value))
    return None


def was_not_sent(error: grpc.aio.AioRpcError) -> bool:
    """No connection could be made, so that the call may be made elsewhere. gRPC says it in words only."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in (error.details() or "")


def _open(address: str, shown: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if shown is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, shown, options=_OPTIONS)
