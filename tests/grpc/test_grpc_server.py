"""The server around the calls: health, reflection, its port, its keep-alive, and whatever bytes come in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rota.protocol.calls import ADMIN, COORDINATOR
from rota.protocol.wire.rpcs import REMOVE_MEMBERS, rpc_of
from rota.server.grpc.server import CannotBind, GrpcServer
from rota.server.runtime.coordinator import LocalCoordinator
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, G, a_join, a_stable_member, stub
from tests.support.examples import EXAMPLES

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
FUZZED = 3_000
OURS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
}


async def health_of(channel: Channel, service: str = "") -> int:
    health: Any = health_pb2_grpc.HealthStub(channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


@pytest.mark.parametrize("service", ["", COORDINATOR, ADMIN])
async def test_a_ready_server_is_healthy_until_it_drains(channel: Channel, server: GrpcServer, service: str) -> None:
    assert await health_of(channel, service) == SERVING

    await server.begin_drain()

    assert await health_of(channel, service) == NOT_SERVING
    await a_stable_member(channel)  # a client that has not received it yet is still served


async def test_a_server_whose_coordinator_is_not_ready_is_not_healthy(
    channel: Channel, server: GrpcServer, coordinator: LocalCoordinator
) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    watch = health.Watch(health_pb2.HealthCheckRequest())
    first = await watch.read()

    await coordinator.drain()
    async with asyncio.timeout(60):
        then = await watch.read()

    assert (first.status, then.status) == (SERVING, NOT_SERVING)
    watch.cancel()


async def test_a_client_without_our_protos_finds_out_what_there_is(channel: Channel) -> None:
    untyped: Any = channel
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(untyped)
    info = reflection.ServerReflectionInfo()
    await info.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = (await info.read()).list_services_response

    assert {service.name for service in listed.service} >= {COORDINATOR, ADMIN, "grpc.health.v1.Health"}
    info.cancel()


async def test_two_servers_never_share_a_port(server: GrpcServer, coordinator: LocalCoordinator) -> None:
    second = GrpcServer(coordinator)

    with pytest.raises(CannotBind, match="taken"):
        await second.start("127.0.0.1", int(server.address.rpartition(":")[2]))

    await second.stop(0)


@pytest.mark.thorough
async def test_a_client_may_ping_often(server: GrpcServer) -> None:
    options = [
        ("grpc.keepalive_time_ms", 20),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        joined = await a_stable_member(channel)
        beat = pb.HeartbeatRequest(**G, member_id=joined.member_id, generation_id=1, wait_ms=700)

        alive = await stub(channel).Heartbeat(beat)

    assert alive.state == "Stable"


# --- whatever comes in ----------------------------------------------------------------------------


def samples() -> list[tuple[str, bytes]]:
    """A well-formed message for each unary rpc."""
    each = [(rpc_of(asked).path, dump(rpc_of(asked).write_request(asked))) for asked, _ in EXAMPLES]
    many = pb.HeartbeatManyRequest(
        groups=[pb.GroupHeartbeat(**G, members=[pb.MemberHeartbeat(member_id="m", generation_id=1)])]
    )
    leave = next(data for path, data in each if path.endswith("/LeaveGroup"))
    return [
        *each,
        (REMOVE_MEMBERS.path, leave),
        (f"/{COORDINATOR}/HeartbeatMany", dump(many)),
        (f"/{COORDINATOR}/FindCoordinator", dump(pb.FindCoordinatorRequest(**G))),
    ]


def dump(message: Any) -> bytes:
    dumped: bytes = message.SerializeToString()
    return dumped


def garbled(data: bytes, draw: random.Random) -> bytes:
    """Random bytes, or the message with some bits flipped, bytes inserted or its end cut off."""
    garbage = bytearray(data)
    match draw.randrange(4):
        case 0:
            return draw.randbytes(draw.randrange(1, 64))
        case 1:
            for _ in range(draw.randrange(1, 6)):
                garbage[draw.randrange(len(garbage))] ^= 1 << draw.randrange(8)
        case 2:
            at = draw.randrange(len(garbage))
            garbage[at:at] = draw.randbytes(draw.randrange(1, 9))
        case _:
            del garbage[draw.randrange(len(garbage)) :]
    return bytes(garbage)


async def status_of(call: Awaitable[bytes]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def end_of(stream: Any) -> grpc.StatusCode:
    """The stream's status, once all that it said was read."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    code: grpc.StatusCode = await stream.code()
    return code


async def test_whatever_bytes_come_in_are_answered_with_a_code_of_ours(channel: Channel) -> None:
    draw = random.Random(20_260_101)
    messages = [(path, garbled(data, draw)) for _ in range(FUZZED // 20 + 1) for path, data in samples()]
    limit = asyncio.Semaphore(50)

    async def status(path: str, data: bytes) -> grpc.StatusCode:
        async with limit:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
            return await status_of(method(data, timeout=0.3))

    statuses = await asyncio.gather(*(status(path, data) for path, data in messages))

    assert len(messages) >= 2_000
    # Some garbled joins are good ones, and wait for others longer than this test does.
    expected = OURS | {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert set(statuses) <= expected, [m for m, s in zip(messages, statuses, strict=True) if s not in expected][:3]
    assert grpc.StatusCode.INVALID_ARGUMENT in statuses


async def test_whatever_bytes_come_on_a_stream_end_that_stream_at_most(channel: Channel) -> None:
    draw = random.Random(7)
    good = dump(pb.SessionRequest(call=1, join=a_join(wait_ms=0)))
    open_session: Callable[[], Any] = channel.stream_stream(f"/{COORDINATOR}/Session")
    ends = set()
    for _ in range(300):
        stream = open_session()
        await stream.write(garbled(good, draw))
        await stream.done_writing()
        ends.add(await end_of(stream))

    assert ends == {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
    assert (await stub(channel).JoinGroup(a_join(group_id="unharmed"))).generation_id == 1
