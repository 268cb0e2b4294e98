"""Replies in JSON: what the server writes the SDK reads."""

from __future__ import annotations

import json

import pytest

from rota.protocol import messages as m
from rota.protocol.calls import REPLY_OF
from rota.protocol.errors import ErrorCode
from rota.protocol.wire.replies import MalformedReply, decode_reply, encode_reply

REPLIES: list[m.Reply] = [
    m.JoinReply(pending=True, member_id="m-1"),
    m.JoinReply(
        member_id="m-1",
        generation_id=4,
        protocol_type="worker",
        protocol_name="range",
        leader_id="m-1",
        members=(m.JoinedMember("m-1", "pod-0", b"\x00"), m.JoinedMember("m-2", None, b"")),
        skip_assignment=True,
    ),
    m.JoinReply(member_id="m-1", generation_id=4, leader_id="m-1", skip_assignment=True, assignment=b""),
    m.SyncReply(pending=True),
    m.SyncReply(generation_id=4, protocol_type="worker", protocol_name="range", assignment=b"\xff"),
    m.HeartbeatReply(generation_id=4, state="Stable"),
    m.LeaveReply(members=(m.LeftMember("m-1", "pod-0", ErrorCode.NONE), m.LeftMember("x", None, ErrorCode.THROTTLED))),
    m.CommitReply(partitions=(m.PartitionResult("a", 0), m.PartitionResult("a", 1, ErrorCode.UNKNOWN_TOPIC))),
    m.FetchReply(offsets=(m.FetchedOffset("a", 0, 12, 3, "note", 1_700_000_000_000), m.FetchedOffset("a", 1))),
    m.DeleteOffsetsReply(partitions=(m.PartitionResult("a", 0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),)),
    m.FenceReply(generation_id=4, is_leader=True, is_member=True),
    m.DescribeReply(
        group_id="g",
        state="Stable",
        generation_id=4,
        protocol_type="worker",
        protocol_name="range",
        leader_id="m-1",
        members=(
            m.DescribedMember("m-1", None, "c", "::1", b"m", b"a", 45_000, 60_000, None, True, True),
            m.DescribedMember(
                "m-2",
                None,
                "c",
                "::1",
                b"m",
                b"a",
                45_000,
                60_000,
                None,
                True,
                False,
                {"topics": ["ä"]},
                {"weight": 0.5},
            ),
        ),
        pending_members=1,
        rebalance_reason="member joined",
        rebalance_by="m-1",
        rebalance_cause="member_joined",
        state_since_ms=5,
        phase_deadline_ms=9,
        preempt_at_ms=11,
        generation_protocol_name="range",
    ),
    m.ListReply(next_after="g", groups=(m.ListedGroup("g", "Stable", "worker", 4, 1),)),
    m.ListReply(),
    m.DeleteGroupReply(),
    m.RebalanceReply(generation_id=4),
    m.FreezeReply(frozen_until_ms=9_000),
    m.FreezeReply(),
    m.QuarantineReply(after_falls=3, max_units=2, release_after_ms=60_000, quarantined=("docs/3",)),
    m.QuarantineReply(),
    m.DrainReply(granted=True, until_ms=9_000, leaving=("m-1", "m-2")),
    m.DrainReply(leaving=("m-1",), why_not="1 of 1 members has a permission already"),
    m.LeaderReply(generation_id=4, leader_id="m-1", group_instance_id="pod-0", client_id="c", state="Stable"),
    m.TopicReply(topic="a", partitions=12, attributes={"k": "v"}),
    m.ListTopicsReply(next_after="a", topics=(m.ListedTopic("a", 12),)),
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_what_the_server_answers_the_client_reads(reply: m.Reply) -> None:
    document = json.loads(json.dumps({**encode_reply(reply), "revision": 9, "epoch": 2}))
    received = decode_reply(type(reply), document)
    assert (received.reply, received.revision, received.epoch) == (reply, 9, 2)


def test_every_reply_of_the_protocol_has_a_sample_here() -> None:
    # Over HTTP, several heartbeats are answered one by one.
    assert {type(reply) for reply in REPLIES} == set(REPLY_OF.values()) - {m.HeartbeatManyReply}


def test_joins_and_syncs_say_whether_they_are_done() -> None:
    assert encode_reply(m.JoinReply(pending=True, member_id="m-1")) == {"outcome": "pending", "member_id": "m-1"}
    assert encode_reply(m.SyncReply(pending=True)) == {"outcome": "pending"}
    assert encode_reply(m.JoinReply(member_id="m-1"))["outcome"] == "joined"
    assert encode_reply(m.SyncReply())["outcome"] == "synced"


def test_the_last_page_has_no_token_for_a_next_one() -> None:
    group = m.ListedGroup("g", "Stable", "worker", 4, 1)
    assert encode_reply(m.ListReply(groups=(group,)))["next_page_token"] is None
    assert encode_reply(m.ListReply(next_after="g", groups=(group,)))["next_page_token"] == "Zw=="


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"generation_id": "4", "state": "Stable"},
        {"generation_id": 4, "state": None},
        {"generation_id": 4, "state": None, "waited_ms": 0},
        {"generation_id": 4, "state": "Stable", "revision": "1"},
    ],
)
def test_a_document_that_is_no_reply_is_reported_as_such(document: dict[str, object]) -> None:
    with pytest.raises(MalformedReply):
        decode_reply(m.HeartbeatReply, document)
