"""How session streams end: lost, left unread, or drained; and what becomes of their members and open calls."""

from __future__ import annotations

import asyncio
from typing import cast

import grpc
import pytest

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DescribeGroup, DescribeReply, LeaveGroup, LeavingMember
from rota.server.grpc.receiving import Context
from rota.server.grpc.server import GrpcServer
from rota.server.grpc.session import MAX_UNREAD, NOT_READ, Session
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.runtime.loop import ALL_TOPICS
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, SessionClient, a_join, a_pair
from tests.runtime.conftest import until


class ACaller:
    """What a session asks of gRPC's own context: a stream with these messages, which the test itself ends."""

    def __init__(self, *messages: bytes) -> None:
        self.left = list(messages) or [pb.SessionRequest(call=1, join=a_join("i0")).SerializeToString()]
        self.reads = asyncio.Event()
        """Until it is set, writes wait."""
        self.fails = False

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> None:
        return None

    async def read(self) -> bytes:
        if not self.left:
            await asyncio.Event().wait()
        return self.left.pop(0)

    async def write(self, data: bytes) -> None:
        if self.fails:
            raise ConnectionError
        await self.reads.wait()


def a_session(server: GrpcServer, caller: ACaller) -> Session:
    return Session(server._calls, server._roster, cast(Context, caller))


async def member_ids(coordinator: LocalCoordinator) -> list[str]:
    described = (await coordinator.call(DescribeGroup("default", "g"))).reply
    assert isinstance(described, DescribeReply)
    return [member.member_id for member in described.members]


# --- losing the stream ----------------------------------------------------------------------------


async def test_a_lost_stream_counts_as_a_leave_where_requested(
    channel: Channel, other: SessionClient, coordinator: LocalCoordinator
) -> None:
    lost = SessionClient(channel)
    options = (await lost.ask(options=pb.SessionOptions(leave_after_ms=0))).options
    leader, follower = await a_pair(lost, other)

    await lost.close()
    news = await other.next_news("rebalance")

    assert options.leave_after_ms == 0
    assert (list(news.member_ids), news.by) == ([follower.member_id], leader.member_id)
    assert await member_ids(coordinator) == [follower.member_id]


async def test_losing_the_stream_alone_takes_nobody_along(
    channel: Channel, other: SessionClient, coordinator: LocalCoordinator, server: GrpcServer
) -> None:
    lost = SessionClient(channel)
    leader, follower = await a_pair(lost, other)

    await lost.close()
    await until(lambda: len(server._sessions) == 1)

    assert await member_ids(coordinator) == [leader.member_id, follower.member_id]
    assert list(server._roster.streams(("default", "g"))) == [follower.member_id]


async def test_a_client_that_does_not_read_its_events_is_cut_off(server: GrpcServer) -> None:
    caller = ACaller()
    session = a_session(server, caller)
    running = asyncio.create_task(session.run())
    await until(lambda: len(server._roster.streams(("default", "g"))) == 1)

    for _ in range(MAX_UNREAD + 1):
        session.push(pb.SessionEvent())

    assert await running is NOT_READ
    server._roster.stop()


async def test_a_stream_whose_writes_fail_ends(server: GrpcServer) -> None:
    caller = ACaller()
    caller.fails = True
    session = a_session(server, caller)

    failure = await session.run()

    assert failure is not None
    assert failure.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    assert not server._roster.streams(("default", "g"))


async def test_a_member_whose_join_is_parked_leaves_with_its_stream(
    channel: Channel, other: SessionClient, coordinator: LocalCoordinator
) -> None:
    leader, follower = await a_pair(other)
    lost = SessionClient(channel)
    await lost.ask(options=pb.SessionOptions(leave_after_ms=0))
    needed = (await lost.ask(join=a_join(None))).error.member_id
    left = asyncio.Event()
    coordinator.subscribe(
        "default", "g", lambda lines: left.set() if any(line.kind == "member_left" for line in lines) else None
    )
    await lost.send(join=a_join(None, member_id=needed))
    await until(lambda: coordinator.parked() == 1)

    await lost.close()

    async with asyncio.timeout(60):
        await left.wait()
    assert await member_ids(coordinator) == [leader.member_id, follower.member_id]


async def test_the_last_call_is_answered_after_the_client_has_said_all(session: SessionClient) -> None:
    call = await session.send(join=a_join())
    await session.done_writing()

    assert (await session.answer_to(call)).joined.generation_id == 1
    assert await session.until_ended() is grpc.StatusCode.OK


@pytest.mark.parametrize("leave_after_ms", [-1, 1_800_001])
async def test_a_grace_out_of_bounds_is_refused(session: SessionClient, leave_after_ms: int) -> None:
    refused = await session.ask(options=pb.SessionOptions(leave_after_ms=leave_after_ms))

    assert refused.error.code == "INVALID_REQUEST"


# --- going away -----------------------------------------------------------------------------------


async def test_a_drain_is_pushed_and_removes_no_member(
    channel: Channel, server: GrpcServer, coordinator: LocalCoordinator
) -> None:
    session = SessionClient(channel)
    await session.ask(options=pb.SessionOptions(leave_after_ms=0))
    await a_pair(session)
    reported: list[str] = []
    coordinator.subscribe("default", "g", lambda lines: reported.extend(line.kind for line in lines))
    parked = await session.send(join=a_join("i2"))
    await session.next_news("rebalance")

    await server.drain()
    await coordinator.drain()

    assert (await session.next_news("drain")).reason
    assert (await session.answer_to(parked)).error.code == "COORDINATOR_NOT_AVAILABLE"
    assert await session.until_ended() is grpc.StatusCode.OK
    assert "member_left" not in reported
    await session.close()


async def test_a_stream_that_comes_late_is_sent_on_at_once(channel: Channel, server: GrpcServer) -> None:
    await server.drain()
    session = SessionClient(channel)

    assert (await session.next_news("drain")).reason
    assert await session.until_ended() is grpc.StatusCode.OK
    await session.close()


async def test_a_group_without_members_on_streams_is_not_listened_to(
    session: SessionClient, server: GrpcServer, coordinator: LocalCoordinator
) -> None:
    leader, follower = await a_pair(session)
    leaving = tuple(LeavingMember(member.member_id) for member in (leader, follower))

    await coordinator.call(LeaveGroup("default", "g", leaving))
    await session.next_news("fenced")
    await session.next_news("fenced")

    assert server._roster._groups == {}
    assert list(coordinator.loop.subscriptions._listeners) == [ALL_TOPICS]
