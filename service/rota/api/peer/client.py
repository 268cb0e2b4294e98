"""Asking other replicas: `Peers` over one channel each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import grpc

from rota.api.peer.methods import CALL, CHANNEL_OPTIONS, RELEASED, WATCH, pack_document, unpack_event
from rota.protocol.limits import MAX_WAIT_MS
from rota.protocol.messages import Request
from rota.runtime.ports import Answer, JournalEvent, Replica
from rota.runtime.routing import PeerUnreachable
from rota.wire.envelopes import pack, unpack

CALL_S = MAX_WAIT_MS / 1000 + 5.0
TELL_S = 0.5


class GrpcPeers:
    """One persistent channel for each peer, opened when it is first needed."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(self, peer: Replica, request: Request) -> Answer:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(peer).unary_unary(CALL)
        try:
            data = await method(pack(request), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise PeerUnreachable(error.details() or error.code().name) from error
        reply, beside = unpack(data)
        return Answer(reply, beside["revision"], beside["epoch"], beside["owner"])

    async def watch(
        self, peer: Replica, namespace: str, group_id: str, after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        asked = {"namespace": namespace, "group_id": group_id, "after_revision": after_revision}
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel(peer).unary_stream(WATCH)
        stream = method(pack_document(asked))
        try:
            async for data in stream:
                yield unpack_event(data)
        except grpc.aio.AioRpcError:
            return
        finally:
            stream.cancel()

    async def tell_released(self, peers: Sequence[Replica]) -> None:
        async with asyncio.TaskGroup() as group:
            for peer in peers:
                group.create_task(self._tell(peer))

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def _tell(self, peer: Replica) -> None:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(peer).unary_unary(RELEASED)
        with suppress(grpc.aio.AioRpcError):
            await method(b"{}", timeout=TELL_S)

    def _channel(self, peer: Replica) -> grpc.aio.Channel:
        channel = self._channels.get(peer.peer_address)
        if channel is None:
            channel = grpc.aio.insecure_channel(peer.peer_address, options=CHANNEL_OPTIONS)
            self._channels[peer.peer_address] = channel
        return channel
