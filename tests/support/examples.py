"""A request and a reply of each call, as tests send them."""

from __future__ import annotations

from typing import NamedTuple

from rota.protocol import messages as m
from rota.protocol.calls import CALLS, Call
from rota.protocol.errors import ErrorCode as E
from rota.protocol.fencing_token import fencing_token


class Example(NamedTuple):
    """One call with its answer."""

    request: m.Request
    reply: m.Reply

    @property
    def call(self) -> Call:
        return CALLS[type(self.request)]


def name_of(example: Example) -> str:
    """The operation's id, which names the parameters of tests."""
    return example.call.operation


_G = ("default", "indexers")
_MEMBER = "indexer-1-6f1c7e0a-1d4b-4c59-9a0e-0a4f5b1c2d3e"
_TOKEN = fencing_token(7)
_OTHER = "indexer-2-0b7d9c5e-57f4-4ad0-8a2b-7e6f5d4c3b2a"

EXAMPLES = (
    Example(
        m.JoinGroup(
            *_G, "worker", (m.Protocol("range", b"documents"),), 10_000, 60_000, client_id="indexer-1", wait_ms=30_000
        ),
        m.JoinReply(
            member_id=_MEMBER,
            generation_id=7,
            protocol_type="worker",
            protocol_name="range",
            leader_id=_MEMBER,
            fencing_token=_TOKEN,
            members=(m.JoinedMember(_MEMBER, None, b"documents"), m.JoinedMember(_OTHER, None, b"documents")),
        ),
    ),
    Example(
        m.SyncGroup(*_G, _MEMBER, 7, assignments=((_MEMBER, b"documents:0-5"), (_OTHER, b"documents:6-11"))),
        m.SyncReply(
            generation_id=7,
            protocol_type="worker",
            protocol_name="range",
            assignment=b"documents:0-5",
            fencing_token=_TOKEN,
        ),
    ),
    Example(m.Heartbeat(*_G, _MEMBER, 7, wait_ms=3_000), m.HeartbeatReply(generation_id=7, state="Stable")),
    Example(
        m.LeaveGroup(*_G, (m.LeavingMember(_MEMBER, None, "scaling in"),)),
        m.LeaveReply(members=(m.LeftMember(_MEMBER, None, E.NONE),)),
    ),
    Example(
        m.CommitOffsets(*_G, 7, (m.OffsetToCommit("documents", 0, 1_200),), member_id=_MEMBER),
        m.CommitReply(partitions=(m.PartitionResult("documents", 0),)),
    ),
    Example(
        m.FetchOffsets(*_G, (m.TopicPartitions("documents", (0,)),)),
        m.FetchReply(offsets=(m.FetchedOffset("documents", 0, 1_200, None, "", 1_767_225_600_000),)),
    ),
    Example(
        m.DeleteOffsets(*_G, (m.TopicPartitions("documents", (0,)),)),
        m.DeleteOffsetsReply(partitions=(m.PartitionResult("documents", 0),)),
    ),
    Example(
        m.VerifyFence(*_G, 7, _MEMBER, fencing_token=_TOKEN),
        m.FenceReply(generation_id=7, is_leader=True, is_member=True, fencing_token=_TOKEN),
    ),
    Example(
        m.GetLeader(*_G, after_generation=6, wait_ms=30_000),
        m.LeaderReply(generation_id=7, leader_id=_MEMBER, client_id="indexer-1", state="Stable", fencing_token=_TOKEN),
    ),
    Example(
        m.DescribeGroup(*_G),
        m.DescribeReply(
            group_id="indexers",
            state="Stable",
            generation_id=7,
            protocol_type="worker",
            protocol_name="range",
            leader_id=_MEMBER,
            members=(
                m.DescribedMember(
                    *(_MEMBER, None, "indexer-1", "10.0.0.7", b"documents", b"documents:0-5"),
                    *(10_000, 60_000, 1_767_225_610_000, True),
                ),
            ),
            rebalance_reason="member joined",
            rebalance_by=_MEMBER,
            rebalance_cause="member_joined",
            state_since_ms=1_767_225_600_000,
        ),
    ),
    Example(m.DeleteGroup(*_G, "replaced by indexers-2"), m.DeleteGroupReply()),
    Example(
        m.RebalanceGroup(*_G, "the leader's machine is going away", step_down=True), m.RebalanceReply(generation_id=7)
    ),
    Example(m.FreezeGroup(*_G, for_ms=1_200_000, reason="a deploy"), m.FreezeReply(frozen_until_ms=1_763_000_000_000)),
    Example(
        m.QuarantineGroup(*_G, after_falls=3, max_units=1, reason="docs/3 has a broken document"),
        m.QuarantineReply(after_falls=3, quarantined=("docs/3",)),
    ),
    Example(
        m.DrainMember(*_G, _MEMBER, max_leaving=1, reason="its node is drained"),
        m.DrainReply(granted=True, until_ms=1_763_000_000_000, leaving=(_MEMBER,)),
    ),
    Example(
        m.ListGroups("default", states=("Stable",), limit=100),
        m.ListReply(next_after="indexers", groups=(m.ListedGroup("indexers", "Stable", "worker", 7, 2),)),
    ),
    Example(
        m.PutTopic("default", "documents", 12, {"owner": "search"}),
        m.TopicReply(topic="documents", partitions=12, attributes={"owner": "search"}),
    ),
    Example(
        m.GetTopic("default", "documents", "5d0c86a1b3f4e297", 20_000),
        m.TopicReply(topic="documents", partitions=12, attributes={"owner": "search"}, version="a94e0b57c2d1f386"),
    ),
    Example(m.DeleteTopic("default", "documents"), m.TopicReply(topic="documents", partitions=12, groups=2)),
    Example(m.ListTopics("default", limit=100), m.ListTopicsReply(topics=(m.ListedTopic("documents", 12),))),
)
