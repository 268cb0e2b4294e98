"""Answering other replicas, from this replica's own shards only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import grpc

from rota.api.heartbeats import answers_to
from rota.api.known_methods import add_methods, lasting_server
from rota.api.peer.answers import packed
from rota.api.peer.methods import (
    CALL,
    HEARTBEATS,
    HELD,
    RELEASED,
    SERVER_OPTIONS,
    SERVICE,
    TOPICS_CHANGED,
    WATCH,
    pack_document,
    pack_event,
    pack_refusal,
    unpack_claims,
    unpack_namespaces,
    unpack_watch,
)
from rota.api.peer.secret import SecretRequired
from rota.api.peer.traces import forwarded
from rota.grpc_polling import keep_polling
from rota.protocol.errors import NotInJournal
from rota.replica.forwarding import OWNER_ANSWERS_MS, as_moved
from rota.runtime.coordinator import LocalCoordinator
from rota.wire.envelopes import MalformedEnvelope, pack, unpack_request
from rota.wire.peer_heartbeats import unpack_heartbeats

STOP_GRACE_S = 0.2

_T = TypeVar("_T")


class PeerServer:
    """Listens for the other replicas, and answers those that show one of the secrets, where these are required.

    `credentials` for mutual TLS: then callers must show a certificate, too.
    """

    def __init__(
        self,
        local: LocalCoordinator,
        host: str,
        port: int = 0,
        secrets: Callable[[], Sequence[str]] | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._local = local
        guards = [SecretRequired(secrets)] if secrets is not None else []
        keep_polling()
        self._server = lasting_server(SERVER_OPTIONS, guards)
        add_methods(self._server, SERVICE, self._handlers())
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE_S)

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        return {
            CALL.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._call),
            HEARTBEATS.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._heartbeats),
            RELEASED.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._released),
            TOPICS_CHANGED.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._topics_changed),
            HELD.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._held),
            WATCH.rpartition("/")[2]: grpc.unary_stream_rpc_method_handler(self._watch),
        }

    async def _call(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        request = await _read(unpack_request, data, context)
        with forwarded(context, type(request).__name__):
            answer = as_moved(await self._local.call(request))
        return pack(
            answer.reply, revision=answer.revision, epoch=answer.epoch, owner=answer.owner, shards=answer.shards
        )

    async def _heartbeats(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        requests = await _read(unpack_heartbeats, data, context)
        with forwarded(context, "heartbeats"):
            answers = await answers_to(self._local, requests, OWNER_ANSWERS_MS / 1000)
        return packed(answers)

    async def _released(self, _data: bytes, _context: Any) -> bytes:
        self._local.nudge()
        return b"{}"

    async def _held(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return pack_document({"held": self._local.held(*await _read(unpack_claims, data, context))})

    async def _topics_changed(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        self._local.on_topics_changed(await _read(unpack_namespaces, data, context))
        return b"{}"

    async def _watch(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        asked = await _read(unpack_watch, data, context)
        try:
            async for event in self._local.watch(*asked):
                yield pack_event(event)
        except NotInJournal as refusal:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, pack_refusal(refusal))


async def _read(unpack: Callable[[bytes], _T], data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> _T:
    """What a peer sends; INVALID_ARGUMENT for what no replica sends."""
    try:
        return unpack(data)
    except MalformedEnvelope as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise AssertionError("abort raises") from error
