"""The session stream: several members of one process, answers by number, news the moment it is durable."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import pytest

from rota.protocol.messages import CommitOffsets, SyncGroup
from rota.protocol.wire.batching import MAX_BATCH
from rota.server.runtime.coordinator import LocalCoordinator
from rota.v1 import admin_pb2
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, G, SessionClient, a_join, a_pair, a_stable_member, a_sync, admin, beats, stub
from tests.runtime.conftest import until


async def test_a_parked_join_holds_up_nothing_else(session: SessionClient, channel: Channel) -> None:
    member = await a_stable_member(channel)
    parked = await session.send(join=a_join("i2"))

    beaten = await session.ask(heartbeat=beats(member))
    offsets = [pb.OffsetToCommit(topic="t", partition=0, offset=1)]
    commit = pb.CommitOffsetsRequest(
        **G, member_id=member.member_id, generation_id=member.generation_id, offsets=offsets
    )
    committed = await session.ask(commit=commit)

    assert [e.error for e in beaten.heartbeat.groups[0].errors] == ["REBALANCE_IN_PROGRESS"]
    assert [p.error for p in committed.committed.partitions] == ["NONE"]
    assert parked not in session.answers


async def test_a_rebalance_is_pushed_to_all_but_those_who_join(session: SessionClient, channel: Channel) -> None:
    leader, follower = await a_pair(session)

    newcomer = asyncio.ensure_future(stub(channel).JoinGroup(a_join("i2")))
    news = await session.next_news("rebalance")

    assert sorted(news.member_ids) == sorted([leader.member_id, follower.member_id])
    assert (news.generation_id, news.group_id) == (2, "g")
    assert news.by.startswith("i2-")
    assert news.revision > follower.revision
    for member, instance in ((leader, "i0"), (follower, "i1")):
        await session.send(join=a_join(instance, member_id=member.member_id))
    assert (await newcomer).generation_id == 3


async def test_each_stream_gets_events_of_its_own_members_only(session: SessionClient, other: SessionClient) -> None:
    leader, follower = await a_pair(session, other)

    await session.send(join=a_join("i0", member_id=leader.member_id))
    news = await other.next_news("rebalance")

    assert list(news.member_ids) == [follower.member_id]
    assert session.news == []


async def test_a_new_assignment_is_pushed_with_the_shares(session: SessionClient, other: SessionClient) -> None:
    leader, follower = await a_pair(session, other)

    shares = {leader.member_id: b"less", follower.member_id: b"more"}
    synced = (await session.ask(sync=a_sync(leader, shares))).synced
    news = await other.next_news("generation")

    assert (synced.generation_id, synced.assignment) == (3, b"less")
    assert (news.generation_id, news.revision) == (3, synced.revision)
    assert [(m.member_id, m.assignment) for m in news.members] == [(follower.member_id, b"more")]
    assert session.news == []


async def test_a_member_that_is_removed_is_notified(session: SessionClient, channel: Channel) -> None:
    leader, follower = await a_pair(session)

    leaving = [pb.LeavingMember(member_id=follower.member_id, reason="enough")]
    await admin(channel).RemoveMembers(admin_pb2.RemoveMembersRequest(**G, members=leaving))
    fenced = await session.next_news("fenced")

    assert (list(fenced.member_ids), fenced.code, fenced.reason) == (
        [follower.member_id],
        "UNKNOWN_MEMBER_ID",
        "enough",
    )
    assert list((await session.next_news("rebalance")).member_ids) == [leader.member_id]


async def test_a_member_whose_place_is_taken_is_fenced(session: SessionClient, channel: Channel) -> None:
    _, follower = await a_pair(session)

    await stub(channel).JoinGroup(a_join("i1"))
    fenced = await session.next_news("fenced")

    assert (list(fenced.member_ids), fenced.code) == ([follower.member_id], "FENCED_INSTANCE_ID")


async def test_a_member_is_on_the_stream_that_named_it_last(
    session: SessionClient, other: SessionClient, channel: Channel
) -> None:
    leader, follower = await a_pair(session)
    await other.ask(heartbeat=beats(follower))

    leave = pb.LeaveGroupRequest(**G, members=[pb.LeavingMember(member_id=leader.member_id)])
    await stub(channel).LeaveGroup(leave)

    assert list((await other.next_news("rebalance")).member_ids) == [follower.member_id]
    assert list((await session.next_news("fenced")).member_ids) == [leader.member_id]


async def test_heartbeats_that_come_again_are_decided_again(
    session: SessionClient, other: SessionClient, channel: Channel
) -> None:
    leader, follower = await a_pair(session)
    for _ in range(3):
        answer = (await session.ask(heartbeat=beats(leader, follower))).heartbeat
        assert [(g.error, g.state, len(g.errors)) for g in answer.groups] == [("NONE", "Stable", 0)]
    await other.ask(heartbeat=beats(follower))
    await session.ask(heartbeat=beats(leader, follower))

    leave = pb.LeaveGroupRequest(**G, members=[pb.LeavingMember(member_id=leader.member_id)])
    await stub(channel).LeaveGroup(leave)
    last = (await session.ask(heartbeat=beats(leader, follower))).heartbeat

    errors = {each.member_id: each.error for each in last.groups[0].errors}
    assert errors == {leader.member_id: "UNKNOWN_MEMBER_ID", follower.member_id: "REBALANCE_IN_PROGRESS"}
    assert last.groups[0].revision > answer.groups[0].revision
    assert {event.WhichOneof("event") for event in session.news} == {"fenced", "rebalance"}
    assert other.news == [], "its member went back to the first stream"


# --- errors and odd messages ----------------------------------------------------------------------


async def test_an_error_answers_its_call_alone(session: SessionClient) -> None:
    needed = (await session.ask(join=a_join(None, client_id="me"))).error
    bad = (await session.ask(join=a_join(group_id="?"))).error
    stranger = (await session.ask(heartbeat=beats(pb.JoinGroupResponse(member_id="m", generation_id=1)))).heartbeat
    wrong = pb.HeartbeatManyRequest(groups=[pb.GroupHeartbeat(namespace="default", group_id="?")])

    assert (needed.code, needed.member_id.startswith("me-")) == ("MEMBER_ID_REQUIRED", True)
    assert (bad.code, bad.HasField("retry_after_ms")) == ("INVALID_GROUP_ID", False)
    assert [e.error for e in stranger.groups[0].errors] == ["UNKNOWN_MEMBER_ID"]
    assert (await session.ask(heartbeat=wrong)).error.code == "INVALID_GROUP_ID"
    assert (await session.ask()).error.code == "INVALID_REQUEST"
    assert (await session.ask(join=a_join(None, member_id=needed.member_id))).joined.generation_id == 1


async def test_a_call_without_a_number_ends_the_stream(session: SessionClient) -> None:
    await session.stream.write(pb.SessionRequest(join=a_join()))

    assert await session.until_ended() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_number_that_is_open_already_is_refused(session: SessionClient, channel: Channel) -> None:
    await a_stable_member(channel)
    parked = await session.send(join=a_join("i2"))

    await session.stream.write(pb.SessionRequest(call=parked, join=a_join("i3")))

    assert (await session.answer_to(parked)).error.code == "INVALID_REQUEST"


async def test_an_abandoned_call_is_not_answered_and_stops_waiting(
    session: SessionClient, channel: Channel, coordinator: LocalCoordinator
) -> None:
    member = await a_stable_member(channel)
    parked = await session.send(join=a_join("i2"))
    await until(lambda: coordinator.parked() == 1)

    await session.send(cancel=parked)

    await until(lambda: coordinator.parked() == 0)
    await session.ask(heartbeat=beats(member))
    assert parked not in session.answers


@pytest.mark.thorough
async def test_an_answered_call_does_not_wait_for_the_collector(session: SessionClient, channel: Channel) -> None:
    """A process collects seldom, and each call knows its request and its stream."""
    member = await a_stable_member(channel)
    gc.collect()
    gc.disable()
    try:
        for generation_id in (member.generation_id, member.generation_id + 1):
            commit = pb.CommitOffsetsRequest(**G, member_id=member.member_id, generation_id=generation_id)
            commit.offsets.add(topic="t", partition=0, offset=generation_id)
            await session.ask(commit=commit)
            await session.ask(sync=pb.SyncGroupRequest(**G, member_id=member.member_id, generation_id=generation_id))

        requests = [each for each in gc.get_objects() if type(each) in (CommitOffsets, SyncGroup)]
        assert not [each for each in requests if each.member_id == member.member_id]
    finally:
        gc.enable()


# --- several in one message -----------------------------------------------------------------------


async def test_answers_to_the_requests_of_a_message_are_in_one_message(
    session: SessionClient, channel: Channel
) -> None:
    member = await a_stable_member(channel)
    came = session.messages
    calls = range(100, 150)

    await session.stream.write(
        pb.SessionRequest(batch=[pb.SessionRequest(call=n, heartbeat=beats(member)) for n in calls])
    )
    answers = [(await session.answer_to(call)).heartbeat for call in calls]

    assert [answer.groups[0].state for answer in answers] == ["Stable"] * 50
    assert session.messages - came == 1


async def test_a_call_behind_a_heartbeat_that_waits_begins_after_it(session: SessionClient) -> None:
    """The heartbeat waits for the commit before it; the leave behind it would end its member."""
    member = (await session.ask(join=a_join("i0"))).joined
    await session.ask(sync=a_sync(member, {member.member_id: b""}))
    place: dict[str, Any] = {**G, "member_id": member.member_id, "generation_id": member.generation_id}
    commit = pb.CommitOffsetsRequest(**place, offsets=[pb.OffsetToCommit(topic="t", offset=1)])
    leave = pb.LeaveGroupRequest(**G, members=[pb.LeavingMember(member_id=member.member_id)])

    await session.stream.write(
        pb.SessionRequest(
            batch=[
                pb.SessionRequest(call=101, commit=commit),
                pb.SessionRequest(call=102, heartbeat=beats(member)),
                pb.SessionRequest(call=103, leave=leave),
            ]
        )
    )

    beaten = (await session.answer_to(102)).heartbeat.groups[0]
    assert (beaten.state, len(beaten.errors)) == ("Stable", 0)
    assert not (await session.answer_to(103)).HasField("error")


@pytest.mark.parametrize(
    "message",
    [
        pb.SessionRequest(call=1, heartbeat=pb.HeartbeatManyRequest(), batch=[pb.SessionRequest(call=2)]),
        pb.SessionRequest(batch=[pb.SessionRequest(call=1, batch=[pb.SessionRequest(call=2)])]),
        pb.SessionRequest(batch=[pb.SessionRequest(join=a_join())]),
        pb.SessionRequest(batch=[pb.SessionRequest(call=n) for n in range(1, MAX_BATCH + 2)]),
    ],
    ids=["beside_a_request", "nested", "without_a_number", "too_many"],
)
async def test_requests_that_look_the_same_end_the_stream(session: SessionClient, message: pb.SessionRequest) -> None:
    await session.stream.write(message)

    assert await session.until_ended() is grpc.StatusCode.INVALID_ARGUMENT
