"""Heartbeats for one peer, collected: many that come at once travel in one message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

import grpc

from rota.observability import tracing
from rota.protocol.messages import Heartbeat, HeartbeatMany, Request
from rota.replica.forwarding import HEARTBEAT_MS
from rota.replica.ports import Answer
from rota.runtime.forwarding import PeerUnreachable
from rota.wire.envelopes import MalformedEnvelope
from rota.wire.peer_heartbeats import AnyHeartbeat, PackedAnswer, pack_heartbeats, unpack_answers

MESSAGES_UNDER_WAY = 2
"""While this many messages are unanswered, heartbeats wait. Not one: a commit at the peer would delay all."""
HEARTBEATS_IN_A_MESSAGE = 2_000

MOST_LINKS = 100

Send = Callable[[bytes, float], Awaitable[bytes]]
"""Sends a message, and waits for its answer for so many seconds."""
_LIMIT_S = HEARTBEAT_MS / 1000
"""A heartbeat has its answer, or fails, after so long: then it can still be recorded where the owner is silent."""
_LATE = "it has not answered earlier heartbeats"


_Asked = tuple[AnyHeartbeat, asyncio.Future[Answer], float]
"""A heartbeat, its answer, and when it was asked, by the clock of the event loop."""


def may_be_collected(request: Request) -> bool:
    """One that waits would keep all others waiting."""
    return isinstance(request, HeartbeatMany) or (isinstance(request, Heartbeat) and not request.wait_ms)


class CollectedHeartbeats:
    """Sent after the event loop's other due callbacks, so that heartbeats of the same moment go in one message."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._unsent: list[_Asked] = []
        self._senders: set[asyncio.Task[None]] = set()
        self._links: list[Any] = []
        """The spans of calls that wait for the next message, if there is tracing."""

    async def ask(self, request: AnyHeartbeat) -> Answer:
        """The peer's answer; raises `PeerUnreachable`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._unsent.append((request, answer, loop.time()))
        if tracing.spans is not None and len(self._links) < MOST_LINKS:
            here = tracing.spans.here()
            if here is not None:
                self._links.append(here)
        if len(self._senders) < MESSAGES_UNDER_WAY:
            # In a context of its own: it serves all of them, so it belongs to the trace of none.
            sender = asyncio.create_task(self._send_all(), context=Context())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await answer

    async def close(self) -> None:
        """Fail the waiting calls: the peer does not answer."""
        senders = tuple(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        _fail([answer for _, answer, _ in self._unsent], "the connection to it is closed")
        self._unsent.clear()

    async def _send_all(self) -> None:
        await asyncio.sleep(0)
        has_waited = False
        while self._unsent:
            some = self._unsent[:HEARTBEATS_IN_A_MESSAGE]
            del self._unsent[:HEARTBEATS_IN_A_MESSAGE]
            now_s = asyncio.get_running_loop().time()
            if has_waited:
                _fail([answer for _, answer, asked_s in some if now_s - asked_s > _LIMIT_S / 2], _LATE)
            asked = [each for each in some if not each[1].done()]
            if asked:
                limit_s = _LIMIT_S - (now_s - asked[0][2] if has_waited else 0.0)
                if tracing.spans is None:
                    await self._send_some(asked, limit_s)
                else:
                    await self._send_traced(tracing.spans, asked, limit_s)
            # From now on they have waited for a message: not for this process, which may have been paused.
            has_waited = True

    async def _send_traced(self, spans: tracing.Spans, some: list[_Asked], limit_s: float) -> None:
        """A message of many calls is in none of their traces, but linked to them."""
        links, self._links = self._links, []
        with spans.within("forward heartbeats", tracing.Kind.CLIENT, {"rota.calls": len(some)}, links):
            await self._send_some(some, limit_s)

    async def _send_some(self, some: list[_Asked], limit_s: float) -> None:
        answers = [answer for _, answer, _ in some]
        reason = "the connection to it is closed"
        try:
            unpacked = unpack_answers(await self._send(pack_heartbeats([request for request, _, _ in some]), limit_s))
            for answer, each in zip(answers, unpacked, strict=True):
                _settle(answer, each)
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
        except (MalformedEnvelope, ValueError) as error:
            reason = str(error)
        finally:
            _fail(answers, reason)


def _settle(answer: asyncio.Future[Answer], unpacked: PackedAnswer) -> None:
    if not answer.done():
        answer.set_result(Answer(*unpacked))


def _fail(answers: list[asyncio.Future[Answer]], reason: str) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(PeerUnreachable(reason))
