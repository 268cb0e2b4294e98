"""gRPC with the members of a client on session streams, which carry numbered calls and pushed events."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports.causes import (
    broken,
    closed,
    foreign,
    no_answer,
    quoted,
    unexpected,
)
from rota.client.transports.grpc import GrpcTransport
from rota.client.transports.owners import ELSEWHERE
from rota.client.transports.port import GroupEvent
from rota.client.transports.rpc import Channels, problem_in, refusal
from rota.client.transports.waiting_beats import Beat, WaitingBeats, by_group
from rota.credentials import Credentials
from rota.protocol.calls import COORDINATOR, refuse
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import CommitOffsets, Heartbeat, JoinGroup, LeaveGroup, Request, SyncGroup
from rota.protocol.wire.batching import dump_next, split_batch
from rota.protocol.wire.heartbeats import read_results, write_many
from rota.protocol.wire.problems import Problem, bounded_retry_after_ms, error_code
from rota.protocol.wire.replies import MalformedReply, Received
from rota.protocol.wire.rpcs import RPCS
from rota.v1.coordinator_pb2 import SessionEvent, SessionOptions, SessionRequest

LAST_ANSWERS_S = 60.0
"""Longer than any call waits."""
_FIELDS: dict[type[Request], tuple[str, str]] = {
    JoinGroup: ("join", "joined"),
    SyncGroup: ("sync", "synced"),
    LeaveGroup: ("leave", "left"),
    CommitOffsets: ("commit", "committed"),
}


class StreamTransport:
    """Membership calls use streams, other calls single rpcs: one stream for each address that members use.

    With several addresses these are the owners of the members' groups, otherwise one until it fails. A waiting
    heartbeat is answered when the server pushes an event of its member. When a stream breaks, the calls on it fail, and
    the next call opens another stream elsewhere.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        leave_after_ms: int | None = None,
        credentials: Credentials | None = None,
        direct: bool = False,
    ) -> None:
        """`leave_after_ms`: members leave this long after the stream is lost, before their sessions expire.

        All members then share one stream: a member that moved to another would leave when its former stream is lost.
        """
        self._unary = GrpcTransport(urls, headers=headers, credentials=credentials, direct=direct)
        self._channels, self._addresses = self._unary.channels, self._unary.addresses
        self._leave_after_ms = leave_after_ms
        self._streams: dict[str, _Stream] = {}
        self._former: set[asyncio.Task[None]] = set()

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """Send a request: see `Transport.send`."""
        if not _is_for_the_stream(request):
            return await self._unary.send(request, timeout_ms=timeout_ms)
        tried: list[str] = []

        async def call(url: str) -> Received:
            tried.append(url)
            return await self._send(request, url)

        self._end_unusable()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._addresses.first_reached(call, self._owner_of(request))
        except TimeoutError:
            # The server or the network may have failed: other calls on the stream would wait in vain.
            self._give_up(request, tried[-1])
            raise no_answer(tried[-1], timeout_ms) from None

    def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """Watch a group: see `Transport.watch`."""
        return self._unary.watch(namespace, group_id, after_revision)

    async def close(self) -> None:
        self._channels.is_closed = True
        for url in tuple(self._streams):
            self._end(url, at_once=True)
        await asyncio.gather(*self._former)
        await self._unary.close()

    async def _send(self, request: Request, url: str) -> Received:
        stream = self._streams.get(url)
        if stream is None:
            stream = self._streams[url] = _Stream(self._channels, url, self._leave_after_ms)
        try:
            received = await self._exchange(request, stream)
        except CoordinatorUnreachable:
            if self._streams.get(url) is stream:
                self._give_up(request, url)
            raise
        if received.reply.error in ELSEWHERE:
            self._go_elsewhere(request, url)
        if self._leave_after_ms is None:
            # A replica that does not forward knows the owner.
            self._addresses.owners.answered(request, received, url)
        return received

    async def _exchange(self, request: Request, stream: _Stream) -> Received:
        try:
            if isinstance(request, Heartbeat):
                # The client waits after the answer: that renews no session, so the wait is half as long as at the
                # server.
                return await stream.heartbeat(request, (request.wait_ms or 0) // 2)
            return await stream.call(request)
        except Exception as error:
            raise self._channels.failure(error, stream.url) from error

    def _owner_of(self, request: Request) -> str | None:
        return self._addresses.owners.address_of(request) if self._leave_after_ms is None else None

    def _end_unusable(self) -> None:
        for url, stream in tuple(self._streams.items()):
            if not stream.is_usable:
                self._addresses.owners.forget_all_at(url)
                self._addresses.leave(url)
                self._end(url)

    def _go_elsewhere(self, request: Request, url: str) -> None:
        """Use another address, because this server cannot answer; other calls on its stream continue,
        unless all moved.
        """
        is_owner = self._owner_of(request) == url
        self._addresses.avoid(request, url)
        if not is_owner and len(self._addresses.urls) > 1:
            self._end(url)

    def _give_up(self, request: Request, url: str) -> None:
        self._addresses.owners.forget_all_at(url)
        self._addresses.avoid(request, url)
        self._end(url, at_once=True)

    def _end(self, url: str, *, at_once: bool = False) -> None:
        """End a stream: the next call opens another one. This one may still answer its open calls."""
        stream = self._streams.pop(url, None)
        if stream is not None:
            task = asyncio.create_task(stream.finish(0.0 if at_once else LAST_ANSWERS_S))
            self._former.add(task)
            task.add_done_callback(self._former.discard)


class _Stream:
    """A session stream with the heartbeats that wait on it."""

    def __init__(self, channels: Channels, url: str, leave_after_ms: int | None) -> None:
        self.url = url
        self._beats = WaitingBeats(self._flush)
        self._session = SessionStream(channels, url, self._on_news, leave_after_ms)
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
        except (MalformedReply, ValueError) as error:
            raise self._no_reply(error) from error

    async def heartbeat(self, request: Heartbeat, wait_ms: int) -> Received:
        beat = self._beats.add(request, wait_ms)
        try:
            return await beat.outcome
        finally:
            self._beats.discard(beat)

    async def finish(self, last_answers_s: float) -> None:
        """Move waiting calls elsewhere, allow this time for the answers of open calls, and close."""
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
            self._beats.on_answers(beats, dict(zip(groups, read_results(event.heartbeat.groups), strict=True)))
        except CoordinatorUnreachable as error:
            _fail(beats, error)
        except (MalformedReply, ValueError) as error:
            _fail(beats, self._no_reply(error))
        except Exception as error:
            _fail(beats, unexpected(self.url, error))

    def _no_reply(self, error: Exception) -> CoordinatorUnreachable:
        return foreign(f"the answer from {self.url} is no reply of Rota's ({quoted(error)})")

    def _on_news(self, event: SessionEvent | None) -> None:
        kind = "" if event is None else event.WhichOneof("event")
        if event is None:
            self._beats.fail_all(self._session.failure)
        elif kind == "drain":
            self._beats.release_all()
        elif kind:
            self._beats.on_news(getattr(event, kind), kind)


def _is_for_the_stream(request: Request) -> bool:
    """Return whether a request may use the stream: an invalid heartbeat must not fail the message that it shares."""
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


def _fail(beats: Iterable[Beat], error: CoordinatorUnreachable) -> None:
    for beat in beats:
        beat.fail(error)


def _refusal(request: Request, event: SessionEvent) -> Received:
    """Return a call's own error, also with an unknown code of a newer release; the stream and other calls continue."""
    error: Any = event.error
    code = error_code(error.code)
    detail = error.detail if code else f"an error code unknown to this release, {error.code[:64]}: {error.detail}"
    retry_after_ms = bounded_retry_after_ms(error.retry_after_ms)
    code = code or ErrorCode.COORDINATOR_NOT_AVAILABLE
    return refusal(request, Problem(code, detail, error.member_id, error.revision, error.epoch, retry_after_ms))


_PATH = f"/{COORDINATOR}/Session"
_log = logging.getLogger(__name__)
_NEWS = ("rebalance", "election", "generation", "fenced", "drain")


class SessionStream:
    """Is open until either side ends it; then every open call fails, and `is_over` is true.

    `on_news` is called with each pushed event after the callers of earlier answers have received them, and with None
    when the stream is over.
    """

    def __init__(
        self,
        channels: Channels,
        url: str,
        on_news: Callable[[SessionEvent | None], None],
        leave_after_ms: int | None,
    ) -> None:
        """Raises `CoordinatorUnreachable` if the channel cannot be used."""
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channels.to(url).stream_stream(_PATH)
        self._stream = method(metadata=channels.metadata)
        self._channels, self._url = channels, url
        self._on_news = on_news
        self._calls = 0
        self._open: dict[int, asyncio.Future[SessionEvent]] = {}
        self._unsent: deque[SessionRequest] = deque()
        self._wake = asyncio.Event()
        self._failure: CoordinatorUnreachable | None = None
        self._idle = asyncio.Event()
        self.is_draining = False
        """The server has asked the client to use another address; it still answers open calls."""
        self._send(self._next_number(), options=SessionOptions(leave_after_ms=leave_after_ms))
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    @property
    def is_over(self) -> bool:
        return self._failure is not None

    @property
    def failure(self) -> CoordinatorUnreachable:
        """Why the stream is over."""
        return self._failure or broken(self._url, "the stream is over")

    async def until_idle(self, timeout_s: float) -> None:
        """Return when no call waits for an answer here, or the stream is over, or after this time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._open and not self.is_over:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return

    async def call(self, **request: Any) -> SessionEvent:
        """Send a request and return its answer; raise `CoordinatorUnreachable` if there will be none."""
        if self._failure is not None:
            raise self._failure
        number = self._next_number()
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        self._send(number, **request)
        try:
            event: SessionEvent = await answer
            return event
        except asyncio.CancelledError:
            self._send(self._next_number(), cancel=number)
            raise
        finally:
            del self._open[number]
            self._idle.set()

    async def close(self) -> None:
        """Cancel the stream."""
        self._end(closed(was_sent=True) if self._channels.is_closed else broken(self._url, "the stream was cancelled"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stream.cancel()

    def _next_number(self) -> int:
        self._calls += 1
        return self._calls

    def _send(self, number: int, **request: Any) -> None:
        self._unsent.append(SessionRequest(call=number, **request))
        self._wake.set()

    async def _write(self) -> None:
        try:
            while True:
                while self._unsent:
                    await self._stream.write(dump_next(self._unsent))
                self._wake.clear()
                await self._wake.wait()
        except Exception as error:
            # Usually the stream has ended, and the reader has its reason. Otherwise no further call could be sent.
            self._stream.cancel()
            _log.debug("the stream to %s takes no more calls", self._url, exc_info=error)

    async def _read(self) -> None:
        failure = broken(self._url, "the server ended the stream")
        try:
            while isinstance(data := await self._stream.read(), bytes):
                for each in split_batch(SessionEvent, data):
                    self._take(SessionEvent.FromString(each))
        except (DecodeError, ValueError):
            failure = foreign(f"a message of the stream from {self._url} is not Rota's")
        except Exception as error:
            failure = self._failure_of(error)
        finally:
            self._end(failure)

    def _failure_of(self, error: Exception) -> CoordinatorUnreachable:
        problem = problem_in(error)
        if problem is not None:
            return broken(self._url, f"the server ended the stream: {problem.code}: {problem.detail}")
        return self._channels.failure(error, self._url)

    def _take(self, event: SessionEvent) -> None:
        answer = self._open.get(event.call)
        if answer is not None and not answer.done():
            answer.set_result(event)
        elif event.WhichOneof("event") in _NEWS:
            self.is_draining = self.is_draining or event.HasField("drain")
            # Publish later: callers first receive the answers of the same message.
            asyncio.get_running_loop().call_soon(self._on_news, event)

    def _end(self, failure: CoordinatorUnreachable) -> None:
        if self._failure is None:
            self._failure = failure
            for answer in self._open.values():
                if not answer.done():
                    answer.set_exception(failure)
            self._on_news(None)
