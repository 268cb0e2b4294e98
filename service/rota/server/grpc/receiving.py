"""Receives messages: what an rpc costs before its caller is known, and while its message arrives (ADR 50).

gRPC makes room for a whole message once it is asked to receive it, and keeps a few KiB of one that it is not asked for.
So the number of messages that are received at the same time bounds the memory that unfinished ones take.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from inspect import isasyncgenfunction
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc

from rota.core.access.budgets import Budgets, Places, Share
from rota.core.access.sources import FORWARDED_FOR, Proxies, source_of
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import Heartbeat
from rota.protocol.wire.protobuf import parse
from rota.protocol.wire.shapes import invalid
from rota.server.access.guard import Admission, Guard
from rota.server.access.identity import ORIGIN
from rota.server.grpc.failures import abort
from rota.server.observability.metrics import Metrics

UNRECEIVED_BYTES = 16 * 1024
HANDSHAKE_TIMEOUT_MS = 5_000
"""For TLS, and then for HTTP/2's settings."""
IDLE_TIMEOUT_MS = 75_000
"""The same time for which HTTP keeps a connection between two requests."""
ANY_NUMBER = 1_000_000
LIBRARY_MESSAGE_BYTES = 4 * 1024
"""The most for health and reflection: a message names a service or a symbol, and is kept while its stream is open."""
DEADLINE_S = 30.0
"""For a message's turn to come, and for the message to arrive."""
STALLED_S = 2.0
"""A message that takes so long is refused if others wait for its turn."""
CHECK_EVERY_S = 0.25

TOO_SLOW = "the message did not arrive in time"
STALLS = "the message arrives too slowly while others wait"
TOO_MANY = "too many rpcs wait until their messages are received"
TOO_MANY_OPEN = "too many health watches and reflections are open"

BYTES_OF_A_TURN = 32 * 1024
"""Some 250 joins, or 15 ms. gRPC accepts one new rpc in two turns: with longer ones, other clients wait for seconds."""

_throttled = partial(RejectedRequest, ErrorCode.THROTTLED)

Context = grpc.aio.ServicerContext[bytes, bytes]
Message = TypeVar("Message")


def bounded_options(
    *,
    streams: int,
    message_bytes: int,
    keepalive_ms: int,
    keepalive_timeout_ms: int,
    most_connections: int = ANY_NUMBER,
) -> list[tuple[str, Any]]:
    """Options of a server whose connections carry so many streams at a time.

    A stream that is not received holds `UNRECEIVED_BYTES`, whatever the network could carry. A connection is closed
    unless it has made itself known as one of HTTP/2 in time, and when it has carried no rpc for long. Clients may ping
    often (a dead server should be noticed soon).
    """
    return [
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.max_concurrent_streams", streams),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", UNRECEIVED_BYTES),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", IDLE_TIMEOUT_MS),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_timeout_ms),
        # The first bounds what the other kernel leaves unacknowledged, this one the answer of its process.
        ("grpc.http2.ping_timeout_ms", keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def client_of(context: Context, proxies: Proxies) -> str:
    """The address that a call comes from: the peer's, or that which a proxy that is trusted has forwarded it for."""
    host = host_of(context.peer())
    if not proxies.trust(host):
        return host
    metadata = context.invocation_metadata() or ()
    return proxies.client_of(host, [str(value) for key, value in metadata if key == FORWARDED_FOR])


def host_of(peer: str) -> str:
    """The address in gRPC's name for a peer: `ipv4:10.0.0.7:1234`, `ipv6:%5B::1%5D:1234`, `unix:`."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""


class Turns:
    """Lets so many bytes of messages be handled in each turn of the event loop, about in the order of their arrival.

    A message has up to 1,000 calls, and gRPC wakes all streams whose messages have arrived, or that have ended, in one
    turn. If thousands of members rejoin or leave at once, that turn takes seconds, and the leases expire: each step of
    a renewal takes one more turn.
    """

    def __init__(self) -> None:
        self._left = BYTES_OF_A_TURN

    @property
    def is_over(self) -> bool:
        """Whether `take` would wait for the next turn."""
        return self._left <= 0

    async def take(self, size: int) -> None:
        """Return in a turn that is not over, of which this takes so many bytes."""
        while self._left <= 0:  # noqa: ASYNC110 — an event would wake them all in one turn
            await asyncio.sleep(0)
        if self._left == BYTES_OF_A_TURN:
            asyncio.get_running_loop().call_soon(self._begin)
        self._left -= size

    def _begin(self) -> None:
        self._left = BYTES_OF_A_TURN


class Unfinished:
    """Receives messages within a budget.

    So many are received at a time, and so many of each source. No source has more rpcs in the queue of all sources
    than it may receive messages, so sources have turns about one after the other.
    """

    def __init__(self, messages: Share, waiting: Share, refused: Callable[[], None]) -> None:
        """`refused` is called each time that a message is refused."""
        self._messages = messages
        most = Share(messages.per_source + waiting.per_source, messages.in_all + waiting.in_all)
        self._refused = refused
        self._rpcs = Places(most, refused)
        """Rpcs that wait, and rpcs whose message is being received."""
        self._turns = asyncio.Semaphore(messages.in_all)
        self._turns_of = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(messages.per_source))

    async def receive(self, source: str, read: Callable[[], Awaitable[Message]]) -> Message:
        """The message; raises `RejectedRequest` (THROTTLED) if it would take too long or too much."""
        loop = asyncio.get_running_loop()
        why, deadline = TOO_MANY, asyncio.timeout(DEADLINE_S)
        checking: asyncio.TimerHandle

        def refuse_if_others_wait() -> None:
            nonlocal why, checking
            if self._others_wait(source):
                why = STALLS
                deadline.reschedule(loop.time())
            else:
                checking = loop.call_later(CHECK_EVERY_S, refuse_if_others_wait)

        with self._rpcs.one(source, partial(_throttled, TOO_MANY)):
            try:
                async with deadline, self._turns_of[source], self._turns:
                    why, checking = TOO_SLOW, loop.call_later(STALLED_S, refuse_if_others_wait)
                    try:
                        return await read()
                    finally:
                        checking.cancel()
            except TimeoutError:
                self._refused()
                raise _throttled(why) from None
            finally:
                if self._rpcs.taken[source] == 1:
                    del self._turns_of[source]

    def _others_wait(self, source: str) -> bool:
        """Whether rpcs wait for a turn that a message of this source has."""
        most = self._messages
        in_queue = sum(min(rpcs, most.per_source) for rpcs in self._rpcs.taken.values())
        return self._rpcs.taken[source] > most.per_source or in_queue > most.in_all


class Receiver:
    """Receives messages for all services of a server.

    To gRPC each rpc is a stream of requests. Otherwise it would receive the whole message before it calls us, from
    callers that are refused as well.
    """

    def __init__(self, budgets: Budgets, guard: Guard | None, proxies: Proxies, metrics: Metrics) -> None:
        self._guard = guard
        self._proxies = proxies
        waiting = budgets.waiting_rpcs
        self._proven = Unfinished(
            budgets.unfinished_messages, waiting, lambda: metrics.over_budget("unfinished_messages")
        )
        self._unproven = Unfinished(
            budgets.unproven_messages, waiting, lambda: metrics.over_budget("unproven_messages")
        )
        self._of_libraries = Places(waiting, lambda: metrics.over_budget("waiting_rpcs"))
        """Rpcs of the services of libraries, which may stay open for as long as their callers like."""
        self.turns = Turns()
        """In which most calls of sessions begin."""
        self.turns_of_heartbeats = Turns()
        """For heartbeats: behind joins they would wait for seconds, and their members expire."""

    async def message(self, context: Context) -> bytes:
        """The message of an rpc that has one; raises `RejectedRequest`."""
        data = await self.receive(context)
        if data is None:
            raise invalid("the rpc has no message")
        return data

    async def receive(self, context: Context) -> bytes | None:
        """The next message, None after the last one; raises `RejectedRequest`."""
        unfinished = self._unproven if self._lacks_proof() else self._proven
        return await unfinished.receive(self._source(context), lambda: next_message(context))

    def may_join(self, admission: Admission) -> bool:
        """Whether the caller may be a member anywhere, or has proved its identity."""
        try:
            admission.admit_undecoded(Heartbeat)
        except RejectedRequest:
            return not self._lacks_proof()
        return True

    def _source(self, context: Context) -> str:
        return source_of(ORIGIN.get() or client_of(context, self._proxies))

    def _lacks_proof(self) -> bool:
        return self._guard is not None and self._guard.current().caller.is_anonymous

    def open_to_all(self, respond: Callable[[Any, Any], Any], request_type: Any) -> Any:
        """The handler of an rpc of a library's service: no more of its messages is received than of others.

        It answers with a stream: to the client a stream of one response is a single response.
        """

        def parsed(data: bytes) -> Any:
            if len(data) > LIBRARY_MESSAGE_BYTES:
                raise invalid(f"the message has more than {LIBRARY_MESSAGE_BYTES} bytes")
            return parse(request_type, data)

        async def requests(context: Context) -> AsyncIterator[Any]:
            while (data := await self.receive(context)) is not None:
                yield parsed(data)

        async def answer(_requests: object, context: Any) -> None:
            try:
                with self._of_libraries.one(self._source(context), partial(_throttled, TOO_MANY_OPEN)):
                    if not isasyncgenfunction(respond):
                        response = await respond(parsed(await self.message(context)), context)
                        if response is not None:  # else it has written its responses
                            await context.write(response)
                        return
                    async for response in respond(requests(context), context):
                        await context.write(response)
                    return
            except RejectedRequest as error:
                rejected = error.with_traceback(None)
            # Outside of the handler: what is raised there keeps the frames of the error, and their message.
            await abort(context, rejected)

        return grpc.stream_stream_rpc_method_handler(answer, response_serializer=dump)


def dump(message: Any) -> bytes:
    dumped: bytes = message.SerializeToString()
    return dumped


async def next_message(context: Context) -> bytes | None:
    """The next message of an rpc, past the budget; None after the last one."""
    received: object = await context.read()
    return received if isinstance(received, bytes) else None
