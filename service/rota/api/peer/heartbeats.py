"""Heartbeats for one peer, collected: many that come at once travel in one message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from typing import Any

import grpc

from rota.observability import tracing
from rota.protocol.messages import Heartbeat, HeartbeatMany, Request
from rota.replica.forwarding import HEARTBEAT_MS, Beats, NoAnswer
from rota.replica.ports import Answer
from rota.wire.envelopes import MalformedEnvelope
from rota.wire.peer_heartbeats import pack_heartbeats, unpack_answers

MESSAGES_UNDER_WAY = 2
"""While this many messages are unanswered, heartbeats wait. Not one: a commit at the peer would delay all."""
HEARTBEATS_IN_A_MESSAGE = 2_000

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

    def __init__(self, send: Send) -> None:
        self._send = send
        self._unsent: list[_Asked] = []
        self._is_due = False
        """Those that are unsent are sent in the next turn of the event loop."""
        self._senders: set[asyncio.Task[None]] = set()
        """One for each message under way."""
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
        if not self._is_due and len(self._senders) < MESSAGES_UNDER_WAY:
            self._is_due = True
            # In a context of its own: the message serves all of them, so it belongs to the trace of none.
            loop.call_soon(self._send_due, context=Context())

    async def close(self) -> None:
        """Fail the waiting calls: the peer does not answer."""
        senders = tuple(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        unsent, self._unsent = self._unsent, []
        _fail(unsent, _CLOSED)

    def _send_due(self) -> None:
        self._is_due = False
        if self._unsent:
            sender = asyncio.get_running_loop().create_task(self._send_all())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)

    async def _send_all(self) -> None:
        has_waited = False
        while self._unsent:
            some = self._unsent[:HEARTBEATS_IN_A_MESSAGE]
            del self._unsent[:HEARTBEATS_IN_A_MESSAGE]
            now_s = asyncio.get_running_loop().time()
            if has_waited:
                _fail([each for each in some if now_s - each[2] > _LIMIT_S / 2], _LATE)
                some = [each for each in some if now_s - each[2] <= _LIMIT_S / 2]
            if some:
                limit_s = _LIMIT_S - (now_s - some[0][2] if has_waited else 0.0)
                if tracing.spans is None:
                    await self._send_some(some, limit_s)
                else:
                    await self._send_traced(tracing.spans, some, limit_s)
            # From now on they have waited for a message: not for this process, which may have been paused.
            has_waited = True

    async def _send_traced(self, spans: tracing.Spans, some: list[_Asked], limit_s: float) -> None:
        """A message of many calls is in none of their traces, but linked to them."""
        links, self._links = self._links, []
        with spans.within("forward heartbeats", tracing.Kind.CLIENT, {"rota.calls": len(some)}, links):
            await self._send_some(some, limit_s)

    async def _send_some(self, some: list[_Asked], limit_s: float) -> None:
        try:
            unpacked = unpack_answers(await self._send(pack_heartbeats([request for request, _, _ in some]), limit_s))
            if len(unpacked) != len(some):
                raise MalformedEnvelope(f"{len(unpacked)} replies to {len(some)} heartbeats")
        except grpc.aio.AioRpcError as error:
            _fail(some, error.details() or error.code().name)
        except MalformedEnvelope as error:
            _fail(some, str(error))
        except BaseException:
            _fail(some, _CLOSED)
            raise
        else:
            _settle(some, [Answer(*each) for each in unpacked])


def _fail(some: Sequence[_Asked], reason: str) -> None:
    _settle(some, [NoAnswer(reason)] * len(some))


def _settle(some: Sequence[_Asked], outcomes: Iterable[Answer | NoAnswer]) -> None:
    for (_, done, _), outcome in zip(some, outcomes, strict=True):
        try:
            done(outcome)
        except Exception as error:
            # A bug of ours, which must keep none of the others waiting.
            _log.error("the outcome of a forwarded heartbeat was not received", exc_info=error)
