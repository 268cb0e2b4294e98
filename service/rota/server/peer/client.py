"""Asking other replicas: `Peers` over one stream to each."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import grpc

from rota.core.replica.forwarding import NoAnswer, answer_timeout_ms
from rota.core.replica.ports import Answer, Cancel, JournalEvent, Replica, ShardOwner
from rota.grpc_polling import keep_polling
from rota.protocol import tracing
from rota.protocol.errors import LinesPruned, ReaderIsAhead
from rota.protocol.messages import Request
from rota.server.peer.messages import (
    EVENTS_AHEAD,
    EXCHANGE,
    MAX_MESSAGE_BYTES,
    MOST_UNANSWERED,
    MOST_UNSENT_BYTES,
    Answered,
    Cancelled,
    Holds,
    MalformedMessage,
    MoreTaken,
    Outbox,
    Released,
    TopicsChanged,
    Watch,
    Watched,
    pack,
    pack_asked,
    read_answer,
    unpack,
)
from rota.server.peer.secret import Metadata, shown

NOTIFY_S = 0.5
HELD_S = 0.3
"""By so much a take-over is later where the former owner's machine does not even refuse the connection."""

CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # Channels to the same peer would share a connection otherwise.
    # Answers have no bound, as those to clients have none: a description of 10,000 members may take any size.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that is cut off is noticed, and what waits there given up, in time for clients to ask elsewhere within the
    # shortest rebalance timeout. Three packets lost in a row are no cut: TCP has sent them again by then.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 1_500),
    # The first bounds what the other kernel leaves unacknowledged, this one the answer of the process: else a minute.
    ("grpc.http2.ping_timeout_ms", 1_500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted peer is back at once; the default back-off grows to minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # The least is also the most that one attempt to connect may take: a peer that is cut off answers nothing at all.
    ("grpc.min_reconnect_backoff_ms", 500),
    # Peers are inside of the network that `http_proxy` is the way out of. A proxy for gRPC is meant, if there is one.
    ("grpc.enable_http_proxy", int("grpc_proxy" in os.environ)),
)
PEER_NAME = "rota-peer"
"""What every replica's certificate is for: addresses of replicas come and go."""
TLS_CHANNEL_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", PEER_NAME))

_YES = pack(True)
_CLOSED = NoAnswer("the connection to it is closed")
_LATE = NoAnswer("no answer in time")
_FULL = NoAnswer("too many requests wait for its answers")
_TOO_LARGE = NoAnswer("the request is larger than a message between replicas")
_log = logging.getLogger(__name__)

ChannelCredentials = Callable[[], tuple[object, grpc.ChannelCredentials]]
"""The credentials as they are now, behind an object that is another one each time that they change."""
_Key = tuple[str, int, Metadata]
"""Address, identity of the credentials, and the secret that is shown."""
Receive = Callable[[Answered | NoAnswer], None]
"""Gets the answer to a request, or the reason why there is none."""


class GrpcPeers:
    """Persistent connections to other replicas, opened when they are first needed, on which the first secret is shown.

    With `credentials` the connections are mutual TLS. When those or the secret change, new connections are opened; the
    old ones stay for requests in progress. Whenever a connection is opened, those of no use any more are closed.
    """

    def __init__(
        self, secrets: Callable[[], Sequence[str]] = tuple, credentials: ChannelCredentials | None = None
    ) -> None:
        self._secrets = secrets
        self._credentials = credentials
        self._links: dict[_Key, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, peer: Replica, request: Request, done: Callable[[Answer | NoAnswer], None]) -> Cancel:
        if tracing.spans is None:
            return self._send(peer, request, done)
        return self._keep(self._send_traced(tracing.spans, peer, request, done)).cancel

    def _send(self, peer: Replica, request: Request, done: Callable[[Answer | NoAnswer], None]) -> Cancel:
        def receive(answered: Answered | NoAnswer) -> None:
            try:
                done(answered if isinstance(answered, NoAnswer) else read_answer(request, answered))
            except MalformedMessage as error:
                done(NoAnswer(f"its answer cannot be read, so it may be of another release: {error}"))

        link, limit_s = self._link(peer.peer_address), answer_timeout_ms(request) / 1000
        return partial(link.cancel, link.ask(request, receive, limit_s))

    async def _send_traced(
        self, spans: tracing.Spans, peer: Replica, request: Request, done: Callable[[Answer | NoAnswer], None]
    ) -> None:
        outcome: asyncio.Future[Answer | NoAnswer] = asyncio.get_running_loop().create_future()
        with spans.within(f"forward {type(request).__name__}", tracing.Kind.CLIENT) as span:
            span.note("rota.peer", peer.replica_id)
            cancel = self._send(peer, request, partial(_settle, outcome))
            try:
                await outcome
            finally:
                cancel()
        done(outcome.result())

    async def watch(
        self, peer: Replica, namespace: str, group_id: str, after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        link, events = self._link(peer.peer_address), asyncio.Queue[Answered | NoAnswer]()
        number = link.ask(Watch(namespace, group_id, after_revision), events.put_nowait, None)
        try:
            for taken in count(1):
                answered = await events.get()
                watched = Watched() if isinstance(answered, NoAnswer) else unpack(Watched, answered.body)
                if watched.refusal is not None:
                    after, first, last, incarnation = watched.refusal
                    raise LinesPruned(after, first) if last is None else ReaderIsAhead(after, first, last, incarnation)
                if watched.event is None:
                    return
                if taken % (EVENTS_AHEAD // 2) == 0:
                    link.take_more(number)
                yield watched.event
        except MalformedMessage as error:
            _log.warning("a peer's event cannot be read", extra={"peer": peer.replica_id, "error": str(error)})
        finally:
            link.cancel(number)

    async def held(self, owners: Sequence[ShardOwner]) -> set[int]:
        answers = await asyncio.gather(
            *(
                self._ask(owner.peer_address, Holds(owner.replica_id, owner.shard_id, owner.epoch), HELD_S)
                for owner in owners
            )
        )
        return {owner.shard_id for owner, answer in zip(owners, answers, strict=True) if answer == _YES}

    async def notify_released(self, peers: Sequence[Replica]) -> None:
        await asyncio.gather(*(self._ask(peer.peer_address, Released(), NOTIFY_S) for peer in peers))

    async def notify_topics_changed(self, peers: Sequence[Replica], namespaces: Sequence[str]) -> None:
        changed = TopicsChanged(list(namespaces))
        await asyncio.gather(*(self._ask(peer.peer_address, changed, NOTIFY_S) for peer in peers))

    async def _ask(self, address: str, request: Any, limit_s: float) -> bytes | None:
        """The answer to a request that no client waits for; None if there is none."""
        outcome: asyncio.Future[Answered | NoAnswer] = asyncio.get_running_loop().create_future()
        link = self._link(address)
        number = link.ask(request, partial(_settle, outcome), limit_s)
        try:
            answered = await outcome
        finally:
            link.cancel(number)
        return None if isinstance(answered, NoAnswer) else bytes(answered.body)

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _link(self, address: str) -> _Link:
        version, credentials = self._credentials() if self._credentials is not None else (None, None)
        secret = shown(self._secrets())
        key = (address, id(version), secret)
        link = self._links.get(key)
        if link is None:
            self._close_useless(key)
            link = self._links[key] = _Link(address, secret, credentials, version)
        return link

    def _close_useless(self, now: _Key) -> None:
        """Close the idle connections to peers that are gone, and those with former credentials."""
        for key, link in list(self._links.items()):
            if link.is_idle and (key[1:] != now[1:] or not link.is_connected):
                self._keep(self._links.pop(key).close())

    def _keep(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _settle(outcome: asyncio.Future[Any], value: Any) -> None:
    if not outcome.done():
        outcome.set_result(value)


@dataclass(slots=True)
class _Unanswered:
    """A request without an answer."""

    key: int
    """Its place among what is unsent."""
    receive: Receive
    deadline: asyncio.TimerHandle | None
    """Is None for a watch, which gets many answers."""


class _Link:
    """The stream to one peer. It is opened when something is asked, and again after it has broken.

    What is unanswered when it breaks has no answer: the peer may have decided it or not. gRPC's channel connects again.
    """

    def __init__(
        self,
        address: str,
        metadata: Metadata,
        credentials: grpc.ChannelCredentials | None,
        version: object,
    ) -> None:
        self.version = version
        """Kept, so that nothing newer has its identity."""
        keep_polling()
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=TLS_CHANNEL_OPTIONS)
        self._rpc: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(EXCHANGE)
        self._metadata = metadata
        self._stream: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._unanswered: dict[int, _Unanswered] = {}
        self._outbox = Outbox()

    @property
    def is_idle(self) -> bool:
        """Nothing waits for an answer."""
        return not self._unanswered

    @property
    def is_connected(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    def ask(self, request: Any, receive: Receive, limit_s: float | None) -> int:
        """Send a request; `receive` gets its answer, or why there is none within `limit_s`, after this has returned.

        Without a limit the request is a watch, whose answers `receive` gets until there is none. The result is the
        request's number.
        """
        number, loop = next(self._numbers), asyncio.get_running_loop()
        data = pack_asked(number, request, (tracing.traceparent() or "") if tracing.spans is not None else "")
        if len(data) > MAX_MESSAGE_BYTES - 16:
            loop.call_soon(receive, _TOO_LARGE)
            return number
        if len(self._unanswered) >= MOST_UNANSWERED or self._outbox.size > MOST_UNSENT_BYTES:
            loop.call_soon(receive, _FULL)
            return number
        deadline = None if limit_s is None else loop.call_later(limit_s, self._give_up, number)
        self._unanswered[number] = _Unanswered(self._outbox.put(data), receive, deadline)
        if self._stream is None:
            # In a context of its own: the stream serves all requests, so it belongs to the trace of none.
            self._stream = loop.create_task(self._exchange(), context=Context())
        return number

    def take_more(self, number: int) -> None:
        """Half of the events that the peer may send ahead were taken."""
        if number in self._unanswered:
            self._outbox.put(pack_asked(number, MoreTaken()))

    def cancel(self, number: int) -> None:
        """The caller is gone: there is no answer. Does nothing where the request has one."""
        asked = self._unanswered.pop(number, None)
        if asked is None:
            return
        if asked.deadline is not None:
            asked.deadline.cancel()
        if not self._outbox.drop(asked.key):
            self._outbox.put(pack_asked(number, Cancelled()))

    def _give_up(self, number: int) -> None:
        receive = self._unanswered[number].receive
        self.cancel(number)
        receive(_LATE)

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            await asyncio.wait((self._stream,))
        self._end(_CLOSED)
        await self.channel.close()

    async def _exchange(self) -> None:
        stream = self._rpc(metadata=self._metadata)
        sending = asyncio.create_task(self._outbox.send_all(stream.write))
        sending.add_done_callback(lambda _: stream.cancel())
        why = _CLOSED
        try:
            while isinstance(data := await stream.read(), bytes):
                for answered in unpack(list[Answered], data):
                    self._received(answered)
        except grpc.aio.AioRpcError as error:
            why = NoAnswer(error.details() or error.code().name)
        except MalformedMessage as error:
            why = NoAnswer(str(error))
        finally:
            sending.cancel()
            self._end(why)
            await asyncio.gather(sending, return_exceptions=True)

    def _end(self, why: NoAnswer) -> None:
        """Requests from now on go over a new stream."""
        self._stream, self._outbox = None, Outbox()
        unanswered, self._unanswered = self._unanswered, {}
        for asked in unanswered.values():
            if asked.deadline is not None:
                asked.deadline.cancel()
            _call(asked.receive, why)

    def _received(self, answered: Answered) -> None:
        asked = self._unanswered.get(answered.number)
        if asked is None:
            return  # It came too late, or its caller is gone.
        if asked.deadline is not None:
            asked.deadline.cancel()
            del self._unanswered[answered.number]
        _call(asked.receive, NoAnswer(answered.failure) if answered.failure else answered)


def _call(receive: Receive, outcome: Answered | NoAnswer) -> None:
    try:
        receive(outcome)
    except Exception as error:
        # A bug of ours, which must keep none of the others waiting.
        _log.error("an answer of a peer was not received", exc_info=error)
