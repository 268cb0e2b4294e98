"""What the API offers, one line an operation: its name, its documentation, its examples, the errors it may have.

Routing, the OpenAPI document and the tests all read this table. How requests and replies look is in `rota.wire`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode as E
from rota.protocol.fencing_token import fencing_token

MEMBERSHIP = "membership"
OFFSETS = "offsets"
FENCES = "fences"
GROUPS = "groups"
TOPICS = "topics"
EVENTS = "events"
ACCESS = "access"
SERVER = "server"

TAGS = {
    MEMBERSHIP: "Join a group, agree on a generation, fetch your share, stay alive, leave.",
    OFFSETS: "Progress per topic and partition, fenced by the generation.",
    FENCES: "The leader, and whether a fencing token is still current.",
    GROUPS: "Look at groups and administer them.",
    TOPICS: "Named things with a number of partitions.",
    EVENTS: "The journal: each change of a group, its reason, and its cause.",
    ACCESS: "The caller's identity and permissions.",
    SERVER: "Is the process up, can it take part, how is it doing.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """The documentation of one request type. The examples are messages, so they cannot drift from the codecs."""

    operation_id: str
    tag: str
    summary: str
    request: m.Request
    reply: m.Reply
    errors: tuple[E, ...] = ()


_G = ("default", "indexers")
_MEMBER = "indexer-1-6f1c7e0a-1d4b-4c59-9a0e-0a4f5b1c2d3e"
_TOKEN = fencing_token(7)
_OTHER = "indexer-2-0b7d9c5e-57f4-4ad0-8a2b-7e6f5d4c3b2a"
_MEMBER_ERRORS = (E.INVALID_GROUP_ID, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.ILLEGAL_GENERATION)
_GROUP_ERRORS = (E.INVALID_GROUP_ID, E.GROUP_ID_NOT_FOUND)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "groupsJoin",
        MEMBERSHIP,
        "Join a group. Parks until the join phase is over, or answers pending.",
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
        (
            *(E.INVALID_GROUP_ID, E.MEMBER_ID_REQUIRED, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID),
            *(E.INCONSISTENT_GROUP_PROTOCOL, E.INVALID_SESSION_TIMEOUT, E.GROUP_MAX_SIZE_REACHED),
            E.REBALANCE_IN_PROGRESS,
        ),
    ),
    Operation(
        "groupsSync",
        MEMBERSHIP,
        "Fetch this member's assignment; the leader sends those of all members. Parks until the leader has synced.",
        m.SyncGroup(*_G, _MEMBER, 7, assignments=((_MEMBER, b"documents:0-5"), (_OTHER, b"documents:6-11"))),
        m.SyncReply(
            generation_id=7,
            protocol_type="worker",
            protocol_name="range",
            assignment=b"documents:0-5",
            fencing_token=_TOKEN,
        ),
        (*_MEMBER_ERRORS, E.REBALANCE_IN_PROGRESS, E.ASSIGNMENT_FAILED, E.INCONSISTENT_GROUP_PROTOCOL),
    ),
    Operation(
        "groupsHeartbeat",
        MEMBERSHIP,
        "A sign of life, of one member or of several. With wait_ms, answered the moment the group rebalances.",
        m.Heartbeat(*_G, _MEMBER, 7, wait_ms=3_000),
        m.HeartbeatReply(generation_id=7, state="Stable"),
        (*_MEMBER_ERRORS, E.REBALANCE_IN_PROGRESS),
    ),
    Operation(
        "groupsLeave",
        MEMBERSHIP,
        "Leave at once; answered per member.",
        m.LeaveGroup(*_G, (m.LeavingMember(_MEMBER, None, "scaling in"),)),
        m.LeaveReply(members=(m.LeftMember(_MEMBER, None, E.NONE),)),
        (E.INVALID_GROUP_ID, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID),
    ),
    Operation(
        "offsetsCommit",
        OFFSETS,
        "Record progress; answered per partition.",
        m.CommitOffsets(*_G, 7, (m.OffsetToCommit("documents", 0, 1_200),), member_id=_MEMBER),
        m.CommitReply(partitions=(m.PartitionResult("documents", 0),)),
        (*_MEMBER_ERRORS, E.REBALANCE_IN_PROGRESS, E.GROUP_ID_NOT_FOUND, E.OFFSET_METADATA_TOO_LARGE),
    ),
    Operation(
        "offsetsFetch",
        OFFSETS,
        "Read progress; needs no membership.",
        m.FetchOffsets(*_G, (m.TopicPartitions("documents", (0,)),)),
        m.FetchReply(offsets=(m.FetchedOffset("documents", 0, 1_200, None, "", 1_767_225_600_000),)),
        _GROUP_ERRORS,
    ),
    Operation(
        "offsetsDelete",
        OFFSETS,
        "Forget progress; answered per partition.",
        m.DeleteOffsets(*_G, (m.TopicPartitions("documents", (0,)),)),
        m.DeleteOffsetsReply(partitions=(m.PartitionResult("documents", 0),)),
        (*_GROUP_ERRORS, E.NON_EMPTY_GROUP, E.GROUP_SUBSCRIBED_TO_TOPIC),
    ),
    Operation(
        "fenceVerify",
        FENCES,
        "Is this fencing token, or this generation, still the current one, and this member in it?",
        m.VerifyFence(*_G, 7, _MEMBER, fencing_token=_TOKEN),
        m.FenceReply(generation_id=7, is_leader=True, is_member=True, fencing_token=_TOKEN),
        (*_GROUP_ERRORS, E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.MEMBER_ID_REQUIRED),
    ),
    Operation(
        "leaderGet",
        FENCES,
        "The leader and its fencing token. With wait_ms, waits for a leader of a generation after after_generation.",
        m.GetLeader(*_G, after_generation=6, wait_ms=30_000),
        m.LeaderReply(generation_id=7, leader_id=_MEMBER, client_id="indexer-1", state="Stable", fencing_token=_TOKEN),
        _GROUP_ERRORS,
    ),
    Operation(
        "groupsDescribe",
        GROUPS,
        "A group as it stands, with its members and the reason of its last rebalance.",
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
        (*_GROUP_ERRORS, E.GROUP_DELETED),
    ),
    Operation(
        "groupsDelete",
        GROUPS,
        "Delete an Empty group and its offsets. Its generations go on counting if it ever comes back.",
        m.DeleteGroup(*_G, "replaced by indexers-2"),
        m.DeleteGroupReply(),
        (*_GROUP_ERRORS, E.NON_EMPTY_GROUP),
    ),
    Operation(
        "groupsRebalance",
        GROUPS,
        "Start a rebalance; with step_down under another leader. No member is removed.",
        m.RebalanceGroup(*_G, "the leader's machine is going away", step_down=True),
        m.RebalanceReply(generation_id=7),
        _GROUP_ERRORS,
    ),
    Operation(
        "groupsFreeze",
        GROUPS,
        "Start no rebalance for a while that could as well start later: newcomers, changes of topics and candidates of "
        "a higher priority wait. Members that leave or expire are excepted. for_ms of 0 ends it.",
        m.FreezeGroup(*_G, for_ms=1_200_000, reason="a deploy"),
        m.FreezeReply(frozen_until_ms=1_763_000_000_000),
        _GROUP_ERRORS,
    ),
    Operation(
        "groupsQuarantine",
        GROUPS,
        "Set the rule by which units that fell their holders in a row are left out of assignments, and release such "
        "units. Entries that are left out stay as they are.",
        m.QuarantineGroup(*_G, after_falls=3, max_units=1, reason="docs/3 has a broken document"),
        m.QuarantineReply(after_falls=3, quarantined=("docs/3",)),
        _GROUP_ERRORS,
    ),
    Operation(
        "groupsDrain",
        GROUPS,
        "May a member leave now, as one of at most max_leaving at once? It removes nothing: the member leaves then.",
        m.DrainMember(*_G, _MEMBER, max_leaving=1, reason="its node is drained"),
        m.DrainReply(granted=True, until_ms=1_763_000_000_000, leaving=(_MEMBER,)),
        (*_GROUP_ERRORS, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID),
    ),
    Operation(
        "groupsPlan",
        GROUPS,
        "What a rebalance would do with fewer or more members, more partitions or another strategy. Changes nothing.",
        m.PlanGroup(*_G, without=(_OTHER,), topics=(m.TopicCount("documents", 4),), strategy="cooperative-sticky"),
        m.PlanReply(
            generation_id=7,
            protocol_name="range",
            planned_protocol_name="cooperative-sticky",
            rounds=1,
            moves=1,
            least_moves=1,
            members=(
                m.PlannedMember(
                    _MEMBER,
                    before=(m.TopicPartitions("documents", (0, 1)),),
                    after=(m.TopicPartitions("documents", (0, 1, 2, 3)),),
                ),
                m.PlannedMember(_OTHER, fate="leaves", before=(m.TopicPartitions("documents", (2,)),)),
            ),
            moved=(m.PlannedMove("documents", (2,), _OTHER, _MEMBER),),
        ),
        (*_GROUP_ERRORS, E.REBALANCE_IN_PROGRESS, E.INVALID_PARTITIONS, E.ASSIGNMENT_FAILED),
    ),
    Operation(
        "groupsList",
        GROUPS,
        "Groups of a namespace, ordered by id, in pages.",
        m.ListGroups("default", states=("Stable",), limit=100),
        m.ListReply(groups=(m.ListedGroup("indexers", "Stable", "worker", 7, 2),), more=True),
    ),
    Operation(
        "topicsPut",
        TOPICS,
        "Register a topic, or let it grow.",
        m.PutTopic("default", "documents", 12, (("owner", "search"),)),
        m.TopicReply(topic="documents", partitions=12, attributes=(("owner", "search"),)),
        (E.INVALID_PARTITIONS,),
    ),
    Operation(
        "topicsGet",
        TOPICS,
        "A topic's number of partitions and its attributes; with wait_ms, once it is another than the one known.",
        m.GetTopic("default", "documents", "5d0c86a1b3f4e297", 20_000),
        m.TopicReply(topic="documents", partitions=12, attributes=(("owner", "search"),), version="a94e0b57c2d1f386"),
        (E.UNKNOWN_TOPIC,),
    ),
    Operation(
        "topicsDelete",
        TOPICS,
        "Delete a topic, and the progress that groups have in it. A new topic of this name begins without progress.",
        m.DeleteTopic("default", "documents"),
        m.TopicReply(topic="documents", partitions=12, groups=2),
        (E.UNKNOWN_TOPIC,),
    ),
    Operation(
        "topicsList",
        TOPICS,
        "Topics of a namespace, ordered by name, in pages.",
        m.ListTopics("default", limit=100),
        m.ListTopicsReply(topics=(m.ListedTopic("documents", 12),)),
    ),
)
