"""Asking other replicas: `Peers` over one channel each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import cast

import grpc

from rota.api.peer.answers import read_answer
from rota.api.peer.heartbeats import CollectedHeartbeats, may_be_collected
from rota.api.peer.methods import (
    CALL,
    CALLS_OF_A_CONNECTION,
    CHANNEL_OPTIONS,
    HEARTBEATS,
    HELD,
    RELEASED,
    TLS_CHANNEL_OPTIONS,
    TOPICS_CHANGED,
    WATCH,
    Claims,
    Watch,
    unpack_refusal,
)
from rota.api.peer.secret import Metadata, shown
from rota.api.peer.unix import Kind, UnixLink, socket_of
from rota.grpc_polling import keep_polling
from rota.observability import tracing
from rota.protocol.messages import CommitOffsets, Request
from rota.replica.forwarding import Beats, ForwardedAtOnce, NoAnswer, answer_timeout_ms
from rota.replica.ports import Answer, JournalEvent, Replica, ShardOwner
from rota.runtime.forwarding import PeerUnreachable
from rota.wire.envelopes import MalformedEnvelope, pack, pack_request, unpack

NOTIFY_S = 0.5
HELD_S = 0.3
"""By so much a take-over is later where the former owner's machine does not even refuse the connection."""
_log = logging.getLogger(__name__)

ChannelCredentials = Callable[[], tuple[object, grpc.ChannelCredentials]]
"""The credentials as they are now, behind an object that is another one each time that they change."""


class GrpcPeers:
    """Persistent channels for each peer, opened when they are first needed. Calls show the first of the secrets.

    With `credentials` the channels are mutual TLS. When those change, new channels are opened; the old ones stay for
    calls in progress. Whenever a channel is opened, those that are of no use any more are closed.
    """

    def __init__(
        self,
        secrets: Callable[[], Sequence[str]] = tuple,
        credentials: ChannelCredentials | None = None,
        sockets: Path | None = None,
    ) -> None:
        """`sockets`: the folder with those of the workers beside this one."""
        self._secrets = secrets
        self._sockets = sockets
        self._credentials = credentials
        self._links: dict[tuple[str, int, int], _Link] = {}
        """By address, credentials and number: a peer has a further one when all others are full."""
        self._reporting: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def _metadata(self) -> Metadata:
        return shown(self._secrets())

    async def call(self, peer: Replica, request: Request) -> Answer:
        if tracing.spans is None:
            return await self._call(peer, request)
        with tracing.spans.within(f"forward {type(request).__name__}", tracing.Kind.CLIENT) as span:
            span.note("rota.peer", peer.replica_id)
            return await self._call(peer, request)

    async def _call(self, peer: Replica, request: Request) -> Answer:
        link = self._link(peer)
        if may_be_collected(request):
            return await _collected(link.heartbeats, cast("Beats", request))
        try:
            metadata = (*self._metadata, *tracing.carried())
            with link.used():
                data = await link.call(
                    pack_request(request), timeout=answer_timeout_ms(request) / 1000, metadata=metadata
                )
        except grpc.aio.AioRpcError as error:
            raise PeerUnreachable(error.details() or error.code().name) from error
        try:
            return read_answer(request, data)
        except MalformedEnvelope as error:
            raise PeerUnreachable(f"its answer cannot be read, so it may be of another release: {error}") from error

    def submit(self, peer: Replica, request: ForwardedAtOnce, done: Callable[[Answer | NoAnswer], None]) -> None:
        if tracing.spans is None:
            link = self._link(peer)
            if not isinstance(request, CommitOffsets):
                link.heartbeats.ask(request, done)
                return
            if self._sent(link, request, done):
                return
        task = asyncio.get_running_loop().create_task(self._report(peer, request, done))
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    @staticmethod
    def _sent(link: _Link, request: CommitOffsets, done: Callable[[Answer | NoAnswer], None]) -> bool:
        """Whether the commit went without a task: an administrator's and one to another machine are rpcs."""
        if link.unix is None or request.act is not None:
            return False
        limit_s = answer_timeout_ms(request) / 1000
        return link.unix.send(pack(request), limit_s, lambda outcome: done(_committed(request, outcome)), Kind.COMMIT)

    async def _report(self, peer: Replica, request: ForwardedAtOnce, done: Callable[[Answer | NoAnswer], None]) -> None:
        """As `call`, with its span."""
        outcome: Answer | NoAnswer
        try:
            outcome = await self.call(peer, request)
        except PeerUnreachable as error:
            outcome = NoAnswer(str(error))
        done(outcome)

    async def watch(
        self, peer: Replica, namespace: str, group_id: str, after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        asked = Watch(namespace, group_id, after_revision)
        link = self._link(peer)
        stream = link.watch(pack(asked), metadata=self._metadata)
        try:
            with link.used():
                async for data in stream:
                    yield unpack(JournalEvent, data)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.OUT_OF_RANGE and (refusal := unpack_refusal(error.details() or "")):
                raise refusal from error
        except MalformedEnvelope as error:
            _log.warning("a peer's event cannot be read", extra={"peer": peer.replica_id, "error": str(error)})
        finally:
            stream.cancel()

    async def held(self, owners: Sequence[ShardOwner]) -> set[int]:
        by_replica: dict[tuple[str, str], list[ShardOwner]] = {}
        for owner in owners:
            by_replica.setdefault((owner.replica_id, owner.peer_address), []).append(owner)
        return set().union(*await asyncio.gather(*map(self._held_by, by_replica.values())))

    async def _held_by(self, owners: Sequence[ShardOwner]) -> set[int]:
        """Of these shards of one replica. One that cannot be asked, or does not answer in time, holds none."""
        peer = Replica(owners[0].replica_id, owners[0].address, owners[0].peer_address)
        epochs = {owner.shard_id: owner.epoch for owner in owners}
        data = pack(Claims(peer.replica_id, epochs))
        try:
            link = self._link(peer)
            with link.used():
                answer = await link.held(data, timeout=HELD_S, metadata=self._metadata)
            return epochs.keys() & unpack(list[int], answer)
        except Exception as error:
            _log.info("a former owner does not answer", extra={"peer": peer.replica_id, "error": repr(error)[:200]})
            return set()

    async def notify_released(self, peers: Sequence[Replica]) -> None:
        async with asyncio.TaskGroup() as group:
            for peer in peers:
                group.create_task(self._notify(peer, attrgetter("released"), b""))

    async def notify_topics_changed(self, peers: Sequence[Replica], namespaces: Sequence[str]) -> None:
        data = pack(list(namespaces))
        async with asyncio.TaskGroup() as group:
            for peer in peers:
                group.create_task(self._notify(peer, attrgetter("topics_changed"), data))

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()
        await asyncio.gather(*self._closing)

    async def _notify(self, peer: Replica, rpc_of: Callable[[_Link], _Unary], data: bytes) -> None:
        try:
            link = self._link(peer)
            with suppress(grpc.aio.AioRpcError), link.used():
                await rpc_of(link)(data, timeout=NOTIFY_S, metadata=self._metadata)
        except Exception as error:
            # A row of the registry that no replica writes: it costs this notification, and no round on the leases.
            _log.warning("a peer cannot be notified", extra={"peer": peer.replica_id, "error": repr(error)})

    def _link(self, peer: Replica) -> _Link:
        version, credentials = self._credentials() if self._credentials is not None else (None, None)
        keys = ((peer.peer_address, id(version), number) for number in count())
        key = next(key for key in keys if key not in self._links or not self._links[key].is_full)
        link = self._links.get(key)
        if link is None:
            self._close_useless(version)
            unix = UnixLink(socket_of(self._sockets, peer.peer_address)) if self._sockets is not None else None
            link = self._links[key] = _Link(peer.peer_address, lambda: self._metadata, credentials, version, unix)
        return link

    def _close_useless(self, version: object) -> None:
        """Close the idle links of peers that are gone, and of former credentials."""
        for key, link in list(self._links.items()):
            if link.is_idle and (link.version is not version or not link.is_connected):
                closing = asyncio.get_running_loop().create_task(self._links.pop(key).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)


def _committed(request: CommitOffsets, outcome: bytes | NoAnswer) -> Answer | NoAnswer:
    if isinstance(outcome, NoAnswer):
        return outcome
    try:
        return read_answer(request, outcome)
    except MalformedEnvelope as error:
        return NoAnswer(str(error))


async def _collected(heartbeats: CollectedHeartbeats, request: Beats) -> Answer:
    answered: asyncio.Future[Answer | NoAnswer] = asyncio.get_running_loop().create_future()

    def done(outcome: Answer | NoAnswer) -> None:
        if not answered.done():
            answered.set_result(outcome)

    heartbeats.ask(request, done)
    outcome = await answered
    if isinstance(outcome, NoAnswer):
        raise PeerUnreachable(outcome.why)
    return outcome


class _Link:
    """The channel to one peer, with what can be asked over it."""

    def __init__(
        self,
        address: str,
        metadata: Callable[[], Metadata],
        credentials: grpc.ChannelCredentials | None,
        version: object,
        unix: UnixLink | None,
    ) -> None:
        self.unix = unix
        self.version = version
        """Kept, so that nothing newer has its identity."""
        keep_polling()
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=TLS_CHANNEL_OPTIONS)
        self.call: _Unary = self.channel.unary_unary(CALL)
        self.released: _Unary = self.channel.unary_unary(RELEASED)
        self.held: _Unary = self.channel.unary_unary(HELD)
        self.topics_changed: _Unary = self.channel.unary_unary(TOPICS_CHANGED)
        self.watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(WATCH)
        heartbeats: _Unary = self.channel.unary_unary(HEARTBEATS)

        async def send(data: bytes, timeout_s: float) -> bytes:
            return await heartbeats(data, timeout=timeout_s, metadata=(*metadata(), *tracing.carried()))

        self.heartbeats = CollectedHeartbeats(send, unix)
        self._uses = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """For as long as an rpc takes, other than one of heartbeats."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1

    @property
    def is_full(self) -> bool:
        """Further calls would wait at the peer until others have ended; heartbeats and news still have room."""
        return self._uses >= CALLS_OF_A_CONNECTION // 2

    @property
    def is_idle(self) -> bool:
        """Nothing waits for an answer."""
        return not self._uses and self.heartbeats.is_idle and (self.unix is None or self.unix.is_idle)

    @property
    def is_connected(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        await self.heartbeats.close()
        await self.channel.close()


_Unary = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
