"""Heartbeats for one peer, collected: many that come at once travel in one message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from typing import Any

import grpc

from rota.api.peer.answers import check_kind, read_answers
from rota.api.peer.unix import UnixLink
from rota.observability import tracing
from rota.protocol.messages import Heartbeat, HeartbeatMany, Request
from rota.replica.forwarding import HEARTBEAT_MS, Beats, NoAnswer
from rota.replica.ports import Answer
from rota.wire.envelopes import MalformedEnvelope, pack_heartbeats

MESSAGES_UNDER_WAY = 2
"""While this many messages are unanswered, heartbeats wait. Not one: a commit at the peer would delay all."""
SECOND_AFTER_S = 0.002
"""For so long heartbeats wait for the only message under way. Most are answered sooner, and more heartbeats share the
next one: a message costs as much as several heartbeats in it."""
MEMBERS_IN_A_MESSAGE = 2_000
"""A message of so many takes each event loop some 20 ms. It has more where one heartbeat is for more members."""

MOST_LINKS = 100

Send = Callable[[bytes, float], Awaitable[bytes]]
"""Sends a message, and waits for its answer for so many seconds."""
_LIMIT_S = HEARTBEAT_MS / 1000
"""A heartbeat has its answer, or fails, after so long: then it can still be recorded where the owner is silent."""
_LATE = "it has not answered earlier heartbeats"
_CLOSED = "the connection to it is closed"

_log = logging.getLogger(__name__)

Done = Callable[[Answer | NoAnswer], None]
_Asked = tuple[Beats, Done, float]
"""A heartbeat, the receiver of its outcome, and when it was asked, by the clock of the event loop."""


def may_be_collected(request: Request) -> bool:
    """One that waits would keep all others waiting."""
    return isinstance(request, HeartbeatMany) or (isinstance(request, Heartbeat) and not request.wait_ms)


class CollectedHeartbeats:
    """Sent after the event loop's other due callbacks, so that heartbeats of the same moment go in one message."""

    def __init__(self, send: Send, link: UnixLink | None = None) -> None:
        """Messages go over the link while it has a connection, and are sent by `send` otherwise."""
        self._send = send
        self._link = link
        self._unsent: list[_Asked] = []
        self._is_due = False
        """Those that are unsent are sent in the next turn of the event loop."""
        self._under_way = 0
        """Messages without an answer."""
        self._sent_at_s = 0.0
        """When the last message was sent, by the clock of the event loop."""
        self._second: asyncio.TimerHandle | None = None
        """Sends the second message, if the first one is without an answer by then."""
        self._senders: set[asyncio.Task[None]] = set()
        self._links: list[Any] = []
        """The spans of calls that wait for the next message, if there is tracing."""

    def ask(self, request: Beats, done: Done) -> None:
        """Send a heartbeat soon; `done` gets the peer's answer, or why there is none."""
        loop = asyncio.get_running_loop()
        self._unsent.append((request, done, loop.time()))
        if tracing.spans is not None and len(self._links) < MOST_LINKS:
            here = tracing.spans.here()
            if here is not None:
                self._links.append(here)
        if self._is_due:
            return
        if not self._under_way:
            self._is_due = True
            # In a context of its own: the message serves all of them, so it belongs to the trace of none.
            loop.call_soon(self._send_due, context=Context())
        elif self._under_way < MESSAGES_UNDER_WAY and self._second is None:
            self._second = loop.call_later(SECOND_AFTER_S, self._send_second, context=Context())

    @property
    def is_idle(self) -> bool:
        """Nothing waits for an answer."""
        return not self._unsent and not self._under_way

    async def close(self) -> None:
        """Fail the waiting calls: the peer does not answer."""
        unsent, self._unsent = self._unsent, []
        _fail(unsent, _CLOSED)
        if self._link is not None:
            await self._link.close()
        if self._second is not None:
            self._second.cancel()
        senders = tuple(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)

    def _send_due(self) -> None:
        self._is_due = False
        self._send_unsent(has_waited=False)

    def _send_second(self) -> None:
        """The timer is not set anew with each message, so the one under way may be younger."""
        self._second, loop = None, asyncio.get_running_loop()
        left_s = self._sent_at_s + SECOND_AFTER_S - loop.time()
        if self._unsent and self._under_way and left_s > 0:
            self._second = loop.call_later(left_s, self._send_second, context=Context())
        else:
            self._send_unsent(has_waited=True)

    def _send_unsent(self, *, has_waited: bool) -> None:
        """`has_waited`: for a message under way, and not for this process, which may have been paused."""
        loop = asyncio.get_running_loop()
        while self._unsent and self._under_way < MESSAGES_UNDER_WAY:
            some, self._unsent = _divided(self._unsent)
            limit_s = _LIMIT_S
            if has_waited:
                # They are in the order in which they were asked.
                now_s = loop.time()
                if now_s - some[0][2] > _LIMIT_S / 2:
                    _fail([each for each in some if now_s - each[2] > _LIMIT_S / 2], _LATE)
                    some = [each for each in some if now_s - each[2] <= _LIMIT_S / 2]
                    if not some:
                        continue
                limit_s -= now_s - some[0][2]
            self._under_way, self._sent_at_s = self._under_way + 1, loop.time()
            requests = [request for request, _, _ in some]
            link = self._link if tracing.spans is None else None
            if link is not None and link.ask(requests, limit_s, partial(self._received, some)):
                continue
            sender = loop.create_task(self._send_by_rpc(pack_heartbeats(requests), limit_s, some))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)

    async def _send_by_rpc(self, message: bytes, limit_s: float, some: list[_Asked]) -> None:
        outcome: list[Answer] | NoAnswer = NoAnswer(_CLOSED)
        try:
            if tracing.spans is None:
                data = await self._send(message, limit_s)
            else:
                # A message of many calls is in none of their traces, but linked to them.
                links, self._links = self._links, []
                kind, noted = tracing.Kind.CLIENT, {"rota.calls": len(some)}
                with tracing.spans.within("forward heartbeats", kind, noted, links):
                    data = await self._send(message, limit_s)
            outcome = read_answers(data)
        except grpc.aio.AioRpcError as error:
            outcome = NoAnswer(error.details() or error.code().name)
        except MalformedEnvelope as error:
            outcome = NoAnswer(str(error))
        finally:
            self._received(some, outcome)

    def _received(self, some: list[_Asked], outcome: Sequence[Answer] | NoAnswer) -> None:
        self._under_way -= 1
        try:
            if not isinstance(outcome, NoAnswer):
                for (request, _, _), answer in zip(some, outcome, strict=True):
                    check_kind(request, answer)
        except ValueError as error:
            outcome = NoAnswer(str(error))
        _settle(some, [outcome] * len(some) if isinstance(outcome, NoAnswer) else outcome)
        self._send_unsent(has_waited=True)


def _divided(unsent: list[_Asked]) -> tuple[list[_Asked], list[_Asked]]:
    """Those that go with the next message, and those that are left."""
    members = 0
    for count, (request, _, _) in enumerate(unsent, 1):
        members += len(request.members) if isinstance(request, HeartbeatMany) else 1
        if members >= MEMBERS_IN_A_MESSAGE:
            return unsent[:count], unsent[count:]
    return unsent, []


def _fail(some: Sequence[_Asked], reason: str) -> None:
    _settle(some, [NoAnswer(reason)] * len(some))


def _settle(some: Sequence[_Asked], outcomes: Iterable[Answer | NoAnswer]) -> None:
    for (_, done, _), outcome in zip(some, outcomes, strict=True):
        try:
            done(outcome)
        except Exception as error:
            # A bug of ours, which must keep none of the others waiting.
            _log.error("the outcome of a forwarded heartbeat was not received", exc_info=error)
