"""gRPC with all members of a client on one session stream: told of rebalances without asking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports.grpc import GrpcTransport
from rota.client.transports.port import GroupEvent
from rota.client.transports.rpc import ELSEWHERE, refusal
from rota.client.transports.session_stream import SessionStream
from rota.client.transports.waiting_beats import Beat, WaitingBeats, by_group
from rota.credentials import Credentials
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Request,
    SyncGroup,
    refuse,
)
from rota.v1.coordinator_pb2 import SessionEvent
from rota.wire.heartbeats import read_results, write_many
from rota.wire.problems import Problem
from rota.wire.replies import MalformedReply, Received
from rota.wire.rpcs import RPCS

UNKNOWN_SESSION_WAIT_MS = 3_000
"""How long a heartbeat may wait whose member joined elsewhere; a third of its session otherwise."""
LAST_ANSWERS_S = 60.0
"""Longer than any call waits."""
_FIELDS: dict[type[Request], tuple[str, str]] = {
    JoinGroup: ("join", "joined"),
    SyncGroup: ("sync", "synced"),
    LeaveGroup: ("leave", "left"),
    CommitOffsets: ("commit", "committed"),
}


class StreamTransport:
    """Membership calls go over one stream, all else as single rpcs.

    A heartbeat that waits is answered the moment the server pushes news of its member. When the stream breaks, the
    calls on it fail, and the next one opens another stream at the next address.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        leave_after_ms: int | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`leave_after_ms`: members leave this long after the stream is lost, far before their sessions are over."""
        self._unary = GrpcTransport(urls, headers=headers, credentials=credentials)
        self._leave_after_ms = leave_after_ms
        self._stream: _Stream | None = None
        self._former: set[asyncio.Task[None]] = set()
        self._session_ms: dict[tuple[str, str, str], int] = {}

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """As `Transport.send`."""
        if not _is_for_the_stream(request):
            return await self._unary.send(request, timeout_ms=timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._send_over_a_stream(request)
        except TimeoutError as error:
            if self._stream is not None:
                # It may be the server, or all that is between us: what else is open here would wait in vain.
                self._leave(self._stream, at_once=True)
            raise CoordinatorUnreachable(f"no answer within {timeout_ms} ms") from error

    def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """As `Transport.watch`."""
        return self._unary.watch(namespace, group_id, after_revision)

    async def close(self) -> None:
        if self._stream is not None:
            self._leave(self._stream, at_once=True)
        await asyncio.gather(*self._former)
        await self._unary.close()

    async def _send_over_a_stream(self, request: Request) -> Received:
        """At the first address that can be connected to: where nothing was sent, nothing is lost."""
        for _ in self._unary.channels.urls[1:]:
            try:
                return await self._send(request)
            except CoordinatorUnreachable as error:
                if error.was_sent:
                    raise
        return await self._send(request)

    async def _send(self, request: Request) -> Received:
        stream = self._current()
        try:
            if isinstance(request, Heartbeat):
                received = await stream.heartbeat(request, self._wait_ms(request))
            else:
                received = await stream.call(request)
                self._note(request, received)
        except CoordinatorUnreachable:
            self._leave(stream, at_once=True)
            raise
        if received.reply.error in ELSEWHERE and len(self._unary.channels.urls) > 1:
            self._leave(stream)
        return received

    def _current(self) -> _Stream:
        if self._stream is not None and not self._stream.is_usable:
            self._leave(self._stream)
        if self._stream is None:
            self._stream = _Stream(self._unary, self._leave_after_ms)
        return self._stream

    def _leave(self, stream: _Stream, *, at_once: bool = False) -> None:
        """The next call opens another stream, elsewhere. This one may still bring what is open on it."""
        if self._stream is stream:
            self._stream = None
            self._unary.channels.go_elsewhere()
            task = asyncio.create_task(stream.finish(0.0 if at_once else LAST_ANSWERS_S))
            self._former.add(task)
            task.add_done_callback(self._former.discard)

    def _wait_ms(self, request: Heartbeat) -> int:
        known = self._session_ms.get((request.namespace, request.group_id, request.member_id))
        return min(request.wait_ms or 0, UNKNOWN_SESSION_WAIT_MS if known is None else known // 3)

    def _note(self, request: Request, received: Received) -> None:
        reply = received.reply
        if isinstance(request, JoinGroup) and isinstance(reply, JoinReply) and reply.error is ErrorCode.NONE:
            name = (request.namespace, request.group_id, reply.member_id)
            self._session_ms[name] = request.session_timeout_ms
        elif isinstance(request, LeaveGroup):
            for member in request.members:
                self._session_ms.pop((request.namespace, request.group_id, member.member_id), None)


class _Stream:
    """A session stream with the heartbeats that wait on it."""

    def __init__(self, unary: GrpcTransport, leave_after_ms: int | None) -> None:
        channels = unary.channels
        self._beats = WaitingBeats(self._flush)
        self._session = SessionStream(channels.current(), channels.metadata, self._on_news, leave_after_ms)
        self._flushes: set[asyncio.Task[None]] = set()

    @property
    def is_usable(self) -> bool:
        return not self._session.is_over and not self._session.is_draining

    async def call(self, request: Request) -> Received:
        asked, answered = _FIELDS[type(request)]
        rpc = RPCS[type(request)]
        try:
            message = rpc.write_request(request)
        except (TypeError, ValueError) as error:
            return Received(refuse(request, ErrorCode.INVALID_REQUEST, str(error)))
        event = await self._session.call(**{asked: message})
        if event.HasField("error"):
            return _refusal(request, event)
        try:
            return rpc.read_answer(getattr(event, answered))
        except MalformedReply as error:
            raise CoordinatorUnreachable(f"the answer is no reply: {error}") from error

    async def heartbeat(self, request: Heartbeat, wait_ms: int) -> Received:
        beat = self._beats.add(request, wait_ms)
        try:
            return await beat.outcome
        finally:
            self._beats.discard(beat)

    async def finish(self, last_answers_s: float) -> None:
        """Send who waits elsewhere, let what is open be answered for this long, and close."""
        self._beats.release_all()
        await self._session.until_idle(last_answers_s)
        await self._session.close()
        await asyncio.gather(*self._flushes, return_exceptions=True)

    def _flush(self) -> None:
        beats = self._beats.take()
        if beats:
            task = asyncio.create_task(self._send_beats(beats))
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)

    async def _send_beats(self, beats: list[Beat]) -> None:
        requests = by_group(beats)
        try:
            event = await self._session.call(heartbeat=write_many(requests))
            if event.HasField("error"):
                for beat in beats:
                    beat.finish(_refusal(beat.request, event))
                return
            groups = [(request.namespace, request.group_id) for request in requests]
            self._beats.heard(beats, dict(zip(groups, read_results(event.heartbeat.groups), strict=True)))
        except CoordinatorUnreachable as error:
            for beat in beats:
                beat.fail(error)
        except (MalformedReply, ValueError) as error:
            for beat in beats:
                beat.fail(CoordinatorUnreachable(f"the answer is no reply: {error}"))

    def _on_news(self, event: SessionEvent | None) -> None:
        kind = "" if event is None else event.WhichOneof("event")
        if event is None:
            self._beats.fail_all(self._session.failure)
        elif kind == "drain":
            self._beats.release_all()
        elif kind:
            self._beats.told(getattr(event, kind), kind)


def _is_for_the_stream(request: Request) -> bool:
    """A heartbeat that the server would refuse must not spoil the message that it shares with others."""
    match request:
        case LeaveGroup():
            return not request.by_admin
        case Heartbeat():
            return _is_well_formed(request)
        case _:
            return type(request) in _FIELDS


def _is_well_formed(request: Heartbeat) -> bool:
    rpc = RPCS[Heartbeat]
    try:
        rpc.read_request(rpc.write_request(request), Limits())
    except (RejectedRequest, TypeError, ValueError):
        return False
    return True


def _refusal(request: Request, event: SessionEvent) -> Received:
    error: Any = event.error
    known = error.code in ErrorCode.__members__
    code = ErrorCode(error.code) if known else ErrorCode.COORDINATOR_NOT_AVAILABLE
    problem = Problem(code, error.detail, error.member_id, error.revision, error.epoch, error.retry_after_ms)
    return refusal(request, problem)
