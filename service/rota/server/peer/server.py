"""Answering other replicas, from this replica's own shards only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from typing import Any

import grpc

from rota.core.access.budgets import BUDGETS, Budgets
from rota.core.replica.forwarding import SUBMITTED
from rota.core.replica.ports import Answer, Cancel
from rota.grpc_polling import keep_polling
from rota.protocol import tracing
from rota.protocol.errors import NotInJournal
from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.server.grpc.receiving import ANY_NUMBER, bounded_options
from rota.server.known_methods import add_methods, lasting_server
from rota.server.peer.messages import (
    EVENTS_AHEAD,
    EXCHANGE,
    MAX_MESSAGE_BYTES,
    MOST_UNANSWERED,
    MOST_UNSENT_BYTES,
    SERVICE,
    Asked,
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
    pack_answer,
    read_request,
    unpack,
)
from rota.server.peer.secret import log_stranger, shows_secret
from rota.server.peer.unproven import UnprovenConnections
from rota.server.runtime.coordinator import LocalCoordinator

STOP_GRACE_S = 0.2
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 10_000, 5_000
"""A peer that is cut off keeps what it has left, its watches above all, no longer than this."""
STREAMS_OF_A_CONNECTION = 4
"""At a time. A peer has one, and a second one while a broken one ends. gRPC keeps up to 40 KB of each that a busy event
loop has not refused yet, so few bound what strangers cost."""
MOST_STRANGERS = 16
"""Streams without proof at a port that demands none. Each may have one message that has not arrived in full."""

Context = grpc.aio.ServicerContext[bytes, bytes]
_log = logging.getLogger(__name__)


class PeerServer:
    """Listens for the other replicas, and answers those that show one of the secrets, or a certificate.

    `credentials` for mutual TLS: then callers must show a certificate, and need no secret if there are none. No message
    of a stream is received before the stream has shown the secret. `is_open`: a few streams need not show it.
    """

    def __init__(
        self,
        local: LocalCoordinator,
        host: str,
        port: int = 0,
        secrets: Callable[[], Sequence[str]] = tuple,
        credentials: grpc.ServerCredentials | None = None,
        *,
        is_open: bool = False,
        budgets: Budgets = BUDGETS,
        most_connections: int = ANY_NUMBER,
    ) -> None:
        self._local = local
        self._secrets = secrets
        self._is_open = is_open
        self._has_certificates = credentials is not None
        self._strangers = 0
        self._unproven = UnprovenConnections(budgets.handshakes.per_source)
        keep_polling()
        options = bounded_options(
            streams=STREAMS_OF_A_CONNECTION,
            message_bytes=MAX_MESSAGE_BYTES,
            keepalive_ms=KEEPALIVE_MS,
            keepalive_timeout_ms=KEEPALIVE_TIMEOUT_MS,
            most_connections=most_connections,
        )
        self._server = lasting_server([*options, ("grpc.so_reuseport", 0)])
        handler: Any = grpc.stream_stream_rpc_method_handler(self._exchange)
        add_methods(self._server, SERVICE, {EXCHANGE.rpartition("/")[2]: handler})
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

    async def _exchange(self, _requests: object, context: Context) -> None:
        is_stranger = self._is_stranger(context)
        if is_stranger and not self._is_open:
            await _refuse(context)
        if is_stranger and self._strangers >= MOST_STRANGERS:
            why = "too many replicas without a secret are connected (--peer-secret-file)"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self._strangers += is_stranger
        try:
            await self._serve(context, is_stranger=is_stranger)
        finally:
            self._strangers -= is_stranger

    def _is_stranger(self, context: Context) -> bool:
        secrets = self._secrets()
        return not shows_secret(secrets, context) and (bool(secrets) or not self._has_certificates)

    async def _serve(self, context: Context, *, is_stranger: bool) -> None:
        async def read() -> object:
            data = await context.read()
            if not is_stranger and self._is_stranger(context):
                await _refuse(context)  # The secret that the stream has shown is not among them any more.
            return data

        self._unproven.prove(context.peer())
        stream = _Stream(self._local, context.write)
        try:
            await stream.answer_all(read)
            return
        except MalformedMessage as error:
            detail = str(error)
        # Outside of the handler: what is raised there keeps the frames of the error, and their message.
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)


async def _refuse(context: Context) -> None:
    log_stranger(context.peer())
    why = "peers of this replica show a secret (--peer-secret-file)"
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)


class _Stream:
    """The requests of one peer. When the stream breaks, its unanswered requests are cancelled as those of a client."""

    def __init__(self, local: LocalCoordinator, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._local = local
        self._write = write
        self._outbox = Outbox()
        self._cancels: dict[int, Cancel] = {}
        """Functions that cancel the unanswered requests, by number."""
        self._room: dict[int, asyncio.Semaphore] = {}
        """The credits of the watches for further events, by number."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer_all(self, read: Callable[[], Awaitable[object]]) -> None:
        """Answer what is read until the peer ends the stream; raises `MalformedMessage`."""
        sending = asyncio.create_task(self._outbox.send_all(self._write))
        try:
            while not sending.done() and isinstance(data := await read(), bytes):
                for asked in unpack(list[Asked], data):
                    self._take(asked)
                await self._outbox.until(self._has_room)
        finally:
            for cancel in list(self._cancels.values()):
                cancel()
            sending.cancel()
            await asyncio.gather(sending, *self._tasks, return_exceptions=True)

    def _has_room(self) -> bool:
        return self._outbox.size <= MOST_UNSENT_BYTES and len(self._cancels) <= MOST_UNANSWERED

    def _take(self, asked: Asked) -> None:
        try:
            self._begin(asked.number, read_request(asked), asked)
        except MalformedMessage as error:
            self._send(asked.number, None, str(error))
        except Exception as error:
            self._broke(asked.number, error)

    def _begin(self, number: int, request: Any, asked: Asked) -> None:
        match request:
            case _ if isinstance(request, SUBMITTED) and tracing.spans is None:
                self._submit(number, request)
            case Cancelled():
                self._cancels.pop(number, _do_nothing)()
            case MoreTaken():
                for _ in range(EVENTS_AHEAD // 2 if number in self._room else 0):
                    self._room[number].release()
            case Watch():
                self._run(number, partial(self._watch, number, request))
            case Holds(replica_id, shard_id, epoch):
                self._send(number, bool(self._local.held(replica_id, {shard_id: epoch})))
            case Released():
                self._local.nudge()
                self._send(number)
            case TopicsChanged(namespaces):
                self._local.on_topics_changed(namespaces)
                self._send(number)
            case _:
                self._run(number, partial(self._call, request, asked))

    def _submit(self, number: int, request: Any) -> None:
        if isinstance(request, Heartbeat | HeartbeatMany):
            answer = self._local.try_heartbeat(request)
            if answer is not None:
                self._outbox.put(pack_answer(number, answer))
                return
        cancel = self._local.submit(request, partial(self._answered, number))
        if cancel is not None:
            self._cancels[number] = cancel

    def _answered(self, number: int, answer: Answer) -> None:
        self._cancels.pop(number, None)
        self._outbox.put(pack_answer(number, answer))

    def _run(self, number: int, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(number, work))
        self._cancels[number] = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, number: int, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._broke(number, error)
        finally:
            self._cancels.pop(number, None)

    def _broke(self, number: int, error: Exception) -> None:
        _log.error("a forwarded request was not answered", exc_info=error)
        self._send(number, None, "an internal error; see its log")

    def _send(self, number: int, body: Any = None, failure: str = "") -> None:
        """Send an answer that is no shard's."""
        self._outbox.put(pack((number, body, failure)))

    async def _call(self, request: Any, asked: Asked) -> None:
        with _forwarded(asked):
            answer = await self._local.call(request)
        self._outbox.put(pack_answer(asked.number, answer))

    async def _watch(self, number: int, asked: Watch) -> None:
        """A reader that is slow holds up its own watch alone, which lags behind until it ends."""
        room = self._room[number] = asyncio.Semaphore(EVENTS_AHEAD)
        events: Any = self._local.watch(asked.namespace, asked.group_id, asked.after_revision)
        end = Watched()
        try:
            async with aclosing(events):
                async for event in events:
                    await room.acquire()
                    self._send(number, Watched(event))
        except NotInJournal as refused:
            end = Watched(
                None, (refused.after_revision, refused.first_revision, refused.last_revision, refused.incarnation)
            )
        finally:
            self._room.pop(number, None)  # A peer may have numbered two watches alike.
        self._send(number, end)


def _do_nothing() -> None:
    """Cancel a request that has its answer."""


def _forwarded(asked: Asked) -> AbstractContextManager[object]:
    """A span in the trace that the request names, if there is tracing."""
    spans = tracing.spans
    if spans is None:
        return nullcontext()
    if asked.traceparent:
        spans.adopt(asked.traceparent)
    return spans.within(f"forwarded {asked.kind}", tracing.Kind.SERVER)
