"""Answering other replicas, from this replica's own shards only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc

from rota.api.peer.methods import (
    CALL,
    RELEASED,
    SERVER_OPTIONS,
    SERVICE,
    WATCH,
    pack_event,
    unpack_document,
)
from rota.protocol.errors import ErrorCode
from rota.runtime.coordinator import LocalCoordinator
from rota.runtime.ports import Answer
from rota.wire.envelopes import MalformedEnvelope, pack, unpack

STOP_GRACE_S = 0.2


class PeerServer:
    """Listens for the other replicas. `address` is known once it has started."""

    def __init__(self, local: LocalCoordinator, host: str, port: int = 0) -> None:
        self._local = local
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.port = self._server.add_insecure_port(f"{host}:{port}")

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE_S)

    def _handlers(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            CALL.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._call),
            RELEASED.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._released),
            WATCH.rpartition("/")[2]: grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _call(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            request, _ = unpack(data)
        except MalformedEnvelope as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        answer = self._as_moved(await self._local.call(request))
        return pack(answer.reply, revision=answer.revision, epoch=answer.epoch, owner=answer.owner)

    def _as_moved(self, answer: Answer) -> Answer:
        """A draining replica has decided nothing for this call: the forwarder may ask the next owner."""
        if not self._local.draining or answer.reply.error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return answer
        return replace(answer, reply=replace(answer.reply, error=ErrorCode.NOT_COORDINATOR))

    async def _released(self, _data: bytes, _context: Any) -> bytes:
        self._local.nudge()
        return b"{}"

    async def _watch(self, data: bytes, _context: Any) -> AsyncIterator[bytes]:
        asked = unpack_document(data)
        async for event in self._local.watch(asked["namespace"], asked["group_id"], asked["after_revision"]):
            yield pack_event(event)
