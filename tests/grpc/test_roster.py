"""Which members leave with a lost stream, and when: in virtual time, for a real grace races with a busy machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from rota.core.replica.forwarding import UNANSWERED
from rota.core.replica.ports import Answer
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import (
    DescribeGroup,
    DescribeReply,
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    JoinReply,
    LeaveGroup,
    LeavingMember,
    MemberHeartbeat,
    SyncGroup,
)
from rota.server.access.guard import ADMIT_ALL, AdmitAll
from rota.server.grpc.receiving import BYTES_OF_A_TURN, Turns
from rota.server.grpc.roster import BYTES_OF_A_LEAVE, RETRY_LEAVE_S, Roster, Stream
from rota.server.runtime.coordinator import LocalCoordinator
from rota.v1.coordinator_pb2 import SessionEvent
from tests.client.stage import a_coordinator
from tests.client.virtual_time import in_virtual_time, pause
from tests.runtime.conftest import a_join, until

KEY = ("default", "g")
GRACE_MS = 1_000


class Deaf:
    """A stream with a client that reads nothing."""

    def __init__(self) -> None:
        self.members: dict[tuple[tuple[str, str], str], None] = {}

    def push(self, event: SessionEvent) -> None:
        pass


class InNameOf(AdmitAll):
    """All streams are of this caller."""

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def in_name_of_caller(self, request: Any, /) -> Any:
        return replace(request, subject=self._subject)


def a_roster(coordinator: LocalCoordinator, subject: str = "") -> Roster:
    return Roster(coordinator, InNameOf(subject) if subject else ADMIT_ALL, Turns())


@pytest.mark.parametrize("elsewhere", ["stream", "unary"])
@in_virtual_time
async def test_members_that_show_up_elsewhere_within_the_grace_stay(elsewhere: str) -> None:
    async with a_coordinator() as coordinator:
        leaves, stays = await two_members(coordinator)
        roster, lost, other = a_roster(coordinator), Deaf(), Deaf()
        for member in (leaves, stays):
            roster.bind(lost, KEY, member.member_id)

        roster.lose(lost, GRACE_MS)
        await asyncio.sleep(GRACE_MS / 2_000)
        if elsewhere == "stream":
            await beat_on(other, roster, coordinator, stays)
        else:
            await coordinator.call(Heartbeat(*KEY, stays.member_id, stays.generation_id))
        pause(GRACE_MS / 1000)  # the grace is found to have ended when that heartbeat is older than it is long
        await until(lambda: not roster._leaving)

        assert await member_ids(coordinator) == [stays.member_id]


async def two_members(coordinator: LocalCoordinator) -> list[JoinReply]:
    """Of one Stable generation, the leader first."""
    joins = [coordinator.call(a_join(instance=instance)) for instance in ("i0", "i1")]
    replies = [answer.reply for answer in await asyncio.gather(*joins)]
    members = [reply for reply in replies if isinstance(reply, JoinReply)]
    leader, follower = sorted(members, key=lambda member: member.member_id != member.leader_id)
    shares = ((leader.member_id, b"left"), (follower.member_id, b"right"))
    syncs = [SyncGroup(*KEY, each.member_id, each.generation_id, assignments=shares) for each in (leader, follower)]
    await asyncio.gather(*map(coordinator.call, syncs))
    return [leader, follower]


async def beat_on(stream: Deaf, roster: Roster, coordinator: LocalCoordinator, member: JoinReply) -> None:
    """A heartbeat over a stream, as its session takes it."""
    request = HeartbeatMany(*KEY, (MemberHeartbeat(member.member_id, member.generation_id),))
    reply = (await coordinator.call(request)).reply
    assert isinstance(reply, HeartbeatManyReply)
    roster.on_heartbeats(stream, request, reply)


async def member_ids(coordinator: LocalCoordinator) -> list[str]:
    described = (await coordinator.call(DescribeGroup(*KEY))).reply
    assert isinstance(described, DescribeReply)
    return [member.member_id for member in described.members]


def a_call(roster: Roster, stream: Deaf, request: Any, answered: asyncio.Future[Answer]) -> asyncio.Task[Answer]:
    """A call on this stream, which waits for the answer of another replica."""

    async def asking() -> Answer:
        return await answered

    return asyncio.create_task(roster.follow(stream, request, asking()))


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_MEMBER_ID])
@in_virtual_time
async def test_a_stream_that_joins_in_anothers_name_releases_the_member(code: ErrorCode) -> None:
    """Its own stream has it again with its next heartbeat."""
    async with a_coordinator() as coordinator:
        member, _ = await two_members(coordinator)
        roster, own, thief = a_roster(coordinator), Deaf(), Deaf()
        roster.bind(own, KEY, member.member_id)
        answered = asyncio.get_running_loop().create_future()
        join = a_call(roster, thief, replace(a_join(), member_id=member.member_id), answered)
        await asyncio.sleep(0)
        assert roster.streams(KEY)[member.member_id] is thief

        answered.set_exception(RejectedRequest(code, ""))
        with pytest.raises(RejectedRequest):
            await join
        assert not roster.streams(KEY)
        await beat_on(own, roster, coordinator, member)

        assert roster.streams(KEY)[member.member_id] is own
        roster.stop()


@pytest.mark.parametrize("error", UNANSWERED)
@in_virtual_time
async def test_members_leave_once_their_owner_answers(error: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_coordinator() as coordinator:
        leaves, stays = await two_members(coordinator)
        refusals, call = [error] * len(RETRY_LEAVE_S), coordinator.call

        async def call_late(request: Any) -> Answer:
            if isinstance(request, LeaveGroup) and refusals:
                return Answer(refuse(request, refusals.pop(), "not now"))
            return await call(request)

        monkeypatch.setattr(coordinator, "call", call_late)
        roster, lost = a_roster(coordinator), Deaf()
        roster.bind(lost, KEY, leaves.member_id)

        roster.lose(lost, 0)
        await until(lambda: not refusals and not roster._leaving)

        assert await member_ids(coordinator) == [stays.member_id]


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.ILLEGAL_GENERATION])
@in_virtual_time
async def test_a_refused_heartbeat_takes_no_member_off_its_stream(error: ErrorCode) -> None:
    """While its owner is silent, or its generation is over. Of a stranger the first shows nothing."""
    async with a_coordinator() as coordinator:
        roster, stream = a_roster(coordinator), Deaf()
        roster.bind(stream, KEY, "m")
        request = HeartbeatMany(*KEY, (MemberHeartbeat("m", 1), MemberHeartbeat("stranger", 1)))
        stranger = error if error in UNANSWERED else ErrorCode.UNKNOWN_MEMBER_ID

        errors = (HeartbeatError("m", error), HeartbeatError("stranger", stranger))
        roster.on_heartbeats(stream, request, HeartbeatManyReply(errors=errors))

        assert list(roster.streams(KEY)) == ["m"]
        roster.stop()


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_NOT_AVAILABLE, None])
@in_virtual_time
async def test_members_whose_leave_fails_leave_with_their_stream(error: ErrorCode | None) -> None:
    """Or has no answer when the stream is lost."""
    async with a_coordinator() as coordinator:
        leaves, stays = await two_members(coordinator)
        roster, lost = a_roster(coordinator), Deaf()
        roster.bind(lost, KEY, leaves.member_id)
        answered = asyncio.get_running_loop().create_future()
        leave = a_call(roster, lost, LeaveGroup(*KEY, (LeavingMember(leaves.member_id),)), answered)
        await asyncio.sleep(0.1)

        if error is None:
            leave.cancel()
        else:
            answered.set_exception(RejectedRequest(error, ""))
        await asyncio.wait((leave,))
        roster.lose(lost, 0)
        await until(lambda: not roster._leaving and not roster._groups)

        assert await member_ids(coordinator) == [stays.member_id]


@pytest.mark.parametrize("grace_ms", [0, GRACE_MS])
@in_virtual_time
async def test_a_group_that_fails_costs_no_other_its_leaves(
    grace_ms: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_coordinator() as coordinator:
        asked: list[str] = []

        async def call(request: Any) -> Answer:
            asked.append(request.group_id)
            if request.group_id == "g1":
                raise RuntimeError("a bug")
            return Answer(refuse(request, ErrorCode.UNKNOWN_MEMBER_ID, "no member"))

        monkeypatch.setattr(coordinator, "call", call)
        roster, lost = a_roster(coordinator), Deaf()
        keys = [("default", f"g{number}") for number in range(4)]
        for key in keys:
            roster.bind(lost, key, "m")

        roster.lose(lost, grace_ms)
        await until(lambda: not roster._leaving and len(asked) == len(keys))

        assert sorted(asked) == [group_id for _, group_id in keys]
        assert [each.__dict__["group_id"] for each in caplog.records] == ["g1"]
        assert not roster._groups


@pytest.mark.parametrize("grace_ms", [0, GRACE_MS])
@in_virtual_time
async def test_the_loop_goes_round_while_streams_end(grace_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 streams with members in 20 groups each are lost at once. A renewal of the leases needs some turns more."""
    left_in_turn = [0]
    async with a_coordinator() as coordinator:
        call = coordinator.call

        async def counted(request: Any) -> Answer:
            left_in_turn[-1] += 1
            return await call(request)

        monkeypatch.setattr(coordinator, "call", counted)
        roster = a_roster(coordinator)
        streams, keys = [Deaf() for _ in range(100)], [("default", f"g{n}") for n in range(20)]
        for number, stream in enumerate(streams):
            for key in keys:
                roster.bind(stream, key, f"m{number}")

        for stream in streams:
            roster.lose(stream, grace_ms)
        await asyncio.sleep(grace_ms / 1_000)
        async with asyncio.timeout(60):
            while sum(left_in_turn) < 2_000:
                left_in_turn.append(0)
                await asyncio.sleep(0)

    # Two turns may pass before this task has its own.
    assert max(left_in_turn) <= 2 * BYTES_OF_A_TURN // BYTES_OF_A_LEAVE


class Unwalked(dict[str, Stream]):
    """The members of a group, which may be looked up but not gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("it takes longer, the more members of the group are on other streams")

    items = values = keys = __iter__  # type: ignore[assignment]


@in_virtual_time
async def test_a_lost_stream_looks_at_its_own_members_alone() -> None:
    async with a_coordinator() as coordinator:
        roster, lost = a_roster(coordinator), Deaf()
        for stream, member_id in ((Deaf(), "first"), (lost, "lost"), (Deaf(), "last")):
            roster.bind(stream, KEY, member_id)
        roster._groups[KEY].streams = Unwalked(roster.streams(KEY))

        roster.lose(lost, None)

        assert [member_id in roster.streams(KEY) for member_id in ("first", "lost", "last")] == [True, False, True]
