"""How rpcs receive their messages: once their callers are admitted, and within a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rota.access.budgets import Budgets
from rota.access.sources import Proxies, source_of
from rota.api.access.guard import Admission, Guard
from rota.api.access.identity import ORIGIN
from rota.api.grpc.calls import Context, client_of
from rota.api.grpc.failures import Failure, abort, failure_of
from rota.api.grpc.turns import Turns
from rota.api.grpc.unfinished import Unfinished
from rota.observability.metrics import Metrics
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import Heartbeat
from rota.wire.heartbeats import are_heartbeats

SMALL_BYTES = 32
"""The options of a stream, or the cancellation of a call, but no join."""
LIBRARY_MESSAGE_BYTES = 4 * 1024
"""The most for health and reflection: a message names a service or a symbol, and is kept while its stream is open."""


class Receiver:
    """Receives messages for all services of a server.

    To gRPC each rpc is a stream of requests. Otherwise it would receive the whole message before it calls us, from
    callers that are refused as well.
    """

    def __init__(self, budgets: Budgets, guard: Guard | None, proxies: Proxies, metrics: Metrics) -> None:
        self._guard = guard
        self._proxies = proxies
        self.turns = Turns()
        """In which most messages of sessions begin."""
        self.turns_of_heartbeats = Turns()
        """For those that have heartbeats alone: behind joins they would wait for seconds, and their members expire. For
        small messages, too: heartbeats of the same stream wait behind them.
        """
        self.turns_of_answers = Turns()
        """In which streams write what comes for many members at once. More of it comes while a stream waits, and goes
        out in the same message: a message costs as much as 20 answers.
        """
        self._proven = Unfinished(
            budgets.unfinished_messages, budgets.waiting_rpcs, lambda: metrics.over_budget("unfinished_messages")
        )
        self._unproven = Unfinished(
            budgets.unproven_messages, budgets.waiting_rpcs, lambda: metrics.over_budget("unproven_messages")
        )
        self._metrics = metrics
        self._most_open = budgets.waiting_rpcs
        self._open = Counter[str]()
        """Rpcs of the services of libraries, which may stay open for as long as their callers like, by source."""

    async def message(self, context: Context) -> bytes:
        """The message of an rpc that has one; raises `RejectedRequest`."""
        return _present(await self.receive(context))

    def session(self, context: Context, admission: Admission) -> SessionMessages:
        """The messages of a session."""
        return SessionMessages(self, context, admission)

    async def receive(self, context: Context) -> bytes | None:
        """The next message, None after the last one."""
        source = self._source(context)
        return _bytes(await (self._unproven if self._lacks_proof() else self._proven).receive(source, context.read))

    def _source(self, context: Context) -> str:
        return source_of(ORIGIN.get() or client_of(context, self._proxies))

    def _lacks_proof(self) -> bool:
        return self._guard is not None and self._guard.current().caller.is_anonymous

    def may_join(self, admission: Admission) -> bool:
        """Whether the caller may be a member anywhere, or has proved its identity."""
        try:
            admission.admit_undecoded(Heartbeat)
        except RejectedRequest:
            return not self._lacks_proof()
        return True

    # --- the services of libraries --------------------------------------------------------------------

    def handlers(self, given: dict[str, Any]) -> dict[str, Any]:
        """The handlers of a library's service, by name, with their messages received here."""
        return {name: self._handler(handler) for name, handler in given.items()}

    def _handler(self, handler: Any) -> Any:
        parse, dump = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            respond = self._to_one(handler.unary_unary, parse)
            return grpc.stream_unary_rpc_method_handler(respond, response_serializer=dump)
        if handler.unary_stream is not None:
            respond = self._to_one(handler.unary_stream, parse)
        else:
            respond = self._to_all(handler.stream_stream, parse)
        return grpc.stream_stream_rpc_method_handler(respond, response_serializer=dump)

    @contextmanager
    def _counted(self, context: Context) -> Iterator[None]:
        """Count an rpc while it is open; raises `RejectedRequest` if there are too many."""
        source, most = self._source(context), self._most_open
        if self._open[source] >= most.per_source or self._open.total() >= most.in_all:
            self._metrics.over_budget("waiting_rpcs")
            raise RejectedRequest(ErrorCode.THROTTLED, "too many health watches and reflections are open")
        self._open[source] += 1
        try:
            yield
        finally:
            self._open[source] -= 1
            if not self._open[source]:
                del self._open[source]

    def _to_one(self, respond: Callable[[Any, Context], Awaitable[Any]], parse: Callable[[bytes], Any]) -> Any:
        async def receive_and_respond(_requests: object, context: Context) -> Any:
            try:
                with self._counted(context):
                    return await respond(parse(_small(await self.message(context))), context)
            except (RejectedRequest, DecodeError) as error:
                failure = _failure(error)
            # Outside of the handler: what is raised there keeps the frames of the error, and their message.
            return await abort(context, failure)

        return receive_and_respond

    def _to_all(self, respond: Callable[[Any, Context], AsyncIterator[Any]], parse: Callable[[bytes], Any]) -> Any:
        async def receive(context: Context) -> AsyncIterator[Any]:
            while (data := await self.receive(context)) is not None:
                yield parse(_small(data))

        async def receive_and_respond(_requests: object, context: Context) -> AsyncIterator[Any]:
            try:
                with self._counted(context):
                    async for response in respond(receive(context), context):
                        yield response
                return
            except (RejectedRequest, DecodeError) as error:
                failure = _failure(error)
            await abort(context, failure)

        return receive_and_respond


class SessionMessages:
    """The messages of one session. All are within the budget, where the caller may be no member anywhere."""

    __slots__ = ("_admission", "_context", "_is_free", "_receiver")

    def __init__(self, receiver: Receiver, context: Context, admission: Admission) -> None:
        self._receiver = receiver
        self._context = context
        self._admission = admission
        self._is_free: bool | None = None
        """Whether messages are received past the budget; None until the first one was asked for."""

    def turns_of(self, data: bytes) -> Turns:
        """In which this message begins."""
        waits_for_no_joins = len(data) <= SMALL_BYTES or are_heartbeats(data)
        return self._receiver.turns_of_heartbeats if waits_for_no_joins else self._receiver.turns

    @property
    def turns_of_heartbeats(self) -> Turns:
        """In which heartbeats of many groups go on."""
        return self._receiver.turns_of_heartbeats

    @property
    def turns_of_answers(self) -> Turns:
        """In which answers are written."""
        return self._receiver.turns_of_answers

    def next(self) -> Awaitable[object]:
        """The next message; anything but bytes after the last one. Raises `RejectedRequest`."""
        if not self._is_free:
            # The first message is received before the caller's rights are looked at.
            self._is_free = self._is_free is not None and self._receiver.may_join(self._admission)
        return self._context.read() if self._is_free else self._receiver.receive(self._context)


def _bytes(received: object) -> bytes | None:
    """None after the last message."""
    return received if isinstance(received, bytes) else None


def _present(data: bytes | None) -> bytes:
    if data is None:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the rpc has no message")
    return data


def _small(data: bytes) -> bytes:
    if len(data) > LIBRARY_MESSAGE_BYTES:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"the message has more than {LIBRARY_MESSAGE_BYTES} bytes")
    return data


def _failure(error: RejectedRequest | DecodeError) -> Failure:
    if isinstance(error, RejectedRequest):
        return failure_of(error)
    return Failure(ErrorCode.INVALID_REQUEST, "this is no message of the rpc")
