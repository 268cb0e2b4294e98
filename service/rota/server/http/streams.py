"""Server-sent events: a group's journal, live, resumable by revision."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rota.core.replica.ports import JournalEvent, StoreUnavailable
from rota.protocol.errors import NotInJournal, RejectedRequest
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import MAX_SAFE_INTEGER
from rota.protocol.values import INT32_MAX, Epoch, Revision, matching, via, within
from rota.protocol.wire.documents import dump_document
from rota.protocol.wire.problems import PRUNED_EVENT, problem_document
from rota.protocol.wire.shapes import Shape
from rota.server.beginning import EARLIEST, After, beginning_of_watch
from rota.server.http.dependencies import Backend, until_disconnect
from rota.server.http.draining import Draining
from rota.server.observability.metrics import Metrics

MAX_EVENTS = 1_000
HEAD_ALONE = "rota.head"
"""The name in the scope of a request with the method HEAD, which is answered as GET is."""
_EARLIEST = f"`{EARLIEST}`: from the first line on that is not pruned."
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_PING = b": ping\n\n"
_DRAINED = b"event: server-drain\nretry: 100\ndata: {}\n\n"
_INTERRUPTED = b"event: interrupted\nretry: 1000\ndata: %b\n\n"

_log = logging.getLogger(__name__)


class Event(Struct, frozen=True):
    """A line of the journal."""

    revision: int
    """The shard's sequence number: dense, without gaps."""
    epoch: int
    """The epoch of the owner that wrote it."""
    at_ms: int
    """Milliseconds since 1970 at the owner."""
    namespace: str
    group_id: str
    generation_id: int
    kind: str
    """`rebalance_started`, `generation_completed`, `member_expired` …"""
    reason: str
    """Why, for people."""
    payload: dict[str, Any]
    """What else belongs to this kind of event; `cause` is the code beside the reason."""

    @classmethod
    def of(cls, line: JournalEvent) -> Event:
        place = line.namespace, line.group_id, line.generation_id
        return cls(line.seq, line.epoch, line.at_ms, *place, line.kind, line.reason, line.payload)


class JournalReply(Struct, frozen=True):
    """Lines of a shard's journal."""

    events: tuple[Event, ...]
    revision: Revision
    epoch: Epoch


_After = via(
    Annotated[
        str, matching("([0-9]{1,15}|earliest)", f"must be an integer from 0 to {MAX_SAFE_INTEGER}, or {EARLIEST}")
    ],
    lambda text: EARLIEST if text == EARLIEST else int(text),
    str,
)


class WatchQuery(Struct, frozen=True):
    after: Annotated[After | None, _After] = None
    """Events with a higher revision, first the past ones; `earliest`: from the first line on that is not pruned.
    Without it: from now on.
    """


class JournalQuery(Struct, frozen=True):
    shard: Annotated[int, within(NO_SHARD, INT32_MAX)]
    """The shard of the journal; -1: changes of API tokens."""
    after: Annotated[After, _After] = 0
    """Lines with a higher revision; `earliest`: from the first line on that is not pruned."""
    limit: Annotated[int, within(1, MAX_EVENTS)] = 100
    """Most lines to answer."""


WATCH_QUERY, JOURNAL_QUERY = Shape(WatchQuery, closed=True), Shape(JournalQuery, closed=True)


async def open_stream(http: HttpRequest, backend: Backend, namespace: str, group_id: str) -> EventStream:
    """`Last-Event-ID` wins over `?after=`, because a browser that reconnects keeps the URL.

    Raises `RejectedRequest`, also if the journal does not have the lines that the caller asks for.
    """
    parameters = list(http.query_params.multi_items())
    if last_event_id := http.headers.get("last-event-id"):
        parameters.append(("after", last_event_id))
    asked = WATCH_QUERY.decode(WATCH_QUERY.from_query(parameters), backend.limits).after
    after = await beginning_of_watch(backend.coordinator, namespace, group_id, asked)
    events = backend.coordinator.watch(namespace, group_id, after)
    return EventStream(events, backend.metrics, backend.draining, backend.ping_seconds)


class EventStream(StreamingResponse):
    """One stream of a group's events.

    Ends when the client hangs up; with `server-drain` when the server goes away, so that the client goes on elsewhere;
    with `interrupted` when the journal cannot be followed any more, or not by this caller, as the problem document in
    it says; with `revision-out-of-range` and a problem document when the journal does not have the next lines.
    """

    def __init__(
        self, events: AsyncIterator[JournalEvent], metrics: Metrics, draining: Draining, ping_seconds: float
    ) -> None:
        super().__init__((), headers=_HEADERS, media_type="text/event-stream")
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
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                # A client that asks with HEAD sends its next request after the head.
                if not scope.get(HEAD_ALONE):
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
    problem = problem_document(refusal.code, refusal.detail, **refusal.facts)
    return b"event: %b\ndata: %b\n\n" % (PRUNED_EVENT.encode(), dump_document(problem))


def _rejected_frame(rejected: RejectedRequest) -> bytes:
    """The problem that a new call of the caller has. The client may come again, with its next credentials."""
    return _INTERRUPTED % dump_document(problem_document(rejected.code, rejected.detail))


def _frame(event: JournalEvent) -> bytes:
    """The kind is a word of ours, so it needs no escaping; JSON without line breaks fits one data line."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.kind.encode(), event.seq, msgspec.json.encode(Event.of(event)))
