"""Bounds on the memory and time of one session stream: unread events, named groups, remembered heartbeats."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest

from rota.api.grpc import session as sessions
from rota.api.grpc.calls import Context
from rota.api.grpc.failures import Failure
from rota.api.grpc.receiving import SessionMessages
from rota.api.grpc.server import GrpcServer
from rota.api.grpc.session import MOST_FORGOTTEN, NOT_READ, Session
from rota.api.grpc.unread import MAX_UNREAD_BYTES
from rota.api.heartbeats import GROUPS_OF_A_TURN
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.replica.ports import Answer
from rota.runtime.coordinator import LocalCoordinator
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, SessionClient, a_join, a_sync, beats, stub
from tests.grpc.test_session_ends import ACaller, AJoin
from tests.runtime.conftest import until

KEY = ("default", "g")


class AStuckCaller(ACaller):
    """One that never reads, and whose connection lives."""

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def stuck(server: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> tuple[Session, asyncio.Task[object]]:
    """A session with such a client, which has a member."""
    monkeypatch.setattr(sessions, "LAST_WORDS_S", 0.01)
    messages = cast(SessionMessages, AJoin())
    session = Session(server._calls, server._roster, cast(Context, AStuckCaller()), messages)
    running = asyncio.create_task(session.run())
    await until(lambda: session._writing is not None)
    return session, running


async def test_a_client_that_reads_nothing_is_cut_off(stuck: tuple[Session, asyncio.Task[object]]) -> None:
    session, running = stuck
    share = pb.SessionEvent(synced=pb.SyncGroupResponse(assignment=bytes(1024 * 1024)))

    for _ in range(2 + MAX_UNREAD_BYTES // share.ByteSize()):
        session.push(share)

    async with asyncio.timeout(60):
        assert await running == NOT_READ
    assert session._unread is None


async def test_a_rejected_stream_that_is_not_read_ends(stuck: tuple[Session, asyncio.Task[object]]) -> None:
    session, running = stuck

    session._reject(RejectedRequest(ErrorCode.UNAUTHENTICATED, "the token was revoked"))

    async with asyncio.timeout(60):
        failure = await running
    assert isinstance(failure, Failure)
    assert failure.code is ErrorCode.UNAUTHENTICATED


async def test_groups_without_members_on_a_stream_are_forgotten(session: SessionClient, server: GrpcServer) -> None:
    """They are looked at again and again where callers are checked, and as many may be named as a client likes."""
    member = (await session.ask(join=a_join("i1"))).joined
    await session.ask(sync=a_sync(member, {member.member_id: b""}))
    unknown = pb.MemberHeartbeat(member_id="nobody", generation_id=1)

    for number in range(5):
        names = [f"g{number}-{n}" for n in range(MOST_FORGOTTEN)]
        groups = [pb.GroupHeartbeat(namespace="default", group_id=name, members=[unknown]) for name in names]
        await session.ask(heartbeat=pb.HeartbeatManyRequest(groups=groups))

    [at_server] = server._sessions
    assert len(at_server._groups) <= MOST_FORGOTTEN + 2
    assert KEY in at_server._groups


async def test_a_lost_stream_keeps_nothing_of_its_heartbeats(channel: Channel, server: GrpcServer) -> None:
    """For as long as its members may come back the server knows the stream."""
    session = SessionClient(channel)
    await session.ask(options=pb.SessionOptions(leave_after_ms=600_000))
    member = (await session.ask(join=a_join("i1"))).joined
    await session.ask(heartbeat=beats(member))
    [at_server] = server._sessions
    assert at_server._heartbeats is not None

    await session.close()
    await until(lambda: at_server.loss is not None)

    assert server._roster.streams(KEY)[member.member_id] is at_server
    assert at_server._heartbeats is None


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
