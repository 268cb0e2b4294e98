"""HTTP, gRPC, the session stream and a forwarder: the same requests are answered the same."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from rota.core.assignors import TopicPartition
from rota.core.types.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopic,
    DescribeGroup,
    DescribeReply,
    FetchOffsets,
    GetLeader,
    GetTopic,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    ListGroups,
    ListTopics,
    OffsetToCommit,
    Protocol,
    PutTopic,
    RebalanceGroup,
    Reply,
    Request,
    SyncGroup,
    TopicPartitions,
    TopicReply,
    VerifyFence,
)
from tests.contracts.transports import OTHERS, REFERENCE, Conversation, Say, a_transport, spoken

G = ("default", "g")
PROTOCOLS = (Protocol("range", b"\x00\xffm"), Protocol("sticky", b""))


def a_join(instance: str | None = "i1", member_id: str = "", **fields: Any) -> JoinGroup:
    given: dict[str, Any] = {
        "protocols": PROTOCOLS,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "client_id": "кафка",
        "wait_ms": 5_000,
    }
    return JoinGroup(*G, "worker", group_instance_id=instance, member_id=member_id, **(given | fields))


async def joined(say: Say, request: JoinGroup) -> JoinReply:
    reply = await say(request)
    assert isinstance(reply, JoinReply)
    return reply


# --- whole conversations --------------------------------------------------------------------------


async def the_life_of_a_member(say: Say) -> None:
    needed = await joined(say, a_join(None))
    member = await joined(say, a_join(None, needed.member_id))
    me = (member.member_id, member.generation_id)
    await say(SyncGroup(*G, *me, assignments=((member.member_id, b"\xfe\x00"),)))
    await say(Heartbeat(*G, *me))
    await say(Heartbeat(*G, *me, wait_ms=20))
    await say(VerifyFence(*G, member.generation_id, member.member_id))
    await say(VerifyFence(*G, member.generation_id))
    await say(GetLeader(*G))
    await say(GetLeader(*G, after_generation=member.generation_id, wait_ms=10))
    await say(DescribeGroup(*G))
    await say(
        CommitOffsets(*G, member.generation_id, (OffsetToCommit("t", 3, 2**53 - 1, 7, "note"),), member.member_id)
    )
    for number, offset in enumerate((2**53, 1_795_372_229_057_000_000, 2**63 - 1)):
        item = OffsetToCommit("t", number, offset, topic_id=0)
        await say(CommitOffsets(*G, member.generation_id, (item,), member.member_id))
    later = OffsetToCommit("t", 0, 0, topic_id=7)
    await say(CommitOffsets(*G, member.generation_id, (later,), member.member_id))
    await say(FetchOffsets(*G))
    await say(LeaveGroup(*G, (LeavingMember(member.member_id, None, "done"), LeavingMember("stranger"))))
    await say(DescribeGroup(*G))
    await say(DeleteGroup(*G))
    await say(DescribeGroup(*G))


async def two_members_rebalance(say: Say) -> None:
    first = await joined(say, a_join("i1"))
    await say(SyncGroup(*G, first.member_id, 1, "i1", assignments=((first.member_id, b"all"),)))
    pending = await joined(say, a_join("i2", wait_ms=0))
    await say(Heartbeat(*G, first.member_id, 1, "i1"))
    waiting = asyncio.ensure_future(joined(say, a_join("i2", pending.member_id)))
    leader = await joined(say, a_join("i1", first.member_id))
    follower = await waiting
    await say(SyncGroup(*G, follower.member_id, 2, "i2", wait_ms=0))
    await say(SyncGroup(*G, leader.member_id, 2, "i1", "worker", "sticky", assignments=()))
    shares = ((leader.member_id, b"left"), (follower.member_id, b"right"))
    await say(SyncGroup(*G, leader.member_id, 2, "i1", "worker", "range", assignments=shares))
    await say(SyncGroup(*G, follower.member_id, 2, "i2"))
    await say(SyncGroup(*G, leader.member_id, 2, assignments=((follower.member_id, b"everything"),)))
    await say(Heartbeat(*G, follower.member_id, 2, "i2", wait_ms=1_000))
    await say(SyncGroup(*G, follower.member_id, 3, "i2"))
    await say(Heartbeat(*G, follower.member_id, 3, "i1"))
    await say(LeaveGroup(*G, (LeavingMember(group_instance_id="i1"),), by_admin=False))


async def a_rebalance_reaches_a_heartbeat_that_waits(say: Say) -> None:
    first = await joined(say, a_join("i1"))
    await say(SyncGroup(*G, first.member_id, 1, assignments=((first.member_id, b"all"),)))
    waiting = asyncio.ensure_future(say(Heartbeat(*G, first.member_id, 1, wait_ms=20_000)))
    await asyncio.sleep(0.1)  # it waits by now, or is answered at once: the answer is the same
    await say(a_join("i2", wait_ms=0))
    async with asyncio.timeout(15):
        await waiting


async def a_leader_fails(say: Say) -> None:
    first = await joined(say, a_join("i1"))
    await say(SyncGroup(*G, first.member_id, 1, leader_error="no more идей " * 50))


async def a_static_member_returns(say: Say) -> None:
    first = await joined(say, a_join("i1"))
    await say(SyncGroup(*G, first.member_id, 1, assignments=((first.member_id, b"all"),)))
    again = await joined(say, a_join("i1"))
    await say(Heartbeat(*G, first.member_id, 1, "i1"))
    await say(SyncGroup(*G, again.member_id, again.generation_id))


async def an_administrator_has_a_group_agree_anew(say: Say) -> None:
    await say(RebalanceGroup(*G))
    first = await joined(say, a_join("i1"))
    await say(SyncGroup(*G, first.member_id, 1, assignments=((first.member_id, b"all"),)))
    await say(RebalanceGroup(*G, "new машины", step_down=True))
    await say(DescribeGroup(*G))
    await say(LeaveGroup(*G, (LeavingMember(first.member_id),)))
    await say(RebalanceGroup(*G))
    await say(DeleteGroup(*G, "не нужна"))


async def a_group_is_described_as_its_type_reads_it(say: Say) -> None:
    subscription = encode_subscription(Subscription(("t",)))
    share = encode_assignment(Assignment((TopicPartition("t", 0), TopicPartition("t", 2))))
    for kind, metadata, assignment, reported in (
        ("consumer", subscription, share, {"topics": {"t": [0, 2]}}),
        ("worker", b"no worker's", b"no worker's", None),
        ("of-nobody", b"\xff", b"\xff", None),
    ):
        join = replace(a_join("i1"), protocol_type=kind, protocols=(Protocol("p", metadata),))
        member = await joined(say, join)
        await say(SyncGroup(*G, member.member_id, member.generation_id, assignments=((member.member_id, assignment),)))
        reply = await say(DescribeGroup(*G))
        assert isinstance(reply, DescribeReply)
        assert (reply.members[0].assignment, reply.members[0].assignment_decoded) == (assignment, reported)
        assert (reply.members[0].metadata_decoded is None) == (reported is None)
        await say(LeaveGroup(*G, (LeavingMember(group_instance_id="i1"),)))


async def members_leave_a_group_that_is_not_there(say: Say) -> None:
    leaving = (LeavingMember("m-1"), LeavingMember(group_instance_id="i1"))
    reply = await say(LeaveGroup(*G, leaving))
    assert isinstance(reply, LeaveReply)
    assert reply.error is ErrorCode.NONE
    assert [left.error for left in reply.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    await say(LeaveGroup(*G, leaving[:1], by_admin=True))


async def an_administrator_removes_members(say: Say) -> None:
    first = await joined(say, a_join("i1"))
    await say(SyncGroup(*G, first.member_id, 1, "i1"))
    for member_id in ("stranger", first.member_id, first.member_id):
        await say(LeaveGroup(*G, (LeavingMember(member_id, None, "by hand / by ärgument"),), by_admin=True))
    await say(Heartbeat(*G, first.member_id, 1))


async def progress(say: Say) -> None:
    offsets = (OffsetToCommit("t", 0, 5), OffsetToCommit("t", 1, 6, 0, "x" * 4_097), OffsetToCommit("u.-_:", 2, 0))
    await say(FetchOffsets(*G))
    await say(CommitOffsets(*G, 3, offsets))
    await say(CommitOffsets(*G, -1, offsets))
    await say(FetchOffsets(*G, (TopicPartitions("t", (0, 1)), TopicPartitions("v", (9,)))))
    await say(FetchOffsets(*G, ()))
    await say(DeleteOffsets(*G, (TopicPartitions("t", (0, 7)),)))
    await say(FetchOffsets(*G, None))
    await say(DeleteOffsets(*G, ()))


async def topics(say: Say) -> None:
    await say(PutTopic("default", "t", 3, {"owner": "уs", "z": ""}))
    await say(PutTopic("default", "t", 2))
    await say(GetTopic("default", "t"))
    await say(GetTopic("default", "nothing"))
    await say(PutTopic("default", "t", 4))
    await say(ListTopics("default"))
    await say(DeleteTopic("default", "t"))
    await say(DeleteTopic("default", "t"))


async def a_topic_is_watched(say: Say) -> None:
    known = await say(PutTopic("default", "t", 3))
    assert isinstance(known, TopicReply)
    await say(GetTopic("default", "t", known.version, wait_ms=10))
    waiting = asyncio.ensure_future(say(GetTopic("default", "t", known.version, wait_ms=20_000)))
    await asyncio.sleep(0.1)  # it waits by now, or is answered at once: the answer is the same
    await say(PutTopic("default", "t", 4, {"weights": "1,2,3,4"}))
    async with asyncio.timeout(15):
        await waiting


async def _join_as_consumer(say: Say) -> None:
    """A group with one member that reads `read-1` and `read-2`."""
    protocols = (Protocol("range", b'{"topics":["read-1","read-2"]}'),)
    await joined(say, JoinGroup("default", "readers", "consumer", protocols, 10_000, 10_000, group_instance_id="r1"))


async def listings(say: Say) -> None:
    for group_id in ("b", "a", "c"):
        await say(CommitOffsets("default", group_id, -1, (OffsetToCommit("t", 0, 1),)))
    await say(ListGroups("default"))
    await say(ListGroups("default", limit=2))
    await say(ListGroups("default", after="b", limit=2))
    await say(ListGroups("default", states=("stable",), protocol_types=("x",)))
    await say(ListGroups("default", states=(" STABLE , empty",)))
    await say(ListGroups("default", states=("empty",), group_types=("CLASSIC",)))
    await say(ListGroups("elsewhere"))
    await _join_as_consumer(say)
    await say(ListGroups("default", topic="read-1"))
    await say(ListGroups("default", topic="unread"))
    await say(ListGroups("default", topic="read-1", states=("empty",)))
    await say(ListTopics("elsewhere", limit=1))


CONVERSATIONS: list[Conversation] = [
    the_life_of_a_member,
    two_members_rebalance,
    a_rebalance_reaches_a_heartbeat_that_waits,
    a_leader_fails,
    a_static_member_returns,
    an_administrator_has_a_group_agree_anew,
    a_group_is_described_as_its_type_reads_it,
    members_leave_a_group_that_is_not_there,
    an_administrator_removes_members,
    progress,
    topics,
    a_topic_is_watched,
    listings,
]


@cache
def answers_over(transport: str) -> list[list[Any]]:
    """Of every conversation; each transport is asked once, in an event loop of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, spoken(CONVERSATIONS, transport)).result()


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.__name__)
@pytest.mark.parametrize("transport", OTHERS)
def test_a_conversation_is_the_same_over_every_transport(transport: str, conversation: Conversation) -> None:
    place = CONVERSATIONS.index(conversation)

    assert answers_over(transport)[place] == answers_over(REFERENCE)[place]


# --- requests that are wrong ----------------------------------------------------------------------

BAD: list[Request] = [
    a_join(client_id="a\nb"),
    a_join(client_id="x" * 256),
    a_join(reason="x" * 1_001),
    a_join(reason="\0"),
    a_join("not an id"),
    a_join(""),
    a_join(member_id="\x07"),
    a_join(member_id="x" * 513),
    a_join(member_id="stranger"),
    a_join(session_timeout_ms=-1),
    a_join(session_timeout_ms=10),
    a_join(session_timeout_ms=2**54),
    a_join(rebalance_timeout_ms=86_400_001),
    a_join(wait_ms=-1),
    a_join(protocols=()),
    a_join(protocols=(Protocol("p"),) * 65),
    a_join(protocols=(Protocol("x" * 250),)),
    a_join(protocols=(Protocol("p", b"x" * 2_001),)),
    a_join(protocols=(Protocol("p"), Protocol("p\0"))),
    JoinGroup("default", "g", "x" * 250, PROTOCOLS, 30_000, 30_000),
    JoinGroup("de:fault", "g", "worker", PROTOCOLS, 30_000, 30_000),
    JoinGroup("default", "g!", "worker", PROTOCOLS, 30_000, 30_000),
    JoinGroup("default", "g" * 250, "worker", PROTOCOLS, 30_000, 30_000),
    SyncGroup(*G, "m", -2),
    SyncGroup(*G, "m", 1, assignments=(("m", b"x" * 3_001),)),
    SyncGroup(*G, "m", 1, assignments=(("m", b""), ("\x07", b""))),
    SyncGroup(*G, "m", 1, leader_error="x" * 1_001),
    SyncGroup(*G, "m", 1, protocol_name="x" * 250),
    Heartbeat(*G, "m", -2),
    Heartbeat(*G, "x" * 513, 1),
    Heartbeat(*G, "m", 1, "not an id"),
    Heartbeat("default", "g!", "m", 1),
    Heartbeat("de:fault", "g", "m", 1),
    Heartbeat(*G, "m", 1),
    LeaveGroup(*G, (LeavingMember(),)),
    LeaveGroup(*G, (LeavingMember("m", None, "x" * 1_001),)),
    CommitOffsets(*G, 1, (OffsetToCommit("t", -1, 0),)),
    CommitOffsets(*G, 1, (OffsetToCommit("t", 0, -1),)),
    CommitOffsets(*G, 1, (OffsetToCommit("t!", 0, 1),)),
    CommitOffsets(*G, 1, (OffsetToCommit("t", 0, 1, -1),)),
    CommitOffsets(*G, -2, ()),
    FetchOffsets(*G, (TopicPartitions("t!", (0,)),)),
    FetchOffsets(*G, (TopicPartitions("t", ()),)),
    DeleteOffsets(*G, (TopicPartitions("t", (-1,)),)),
    VerifyFence(*G, -2),
    VerifyFence(*G, 1, "\x07"),
    GetLeader(*G, after_generation=-2),
    GetLeader(*G, wait_ms=-1),
    ListGroups("default", limit=0),
    ListGroups("default", topic="t!"),
    ListGroups("default", limit=1_001),
    ListGroups("default", states=("Stable",) * 65),
    ListGroups("default", states=("Stabel",)),
    ListGroups("default", states=("Empty,Foo",)),
    ListGroups("default", states=("x" * 250,)),
    PutTopic("default", "t", 0),
    PutTopic("default", "t", 2**40),
    PutTopic("default", "t!", 1),
    PutTopic("default", "t", 1, {f"k{n}": "v" for n in range(65)}),
    PutTopic("default", "t", 1, {"k" * 250: "v"}),
    PutTopic("default", "t", 1, {"k": "\0"}),
    GetTopic("default", "t!"),
    DescribeGroup("default", "g!"),
    DeleteGroup("default", "nothing"),
]
OUT_OF_RANGE: list[Request] = [
    Heartbeat(*G, "m", 2**31),
    CommitOffsets(*G, 1, (OffsetToCommit("t", 2**31, 1),)),
    CommitOffsets(*G, 1, (OffsetToCommit("t", 0, 2**70),)),
    a_join(reason="\ud800"),
]
"""What protobuf cannot even say. The code is the same; why it cannot be said is put in other words."""


async def everything_bad(say: Say) -> None:
    for request in BAD:
        await say(request)


@pytest.mark.parametrize("transport", OTHERS)
async def test_what_is_wrong_is_refused_with_the_same_code_and_words(transport: str) -> None:
    (ours,), (theirs,) = await spoken([everything_bad], transport), await spoken([everything_bad], REFERENCE)

    differ = [(request, a, b) for request, a, b in zip(BAD, ours, theirs, strict=True) if a != b]
    assert differ == []
    assert sum(reply[1]["error"] != "NONE" for reply, *_ in theirs) == len(BAD)


@pytest.mark.parametrize("transport", ["grpc", "stream"])
@pytest.mark.parametrize("request_", OUT_OF_RANGE, ids=lambda request: type(request).__name__)
async def test_what_protobuf_cannot_say_is_refused_all_the_same(transport: str, request_: Request) -> None:
    async with a_transport(transport) as sender:
        reply: Reply = (await sender.send(request_, timeout_ms=5_000)).reply

    assert reply.error == "INVALID_REQUEST"


@pytest.mark.parametrize("transport", OTHERS)
async def test_a_watch_reports_the_same(transport: str) -> None:
    async def reported(name: str) -> list[Any]:
        async with a_transport(name) as sender:
            await sender.send(a_join("i1", wait_ms=20_000), timeout_ms=30_000)  # Its generation is complete then.
            await sender.send(a_join("i2", wait_ms=0), timeout_ms=30_000)
            lines = [line async for line in first(4, sender.watch(*G, 0))]
        return [(line.generation_id, line.kind, line.reason[:10], sorted(line.payload)) for line in lines]

    assert await reported(transport) == await reported(REFERENCE)


async def first(count: int, lines: Any) -> Any:
    async for line in lines:
        yield line
        count -= 1
        if not count:
            break
    await lines.aclose()
