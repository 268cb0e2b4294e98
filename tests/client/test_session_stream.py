"""A session stream of the SDK, with a server that shows the messages that it received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports.rpc import Channels
from rota.client.transports.stream import SessionStream, StreamTransport
from rota.protocol.calls import COORDINATOR
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat
from rota.protocol.wire.batching import split_batch
from rota.v1.coordinator_pb2 import (
    GroupHeartbeatResult,
    HeartbeatManyRequest,
    HeartbeatManyResponse,
    Rebalance,
    SessionEvent,
    SessionOptions,
)
from rota.v1.coordinator_pb2 import SessionRequest as Request


class Recorder:
    """Answers every call, and keeps the messages they came in."""

    def __init__(self) -> None:
        self.messages: list[Request] = []

    async def session(self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        async for data in messages:
            self.messages.append(Request.FromString(data))
            for request in self.messages[-1].batch or (self.messages[-1],):
                answer = SessionEvent(call=request.call, heartbeat=HeartbeatManyResponse())
                if request.HasField("options"):
                    answer = SessionEvent(call=request.call, options=SessionOptions())
                await context.write(answer.SerializeToString())


async def a_server(session: Callable[..., Awaitable[None]]) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(session)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(COORDINATOR, {"Session": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def moves_on(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    """Answers each heartbeat, and says in the same message that the member's group rebalances."""
    async for data in messages:
        for each in split_batch(Request, data):
            request = Request.FromString(each)
            if request.HasField("heartbeat"):
                group = request.heartbeat.groups[0]
                result = GroupHeartbeatResult(error="NONE", generation_id=1, state="Stable")
                answer = SessionEvent(call=request.call, heartbeat=HeartbeatManyResponse(groups=[result]))
                member_ids = [member.member_id for member in group.members]
                rebalance = Rebalance(
                    namespace=group.namespace, group_id=group.group_id, member_ids=member_ids, generation_id=1
                )
                news = SessionEvent(rebalance=rebalance)
                await context.write(SessionEvent(batch=[answer, news]).SerializeToString())


async def test_news_beside_an_answer_ends_the_wait_that_it_begins() -> None:
    server, port = await a_server(moves_on)
    transport = StreamTransport([f"grpc+stream://127.0.0.1:{port}"])

    received = await transport.send(Heartbeat("default", "g", "m", 1, wait_ms=2_500), timeout_ms=2_000)

    assert received.reply.error is ErrorCode.REBALANCE_IN_PROGRESS
    await transport.close()
    await server.stop(None)


async def test_calls_fail_once_none_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in what writes them leaves the stream open; its callers must not wait for an answer."""
    server, port = await a_server(Recorder().session)
    channels = Channels()
    stream = SessionStream(channels, f"grpc://127.0.0.1:{port}", lambda _: None, None)
    await stream.call(heartbeat=HeartbeatManyRequest())
    monkeypatch.setattr("rota.client.transports.stream.dump_next", lambda _: 1 / 0)

    async with asyncio.timeout(10):
        with pytest.raises(CoordinatorUnreachable):
            await stream.call(heartbeat=HeartbeatManyRequest())

    await stream.close()
    await channels.close()
    await server.stop(None)
