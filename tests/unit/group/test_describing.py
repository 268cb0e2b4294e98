"""Reading a group: describe, list, the leader and the fence (protocol.md §3)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rota.core.assignors.model import TopicPartition
from rota.core.group import describe
from rota.core.types.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from tests.unit.group.driver import (
    GROUP_ID,
    KEY,
    NAMESPACE,
    REBALANCE_MS,
    SESSION_MS,
    Core,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_group,
    an_empty_shard,
)

DESCRIBE = m.DescribeGroup(*KEY)
TOKEN = fencing_token(1)


def a_fence_reply(*, is_leader: bool = False, is_member: bool = False) -> m.FenceReply:
    return m.FenceReply(generation_id=1, is_leader=is_leader, is_member=is_member, fencing_token=TOKEN)


def a_consumer_group(members: int = 1) -> Core:
    """Members that read the topic `t`; each has a partition of it."""
    core = an_empty_shard()
    metadata = encode_subscription(Subscription(topics=("t",)))
    for number in range(members):
        join = a_join(new=f"m{number}", instance=f"i{number}", protocols=(("range", metadata),))
        core.send(replace(join, protocol_type="consumer", client_id="app", host="10.0.0.7"))
    core.let_the_join_phase_end()
    shares = tuple((f"m{n}", encode_assignment(Assignment((TopicPartition("t", n),)))) for n in range(members))
    core.send(replace(a_sync("m0", 1, "i0"), assignments=shares))
    return core


# --- describe ------------------------------------------------------------------------------------------


def test_a_stable_group_is_described_with_its_members() -> None:
    core = a_consumer_group()
    core.advance(200)
    core.ask(a_heartbeat("m0", 1, instance="i0"))
    described = core.ask(DESCRIBE)
    (member,) = described.members
    share = Assignment((TopicPartition("t", 0),))

    assert described == m.DescribeReply(
        group_id=GROUP_ID,
        state="Stable",
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        generation_protocol_name="range",
        leader_id="m0",
        members=(member,),
        rebalance_reason=core.group.rebalance_reason,
        rebalance_by="m0",
        rebalance_cause="member_joined",
        state_since_ms=core.now_ms - 200,
    )
    assert member.metadata_decoded is not None
    assert member.metadata_decoded["topics"] == ["t"]
    assert member.assignment_decoded is not None
    assert replace(member, metadata_decoded=None, assignment_decoded=None) == m.DescribedMember(
        member_id="m0",
        group_instance_id="i0",
        client_id="app",
        host="10.0.0.7",
        metadata=encode_subscription(Subscription(topics=("t",))),
        assignment=encode_assignment(share),
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        session_deadline_ms=core.now_ms + SESSION_MS,
        joined=False,
        fencing_token=TOKEN,
        protocols=("range",),
    )


def test_a_join_phase_shows_its_deadline_and_awaited_members() -> None:
    core = a_group_in_a_join_phase(members=2)
    core.ask(a_join(new="late"))
    described = core.ask(DESCRIBE)

    assert (described.state, described.protocol_name, described.pending_members) == ("PreparingRebalance", "", 1)
    assert described.generation_protocol_name == "range"
    assert described.phase_deadline_ms == core.now_ms + REBALANCE_MS
    assert [(each.member_id, each.joined, each.awaited) for each in described.members] == [
        ("m0", False, True),
        ("m1", True, False),
    ]
    assert [(each.metadata, each.assignment, each.metadata_decoded) for each in described.members] == [
        (b"", b"m0", None),
        (b"", b"m1", None),
    ]


def test_a_group_awaiting_its_assignment_shows_awaited_members() -> None:
    core = a_group_awaiting_its_assignment()
    core.send(a_sync("m1", 1))
    described = core.ask(DESCRIBE)

    assert [(each.member_id, each.awaited) for each in described.members] == [("m0", True), ("m1", False)]
    assert described.phase_deadline_ms == core.group.sync_deadline_ms
    assert described.leader_id == "m0"


def test_a_group_without_a_generation_has_no_leader() -> None:
    described = a_group_in_its_initial_delay().ask(DESCRIBE)

    assert (described.leader_id, described.protocol_name, described.generation_id) == ("", "", 0)


def test_only_the_first_members_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "MAX_DECODED_MEMBERS", 2)
    members = a_consumer_group(members=3).ask(DESCRIBE).members

    assert [each.metadata_decoded is not None for each in members] == [True, True, False]
    assert [each.assignment_decoded is not None for each in members] == [True, True, False]


@pytest.mark.parametrize(
    ("topic", "is_listed"), [("t", True), ("other", False), ("t" * 2, False), ("", True)], ids=lambda value: str(value)
)
def test_groups_are_listed_by_a_topic_that_members_subscribe_to(topic: str, is_listed: bool) -> None:
    reply = a_consumer_group(2).ask(m.ListGroups(NAMESPACE, topic=topic))

    assert bool(reply.groups) == is_listed


def test_a_group_is_listed_by_its_topics_while_it_rebalances() -> None:
    core = a_consumer_group(2)
    core.send(a_leave("m1"))

    (listed,) = core.ask(m.ListGroups(NAMESPACE, topic="t")).groups
    assert listed.state == "PreparingRebalance"


def test_a_group_with_unreadable_topics_is_not_listed_by_topic() -> None:
    assert a_stable_group().ask(m.ListGroups(NAMESPACE, topic="t")).groups == ()


def test_a_group_that_only_holds_progress_is_described_as_empty() -> None:
    core = an_empty_shard()
    core.ask(m.CommitOffsets(*KEY, -1, (m.OffsetToCommit("t", 0, 1),)))

    assert core.ask(DESCRIBE) == m.DescribeReply(
        group_id=GROUP_ID, state="Empty", generation_id=0, state_since_ms=core.now_ms
    )


def test_a_deleted_group_says_when_and_why_after_a_restart_too() -> None:
    core = a_stable_group(members=1)
    core.advance(SESSION_MS)
    core.advance(1_000)
    core.ask(m.DeleteGroup(*KEY, "the job moved"))
    core.restart()

    gone, leader = core.ask(DESCRIBE), core.ask(m.GetLeader(*KEY))

    assert gone == m.DescribeReply(
        ErrorCode.GROUP_DELETED,
        "The group 'g' in namespace 'default' was deleted on Thu, 01 Jan 1970 00:00:12 GMT: deleted on request: the "
        "job moved; no members since Thu, 01 Jan 1970 00:00:11 GMT: member m0 expired: no heartbeat within its session "
        "timeout of 10000 ms",
    )
    assert (leader.error, leader.detail) == (ErrorCode.GROUP_ID_NOT_FOUND, gone.detail)


# --- list ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "is_listed"),
    [
        (m.ListGroups("other"), False),
        (m.ListGroups(NAMESPACE, states=(" stable",)), True),
        (m.ListGroups(NAMESPACE, states=("Empty",)), False),
        (m.ListGroups(NAMESPACE, group_types=("CLASSIC",)), True),
        (m.ListGroups(NAMESPACE, group_types=("consumer",)), False),
        (m.ListGroups(NAMESPACE, protocol_types=("worker",)), True),
        (m.ListGroups(NAMESPACE, protocol_types=("consumer", "")), False),
        (m.ListGroups(NAMESPACE, after="f"), True),
        (m.ListGroups(NAMESPACE, after=GROUP_ID), False),
    ],
)
def test_a_listing_has_the_requested_groups(request_: m.ListGroups, is_listed: bool) -> None:
    assert bool(a_stable_group().ask(request_).groups) is is_listed


@pytest.mark.parametrize(("limit", "next_after"), [(1, "a"), (2, None), (3, None)])
def test_a_page_ends_at_the_limit(limit: int, next_after: str | None) -> None:
    core = a_stable_group()
    core.ask(m.CommitOffsets(NAMESPACE, "a", -1, (m.OffsetToCommit("t", 0, 1),)))
    reply = core.ask(m.ListGroups(NAMESPACE, limit=limit))

    assert ([group.group_id for group in reply.groups], reply.next_after) == (["a", GROUP_ID][:limit], next_after)


# --- the leader and the fence ----------------------------------------------------------------------------


def test_the_leader_is_named_with_its_own_ids() -> None:
    core = a_consumer_group()

    assert core.ask(m.GetLeader(*KEY)) == m.LeaderReply(
        generation_id=1, leader_id="m0", group_instance_id="i0", client_id="app", state="Stable", fencing_token=TOKEN
    )


def test_a_group_whose_leader_has_gone_has_none() -> None:
    core = a_stable_group()
    core.ask(a_leave("m0"))

    assert core.ask(m.GetLeader(*KEY)) == m.LeaderReply(generation_id=1, state="PreparingRebalance")
    assert an_empty_shard().ask(m.GetLeader(*KEY)).error is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("member_id", "generation_id", "reply"),
    [
        pytest.param("m0", 1, a_fence_reply(is_leader=True, is_member=True), id="leader"),
        pytest.param("m1", 1, a_fence_reply(is_member=True), id="member"),
        pytest.param("", 1, a_fence_reply(), id="no member"),
        pytest.param("m0", 2, m.FenceReply(ErrorCode.ILLEGAL_GENERATION, generation_id=1), id="later generation"),
        pytest.param("m0", 0, m.FenceReply(ErrorCode.ILLEGAL_GENERATION, generation_id=1), id="earlier generation"),
        pytest.param("x", 1, m.FenceReply(ErrorCode.UNKNOWN_MEMBER_ID, generation_id=1), id="stranger"),
    ],
)
def test_the_fence_checks_the_generation_and_its_members(
    member_id: str, generation_id: int, reply: m.FenceReply
) -> None:
    assert a_stable_group().ask(m.VerifyFence(*KEY, generation_id, member_id)) == reply


def a_rejection(error: ErrorCode, detail: str = "") -> m.FenceReply:
    return m.FenceReply(error, detail, generation_id=1)


SUCCESSOR = m.FenceReply(
    generation_id=1, is_leader=True, is_member=True, fencing_token=fencing_token(1, 1), group_instance_id="i0"
)


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        pytest.param(
            m.VerifyFence(*KEY, 1, "back", sign=True, subject="another"),
            a_rejection(ErrorCode.GROUP_AUTHORIZATION_FAILED, "another caller joined as this member"),
            id="of another caller",
        ),
        pytest.param(
            m.VerifyFence(*KEY, 1, "back", fencing_token=fencing_token(1, 9)),
            a_rejection(ErrorCode.ILLEGAL_GENERATION, "the fencing_token is not this member's"),
            id="another token",
        ),
        pytest.param(
            m.VerifyFence(*KEY, 1, fencing_token=fencing_token(1, 9)),
            a_rejection(ErrorCode.ILLEGAL_GENERATION),
            id="token of no member",
        ),
        pytest.param(
            m.VerifyFence(*KEY, 1),
            a_rejection(
                ErrorCode.MEMBER_ID_REQUIRED,
                "a member of this generation was taken over: name the member, or show its fencing_token",
            ),
            id="no member",
        ),
        pytest.param(m.VerifyFence(*KEY, 0, fencing_token=fencing_token(1, 1)), SUCCESSOR, id="token alone"),
        pytest.param(m.VerifyFence(*KEY, 1, "back", sign=True, subject="mine"), SUCCESSOR, id="of the caller"),
    ],
)
def test_the_fence_of_a_group_with_a_successor(request_: m.VerifyFence, reply: m.FenceReply) -> None:
    core = a_stable_group(members=1, static=1)
    core.ask(replace(a_join(new="back", instance="i0"), subject="mine"))

    assert core.ask(request_) == reply


def test_an_empty_group_passes_no_fence() -> None:
    core = an_empty_group()

    assert core.ask(m.VerifyFence(*KEY, core.generation_id)).error is ErrorCode.ILLEGAL_GENERATION
    assert an_empty_shard().ask(m.VerifyFence(*KEY, 0)).error is ErrorCode.GROUP_ID_NOT_FOUND
