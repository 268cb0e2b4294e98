"""Server-sent events: a group's journal, live, resumable by revision."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from rota.api.beginning import beginning_of_watch
from rota.api.http.draining import Draining
from rota.api.http.rendered import members_of
from rota.api.http.shapes import WATCH_QUERY, Event
from rota.api.http.waiting import until_disconnect
from rota.api.ports import ServedCoordinator
from rota.observability.metrics import Metrics
from rota.protocol.errors import NotInJournal, RejectedRequest
from rota.protocol.limits import Limits
from rota.replica.ports import JournalEvent, StoreUnavailable
from rota.wire.documents import dump_document
from rota.wire.problems import PRUNED_EVENT, problem_document
from rota.wire.routes import decode_path

PING_SECONDS = 15.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_PING = b": ping\n\n"
_DRAINED = b"event: server-drain\nretry: 100\ndata: {}\n\n"
_INTERRUPTED = b"event: interrupted\nretry: 1000\ndata: %b\n\n"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventStreams:
    """Opens streams of one group's events."""

    coordinator: ServedCoordinator
    limits: Limits
    metrics: Metrics
    draining: Draining
    ping_seconds: float = PING_SECONDS

    async def open(self, request: Request) -> EventStream:
        """`Last-Event-ID` wins over `?after=`, because a browser that reconnects keeps the URL.

        Raises `RejectedRequest`, also where the journal does not have the lines that the caller asks for.
        """
        path = decode_path(request.path_params)
        parameters = list(request.query_params.multi_items())
        if last_event_id := request.headers.get("last-event-id"):
            parameters.append(("after", last_event_id))
        asked = WATCH_QUERY.decode(WATCH_QUERY.from_query(parameters), self.limits).after
        after = await beginning_of_watch(self.coordinator, path["namespace"], path["group_id"], asked)
        events = self.coordinator.watch(path["namespace"], path["group_id"], after)
        return EventStream(events, self.metrics, self.draining, self.ping_seconds)


class EventStream:
    """One stream, as an ASGI response.

    Ends when the client hangs up; with `server-drain` when the server goes away, so that the client goes on elsewhere;
    with `interrupted` when the journal cannot be followed any more, or not by this caller, as the problem document in
    it says; with `revision-out-of-range` and a problem document when the journal does not have the next lines.
    """

    def __init__(
        self, events: AsyncIterator[JournalEvent], metrics: Metrics, draining: Draining, ping_seconds: float
    ) -> None:
        self._events = events
        self._metrics = metrics
        self._draining = draining
        self._ping_seconds = ping_seconds

        self._following: asyncio.Future[JournalEvent | bytes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(until_disconnect(receive))
        drained = asyncio.ensure_future(self._draining.wait())
        self._following = asyncio.ensure_future(self._follow())
        try:
            with self._metrics.streaming():
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                # A client that asks with HEAD sends its next request after the head.
                if scope["method"] != "HEAD":
                    await _send_frame(send, _PING)
                    await self._pump(send, gone, drained)
                await send({"type": "http.response.body", "body": b""})
        finally:
            closing = asyncio.create_task(self._close(gone, drained, self._following))
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                # The client's end may come first, and the server's while that is cleared away.
                await asyncio.wait((closing,))
                raise

    async def _close(self, *tasks: asyncio.Future[Any]) -> None:
        """Let go of the journal, which nothing may read any more then."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(self._events, AsyncGenerator):
            await self._events.aclose()

    async def _pump(self, send: Send, gone: asyncio.Future[None], drained: asyncio.Future[None]) -> None:
        while True:
            waited = (gone, drained, self._following)
            await asyncio.wait(waited, timeout=self._ping_seconds, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return None
            if drained.done():
                return await _send_frame(send, _DRAINED)
            if not self._following.done():
                await _send_frame(send, _PING)
                continue
            event = self._following.result()
            if isinstance(event, bytes):
                return await _send_frame(send, event)
            await _send_frame(send, _frame(event))
            self._following = asyncio.ensure_future(self._follow())

    async def _follow(self) -> JournalEvent | bytes:
        """The next event, or the last frame, which says why there will be no other event on this stream."""
        try:
            return await anext(self._events)
        except (StopAsyncIteration, StoreUnavailable):
            return _INTERRUPTED % b"{}"
        except NotInJournal as refusal:
            return _last_frame(refusal)
        except RejectedRequest as rejected:
            return _rejected_frame(rejected)
        except Exception:
            _log.exception("an event stream failed")
            return _INTERRUPTED % b"{}"


async def _send_frame(send: Send, frame: bytes) -> None:
    await send({"type": "http.response.body", "body": frame, "more_body": True})


def _last_frame(refusal: NotInJournal) -> bytes:
    """Without an id: the reader is still at the last line that it has read."""
    problem = problem_document(refusal.code, refusal.detail, **members_of(refusal))
    return b"event: %b\ndata: %b\n\n" % (PRUNED_EVENT.encode(), dump_document(problem))


def _rejected_frame(rejected: RejectedRequest) -> bytes:
    """The problem that a new call of the caller has. The client may come again, with its next credentials."""
    return _INTERRUPTED % dump_document(problem_document(rejected.code, rejected.detail))


def _frame(event: JournalEvent) -> bytes:
    """The kind is a word of ours, so it needs no escaping; JSON without line breaks fits one data line."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.kind.encode(), event.seq, msgspec.json.encode(Event.of(event)))
