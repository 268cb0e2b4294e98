"""Answering other replicas, from this replica's own shards only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import grpc

from rota.access.budgets import BUDGETS, Budgets
from rota.access.sources import NO_PROXIES
from rota.api.grpc.bounds import ANY_NUMBER, bounded_options
from rota.api.grpc.failures import abort, failure_of
from rota.api.grpc.receiving import Receiver
from rota.api.heartbeats import answers_to
from rota.api.known_methods import add_methods, lasting_server
from rota.api.peer.answers import packed, packed_answers
from rota.api.peer.methods import (
    CALL,
    CALLS_OF_A_CONNECTION,
    HEARTBEATS,
    HELD,
    MAX_MESSAGE_BYTES,
    RELEASED,
    SERVICE,
    TOPICS_CHANGED,
    WATCH,
    Claims,
    Watch,
    pack_refusal,
)
from rota.api.peer.secret import demand_secret
from rota.api.peer.traces import forwarded
from rota.api.peer.unproven import UnprovenConnections
from rota.grpc_polling import keep_polling
from rota.observability.metrics import Metrics
from rota.protocol.errors import NotInJournal, RejectedRequest
from rota.replica.forwarding import OWNER_ANSWERS_MS
from rota.runtime.coordinator import LocalCoordinator
from rota.wire.envelopes import MalformedEnvelope, pack, unpack, unpack_heartbeats, unpack_request

STOP_GRACE_S = 0.2
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 10_000, 5_000
"""A peer that is cut off keeps what it has left, its watches above all, no longer than this."""

_T = TypeVar("_T")
Context = grpc.aio.ServicerContext[bytes, bytes]
Behaviour = Callable[[bytes, Context], Awaitable[bytes | None]]


class PeerServer:
    """Listens for the other replicas, and answers those that show one of the secrets, where these are required.

    `credentials` for mutual TLS: then callers must show a certificate, too. A message is received only once its call
    has shown the secret; without secrets and certificates, messages have turns within the budget for clients.
    """

    def __init__(
        self,
        local: LocalCoordinator,
        host: str,
        port: int = 0,
        secrets: Callable[[], Sequence[str]] | None = None,
        credentials: grpc.ServerCredentials | None = None,
        *,
        budgets: Budgets = BUDGETS,
        metrics: Metrics | None = None,
        most_connections: int = ANY_NUMBER,
    ) -> None:
        metrics = metrics or Metrics()
        self._local = local
        self._secrets = secrets
        self._unproven = UnprovenConnections(budgets.handshakes.per_source)
        receiver = Receiver(budgets, None, NO_PROXIES, metrics)
        is_open = secrets is None and credentials is None
        self._receive = receiver.message if is_open else receiver.message_at_once
        keep_polling()
        options = bounded_options(
            streams=CALLS_OF_A_CONNECTION,
            message_bytes=MAX_MESSAGE_BYTES,
            keepalive_ms=KEEPALIVE_MS,
            keepalive_timeout_ms=KEEPALIVE_TIMEOUT_MS,
            most_connections=most_connections,
        )
        self._server = lasting_server([*options, ("grpc.so_reuseport", 0)])
        add_methods(self._server, SERVICE, self._handlers())
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._closing_unproven: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._server.start()
        self._closing_unproven = asyncio.create_task(self._unproven.keep_few(self.port))

    async def stop(self) -> None:
        if self._closing_unproven is not None:
            self._closing_unproven.cancel()
            await asyncio.wait((self._closing_unproven,))
        await self._server.stop(STOP_GRACE_S)

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """By name. To gRPC all are streams of requests: it would receive the messages of strangers otherwise."""
        unary: dict[str, Behaviour] = {
            CALL: self._call,
            HEARTBEATS: self._heartbeats,
            RELEASED: self._released,
            TOPICS_CHANGED: self._topics_changed,
            HELD: self._held,
        }
        handlers: dict[str, Any] = {
            path: grpc.stream_unary_rpc_method_handler(self._entered(behaviour)) for path, behaviour in unary.items()
        }
        handlers[WATCH] = grpc.stream_stream_rpc_method_handler(self._entered(self._watch))
        return {path.rpartition("/")[2]: handler for path, handler in handlers.items()}

    def _entered(self, behaviour: Behaviour) -> Callable[[Any, Context], Awaitable[Any]]:
        """The behaviour, for callers that prove to be peers."""

        async def enter(_requests: object, context: Context) -> bytes | None:
            if self._secrets is not None:
                await demand_secret(self._secrets(), context)
            self._unproven.prove(context.peer())
            try:
                data = await self._receive(context)
            except RejectedRequest as rejected:
                await abort(context, failure_of(rejected))
            return await behaviour(data, context)

        return enter

    async def _call(self, data: bytes, context: Context) -> bytes:
        request = await _read(unpack_request, data, context)
        with forwarded(context, type(request).__name__):
            answer = await self._local.call(request)
        return packed(answer)

    async def _heartbeats(self, data: bytes, context: Context) -> bytes:
        requests = await _read(unpack_heartbeats, data, context)
        with forwarded(context, "heartbeats"):
            answers = await answers_to(self._local, requests, OWNER_ANSWERS_MS / 1000)
        return packed_answers(answers)

    async def _released(self, _data: bytes, _context: Context) -> bytes:
        self._local.nudge()
        return b""

    async def _held(self, data: bytes, context: Context) -> bytes:
        claims = await _read(partial(unpack, Claims), data, context)
        return pack(self._local.held(claims.replica_id, claims.epochs))

    async def _topics_changed(self, data: bytes, context: Context) -> bytes:
        self._local.on_topics_changed(await _read(partial(unpack, list[str]), data, context))
        return b""

    async def _watch(self, data: bytes, context: Context) -> None:
        asked = await _read(partial(unpack, Watch), data, context)
        events: Any = self._local.watch(asked.namespace, asked.group_id, asked.after_revision)
        try:
            async with aclosing(events):
                async for event in events:
                    await context.write(pack(event))
        except NotInJournal as refusal:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, pack_refusal(refusal))


async def _read(unpack: Callable[[bytes], _T], data: bytes, context: Context) -> _T:
    """What a peer sends; INVALID_ARGUMENT for what no replica sends."""
    try:
        return unpack(data)
    except MalformedEnvelope as error:
        detail = str(error)
    # Outside of the handler: what is raised there keeps the frames of the error, and their message.
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
    raise AssertionError("abort raises")
