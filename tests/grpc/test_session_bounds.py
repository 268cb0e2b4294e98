"""Bounds on the memory and time of one session stream: unread events, named groups, remembered heartbeats."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.protocol.wire.heartbeats import read_group
from rota.server.grpc.server import GrpcServer
from rota.server.grpc.session import MAX_UNREAD_BYTES, NOT_READ, Session
from rota.server.heartbeats import GROUPS_OF_A_TURN
from rota.server.runtime.coordinator import LocalCoordinator
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, SessionClient, a_join, a_sync, beats, stub
from tests.grpc.test_session_ends import ACaller, a_session
from tests.runtime.conftest import until

KEY = ("default", "g")


class AStuckCaller(ACaller):
    """One that never reads, and whose connection lives."""

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def stuck(server: GrpcServer) -> tuple[Session, asyncio.Task[object]]:
    """A session with such a client, which has a member."""
    session = a_session(server, AStuckCaller())
    running = asyncio.create_task(session.run())
    await until(lambda: session._writing is not None)
    return session, running


async def test_a_client_that_reads_nothing_is_cut_off(stuck: tuple[Session, asyncio.Task[object]]) -> None:
    session, running = stuck
    share = pb.SessionEvent(synced=pb.SyncGroupResponse(assignment=bytes(1024 * 1024)))

    for _ in range(2 + MAX_UNREAD_BYTES // share.ByteSize()):
        session.push(share)

    async with asyncio.timeout(60):
        assert await running is NOT_READ


async def test_a_rejected_stream_that_is_not_read_ends(stuck: tuple[Session, asyncio.Task[object]]) -> None:
    session, running = stuck

    session._reject(RejectedRequest(ErrorCode.UNAUTHENTICATED, "the token was revoked"))

    async with asyncio.timeout(60):
        failure = await running
    assert isinstance(failure, RejectedRequest)
    assert failure.code is ErrorCode.UNAUTHENTICATED


async def test_groups_without_members_on_a_stream_are_not_kept(session: SessionClient, server: GrpcServer) -> None:
    """They would be looked at again and again when callers are checked, and a client may name any number of groups."""
    member = (await session.ask(join=a_join("i1"))).joined
    await session.ask(sync=a_sync(member, {member.member_id: b""}))
    unknown = pb.MemberHeartbeat(member_id="nobody", generation_id=1)

    for number in range(5):
        names = [f"g{number}-{n}" for n in range(1_000)]
        groups = [pb.GroupHeartbeat(namespace="default", group_id=name, members=[unknown]) for name in names]
        await session.ask(heartbeat=pb.HeartbeatManyRequest(groups=groups))

    [at_server] = server._sessions
    assert list(at_server.members) == [(KEY, member.member_id)]
    assert list(server._roster._groups) == [KEY]


async def test_a_group_with_the_bytes_of_the_last_message_is_not_read_again(
    session: SessionClient, server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def noted(group: Any, limits: Limits) -> HeartbeatMany:
        read.append(group.group_id)
        return read_group(group, limits)

    def said(**generations: int) -> pb.HeartbeatManyRequest:
        groups = pb.HeartbeatManyRequest()
        for name, generation_id in generations.items():
            group = groups.groups.add(namespace="default", group_id=name)
            group.members.add(member_id="nobody", generation_id=generation_id)
        return groups

    monkeypatch.setattr("rota.server.grpc.calls.read_group", noted)
    for message in (said(a=1, b=1), said(b=1, a=1), said(a=2, b=1), said(a=1)):
        await session.ask(heartbeat=message)

    assert read == ["a", "b", "a", "a"]
    [at_server] = server._sessions
    assert len(at_server._known) == 1


async def test_a_lost_stream_keeps_nothing_of_its_heartbeats(channel: Channel, server: GrpcServer) -> None:
    """For as long as its members may come back the server knows the stream."""
    session = SessionClient(channel)
    await session.ask(options=pb.SessionOptions(leave_after_ms=600_000))
    member = (await session.ask(join=a_join("i1"))).joined
    await session.ask(heartbeat=beats(member))
    [at_server] = server._sessions
    assert at_server._known

    await session.close()
    await until(lambda: not server._sessions)

    assert server._roster.streams(KEY)[member.member_id] is at_server
    assert not at_server._known


async def test_heartbeats_beside_one_that_waits_are_asked_once(
    session: SessionClient, coordinator: LocalCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one would come too soon, and be charged to a caller with a quota."""
    asked, try_heartbeat = Counter[str](), coordinator.try_heartbeat

    def counted(request: Heartbeat | HeartbeatMany) -> Answer | None:
        asked[request.group_id] += 1
        return try_heartbeat(request) if request.group_id == "g" else None

    monkeypatch.setattr(coordinator, "try_heartbeat", counted)
    member = (await session.ask(join=a_join("i1"))).joined
    groups = [*beats(member).groups, pb.GroupHeartbeat(namespace="default", group_id="elsewhere")]

    answer = (await session.ask(heartbeat=pb.HeartbeatManyRequest(groups=groups))).heartbeat

    assert [group.error for group in answer.groups] == ["NONE", "NONE"]
    assert asked["g"] == 1


@pytest.mark.parametrize("over", ["stream", "stream again", "unary"])
async def test_heartbeats_of_many_groups_let_others_have_turns(
    over: str,
    session: SessionClient,
    channel: Channel,
    coordinator: LocalCoordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four messages for 10,000 groups each, one after another on each of four streams, cost a server its leases."""
    in_turn, try_heartbeat = [0], coordinator.try_heartbeat

    def counted(request: Heartbeat | HeartbeatMany) -> Answer | None:
        in_turn[-1] += 1
        return try_heartbeat(request)

    async def count_turns() -> None:
        while True:
            in_turn.append(0)
            await asyncio.sleep(0)

    unknown = pb.MemberHeartbeat(member_id="nobody", generation_id=1)
    names = [f"g{number}" for number in range(5 * GROUPS_OF_A_TURN)]
    groups = [pb.GroupHeartbeat(namespace="default", group_id=name, members=[unknown]) for name in names]
    request = pb.HeartbeatManyRequest(groups=groups)
    if over == "stream again":
        await session.ask(heartbeat=request)
    monkeypatch.setattr(coordinator, "try_heartbeat", counted)
    counting = asyncio.create_task(count_turns())
    if over == "unary":
        answer = await stub(channel).HeartbeatMany(request)
    else:
        answer = (await session.ask(heartbeat=request)).heartbeat
    counting.cancel()

    assert len(answer.groups) == sum(in_turn) == len(names)
    # Two turns may pass before that task has its own.
    assert max(in_turn) <= 2 * GROUPS_OF_A_TURN
