"""The requests as they look in JSON or in a query string. The group itself is named by the path."""

# ruff: noqa: ARG002 — every kind of value has the same signature, though not all need the limits.
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rota.protocol.defaults import DRAIN_GRANT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import MAX_TOKEN
from rota.protocol.ids import (
    NAME_PATTERN,
    check_client_id,
    check_instance_id,
    check_member_id,
    check_topic,
)
from rota.protocol.limits import (
    CONSUMER_REBALANCE_TIMEOUT_MS,
    MAX_FALLS,
    MAX_FREEZE_MS,
    MAX_QUARANTINED,
    MAX_RETENTION_TIME_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    Limits,
)
from rota.protocol.messages import (
    NO_GENERATION,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopic,
    DescribeGroup,
    DrainMember,
    FetchOffsets,
    FreezeGroup,
    GetLeader,
    GetTopic,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    ListTopics,
    OffsetToCommit,
    PlanGroup,
    Protocol,
    PutTopic,
    QuarantineGroup,
    RebalanceGroup,
    SyncGroup,
    TopicCount,
    TopicPartitions,
    VerifyFence,
)
from rota.wire.fields import (
    INT32_MAX,
    Boolean,
    Integer,
    Integer64,
    Octets,
    Schema,
    Text,
    TextMap,
    Wait,
    invalid,
    too_large,
)
from rota.wire.page_token import PageToken
from rota.wire.records import ListOf, Pair, Property, given
from rota.wire.states import states

MAX_PAGE_SIZE = 1_000

MEMBER_ID = Text(512, check_member_id)
INSTANCE_ID = Text(check=check_instance_id, pattern=NAME_PATTERN)
TOPIC = Text(check=check_topic, pattern=NAME_PATTERN)
CLIENT_ID = Text(255, check_client_id)
PROTOCOL_TYPE = Text(249)
PROTOCOL_NAME = Text(249)
SESSION_TIMEOUT = Integer()
REBALANCE_TIMEOUT = Integer(0, "max_rebalance_timeout_ms")
WAIT = Wait()
GENERATION_ID = Integer(NO_GENERATION, INT32_MAX)
FENCING_TOKEN = Integer(0, MAX_TOKEN)
PARTITION = Integer(0, INT32_MAX)
OFFSET = Integer64()
_COUNT = Integer(1, "max_topic_partitions", ErrorCode.INVALID_PARTITIONS)
METADATA = Octets("metadata_max_bytes")
ASSIGNMENT = Octets("assignment_max_bytes")
UNIT = Text(512)
REASON = Text("reason_max_chars")
_LAST_GENERATION_DOC = "The highest generation that the client has held in this group: the next one is higher."
ATTRIBUTES = TextMap(64, Text(249), Text(4_096))

_INSTANCE_DOC = "Makes the member static: it survives its restarts."
_WAIT_DOC = "How long the call may stay parked. Above 50000 counts as 50000."


_SELECTOR = re.compile(rf"({NAME_PATTERN})/([0-9]{{1,10}}(?:,[0-9]{{1,10}})*)")


@dataclass(frozen=True, slots=True)
class TopicSelector:
    """Partitions of a topic in a query string: `orders/0,1,2`."""

    def decode(self, value: Any, limits: Limits) -> TopicPartitions:
        matched = _SELECTOR.fullmatch(value) if type(value) is str else None
        if matched is None:
            raise invalid("must look like topic/0,1,2")
        numbers = [int(number) for number in matched[2].split(",")]
        if max(numbers) > INT32_MAX:
            raise invalid(f"must name partitions from 0 to {INT32_MAX}")
        if len(numbers) > limits.max_partitions_per_request:
            raise too_large(f"must name at most {limits.max_partitions_per_request} partitions")
        return TopicPartitions(matched[1], tuple(numbers))

    def encode(self, value: TopicPartitions) -> str:
        return f"{value.topic}/{','.join(map(str, value.partitions))}"

    def schema(self, limits: Limits) -> Schema:
        return {"type": "string", "pattern": f"^{NAME_PATTERN}/[0-9]{{1,9}}(?:,[0-9]{{1,9}})*$"}


def default_rebalance_timeout_ms(protocol_type: str) -> int:
    """Kafka's consumers get five minutes to rejoin, all others one."""
    return CONSUMER_REBALANCE_TIMEOUT_MS if protocol_type == "consumer" else REBALANCE_TIMEOUT_MS


def _join_group(*, protocol_type: str, rebalance_timeout_ms: int | None, **rest: Any) -> JoinGroup:
    if rebalance_timeout_ms is None:
        rebalance_timeout_ms = default_rebalance_timeout_ms(protocol_type)
    return JoinGroup(protocol_type=protocol_type, rebalance_timeout_ms=rebalance_timeout_ms, **rest)


def _leaving_member(**values: Any) -> LeavingMember:
    member = LeavingMember(**values)
    if not member.member_id and member.group_instance_id is None:
        raise invalid("must have a member_id or a group_instance_id")
    return member


def _verify_fence(*, generation_id: int | None, fencing_token: int | None, **rest: Any) -> VerifyFence:
    """A token says its generation."""
    if generation_id is None and fencing_token is None:
        raise invalid("fencing_token is missing, or generation_id")
    of_generation = NO_GENERATION if generation_id is None else generation_id
    return VerifyFence(generation_id=of_generation, fencing_token=fencing_token, **rest)


PROTOCOL = given(
    Protocol,
    (
        Property("name", PROTOCOL_NAME, doc="An assignment strategy, such as `range`."),
        Property("metadata", METADATA, b"", "What the leader shall know of this member, in base64."),
    ),
)

JOIN_GROUP = given(
    _join_group,
    (
        Property("member_id", MEMBER_ID, "", "Empty at first; then the one that the coordinator gave."),
        Property("group_instance_id", INSTANCE_ID, None, _INSTANCE_DOC),
        Property("client_id", CLIENT_ID, "", "A name for people; new member ids start with it."),
        Property(
            "protocol_type", PROTOCOL_TYPE, doc="What the group is for: `consumer`, `worker`, `leader` or your own."
        ),
        Property("protocols", ListOf(PROTOCOL, "max_protocols"), doc="Supported strategies, the preferred one first."),
        Property(
            "session_timeout_ms", SESSION_TIMEOUT, SESSION_TIMEOUT_MS, "Silence after which the member is removed."
        ),
        Property(
            "rebalance_timeout_ms",
            REBALANCE_TIMEOUT,
            None,
            "Time to rejoin in a rebalance; 300000 for consumers, 60000 otherwise.",
        ),
        Property("reason", REASON, "", "Why the member joins, for people."),
        Property("wait_ms", WAIT, JoinGroup.default_wait_ms, _WAIT_DOC),
        Property("last_generation_id", GENERATION_ID, NO_GENERATION, _LAST_GENERATION_DOC),
    ),
    title="JoinGroup",
)

ASSIGNMENTS = ListOf(Pair(Property("member_id", MEMBER_ID), Property("assignment", ASSIGNMENT)), "group_max_size")

SYNC_GROUP = given(
    SyncGroup,
    (
        Property("member_id", MEMBER_ID),
        Property("generation_id", GENERATION_ID),
        Property("group_instance_id", INSTANCE_ID, None, _INSTANCE_DOC),
        Property("protocol_type", PROTOCOL_TYPE, None, "Checked against the group's, where given."),
        Property("protocol_name", PROTOCOL_NAME, None, "Checked against the group's, where given."),
        Property("assignments", ASSIGNMENTS, (), "The shares of all members; from the leader only."),
        Property("error", REASON, None, "Why the leader could not assign; fails the generation.", "leader_error"),
        Property("wait_ms", WAIT, SyncGroup.default_wait_ms, _WAIT_DOC),
    ),
    title="SyncGroup",
)

_HEARTBEAT_ENTRIES = (
    Property("member_id", MEMBER_ID),
    Property("generation_id", GENERATION_ID),
    Property("group_instance_id", INSTANCE_ID, None, _INSTANCE_DOC),
)
_HEARTBEAT_WAIT = Property(
    "wait_ms", WAIT, 0, "Above 0 the call parks and answers the moment the group leaves the generation."
)

HEARTBEAT = given(Heartbeat, (*_HEARTBEAT_ENTRIES, _HEARTBEAT_WAIT), title="Heartbeat")
HEARTBEAT_MEMBER = given(dict, _HEARTBEAT_ENTRIES)
HEARTBEAT_BATCH = given(
    dict,
    (Property("members", ListOf(HEARTBEAT_MEMBER, "group_max_size"), doc="Several at once."), _HEARTBEAT_WAIT),
    doc="Several members of one process in one message. With `wait_ms`, answered as soon as one of them has news.",
    title="HeartbeatBatch",
)

LEAVING_MEMBER = given(
    _leaving_member,
    (
        Property("member_id", MEMBER_ID, ""),
        Property("group_instance_id", INSTANCE_ID, None, "Enough alone, for administrators."),
        Property("reason", REASON, "", "For people and the journal."),
        Property("failed_unit", UNIT, "", "The unit that its work failed on, such as `docs/3`; empty: in order."),
    ),
)
LEAVE_GROUP = given(
    LeaveGroup,
    (Property("members", ListOf(LEAVING_MEMBER, "group_max_size"), doc="The leaving members."),),
    title="LeaveGroup",
)

OFFSET_TO_COMMIT = given(
    OffsetToCommit,
    (
        Property("topic", TOPIC),
        Property("partition", PARTITION),
        Property("offset", OFFSET, doc="Where to go on: the next one to process. Above 2^53 - 1 a string."),
        Property("leader_epoch", Integer(0, INT32_MAX), None),
        Property("metadata", Text("request_max_bytes"), "", "A note of the committer; its own limit is per partition."),
        Property(
            "retention_time_ms",
            Integer(1, MAX_RETENTION_TIME_MS),
            None,
            "After this long the offset may expire. Absent: the server's retention counts.",
        ),
        Property(
            "topic_id",
            Integer(),
            None,
            "That of the fetched progress: the commit is refused if the topic was deleted since. Absent: not checked.",
        ),
    ),
)
COMMIT_OFFSETS = given(
    CommitOffsets,
    (
        Property("generation_id", GENERATION_ID, NO_GENERATION, "Negative: an administrator's commit."),
        Property("member_id", MEMBER_ID, ""),
        Property("group_instance_id", INSTANCE_ID, None, _INSTANCE_DOC),
        Property("offsets", ListOf(OFFSET_TO_COMMIT), doc="One entry per partition."),
    ),
    title="CommitOffsets",
)

_SELECTOR_DOC = "`topic/0,1,2`, repeated for each topic."
FETCH_OFFSETS = given(
    FetchOffsets, (Property("topic", ListOf(TopicSelector()), None, f"{_SELECTOR_DOC} Without it: all.", "topics"),)
)
DELETE_OFFSETS = given(
    DeleteOffsets, (Property("topic", ListOf(TopicSelector()), doc=_SELECTOR_DOC, attribute="topics"),)
)

VERIFY_FENCE = given(
    _verify_fence,
    (
        Property("generation_id", GENERATION_ID, None, "The generation to check, instead of a token or beside it."),
        Property("member_id", MEMBER_ID, "", "Also checked to be a member; required once a member was taken over."),
        Property("sign", Boolean(), False, "Also answer with a signed token, for others to check offline."),
        Property("fencing_token", FENCING_TOKEN, None, "The fencing token to check."),
    ),
    title="VerifyFence",
)

GET_LEADER = given(
    GetLeader,
    (
        Property("after_generation", GENERATION_ID, NO_GENERATION, "Wait for a leader of a later generation."),
        Property("wait_ms", WAIT, 0, _WAIT_DOC),
    ),
)

_PAGE = (
    Property("page_token", PageToken(), "", "`next_page_token` of the page before.", "after"),
    Property("page_size", Integer(1, MAX_PAGE_SIZE), MAX_PAGE_SIZE, "Most entries to answer.", "limit"),
)
_FILTER = ListOf(Text(249), 64)


def _check_topic_or_all(topic: str) -> None:
    """Protobuf knows no difference between an empty name and none."""
    if topic:
        check_topic(topic)


_TOPIC_OR_ALL = Text(check=_check_topic_or_all, pattern=f"(?:{NAME_PATTERN})?")

LIST_GROUPS = given(
    ListGroups,
    (
        Property(
            "states", states(64), (), "Only groups in these states, in any case; several may stand between commas."
        ),
        Property("group_types", _FILTER, (), "Only these group types (`classic`)."),
        Property("protocol_types", _FILTER, (), "Only these protocol types."),
        *_PAGE,
        Property(
            "topic",
            _TOPIC_OR_ALL,
            "",
            "Only groups with a member that subscribes to this topic, by name or by a pattern.",
        ),
    ),
)
LIST_TOPICS = given(
    ListTopics,
    (
        *_PAGE,
        Property("version", Text(64), "", "Wait until the namespace's topics are others than these."),
        Property("wait_ms", WAIT, 0, _WAIT_DOC),
    ),
)

PUT_TOPIC = given(
    PutTopic,
    (
        Property("partitions", _COUNT, doc="May only grow."),
        Property("attributes", ATTRIBUTES, (), "Anything worth knowing about the topic."),
    ),
    title="PutTopic",
)

DESCRIBE_GROUP = given(DescribeGroup, ())
DELETE_GROUP = given(DeleteGroup, (Property("reason", REASON, "", "Why, for people and the journal."),))
REBALANCE_GROUP = given(
    RebalanceGroup,
    (
        Property("reason", REASON, "", "Why, for people and the journal."),
        Property("step_down", Boolean(), False, "Another member leads the next generation, if there is one."),
    ),
    title="RebalanceGroup",
)
FREEZE_GROUP = given(
    FreezeGroup,
    (
        Property("for_ms", Integer(0, MAX_FREEZE_MS), doc="From now on; 0 ends a freeze."),
        Property("reason", REASON, "", "Why, for people and the journal."),
    ),
    title="FreezeGroup",
)
QUARANTINE_GROUP = given(
    QuarantineGroup,
    (
        Property(
            "after_falls", Integer(0, MAX_FALLS), None, "So many holders of a unit must fall in a row; 0: none is."
        ),
        Property("max_units", Integer(1, MAX_QUARANTINED), None, "So many units may be quarantined at once."),
        Property("release_after_ms", Integer(0, MAX_FREEZE_MS), None, "0: until they are released."),
        Property("release", ListOf(UNIT, MAX_QUARANTINED), (), "Quarantined units, such as `docs/3`."),
        Property("reason", REASON, "", "Why, for people and the journal."),
    ),
    title="QuarantineGroup",
)
DRAIN_MEMBER = given(
    DrainMember,
    (
        Property("member_id", MEMBER_ID, "", "The member that is to leave."),
        Property("group_instance_id", INSTANCE_ID, None, "Instead of `member_id`, of a static member."),
        Property("max_leaving", Integer(1, "group_max_size"), 1, "So many may leave at once, this one included."),
        Property("grant_ms", Integer(1, MAX_FREEZE_MS), DRAIN_GRANT_MS, "For how long a permission counts."),
        Property("reason", REASON, "", "Why, for people and the journal."),
    ),
    title="DrainMember",
)
_MEMBER_NAME = Text(512)
PLAN_GROUP = given(
    PlanGroup,
    (
        Property(
            "without", ListOf(_MEMBER_NAME, "group_max_size"), (), "Members that leave, by member or instance id."
        ),
        Property("more_members", Integer(0, "group_max_size"), 0, "So many join, subscribed as most members are."),
        Property(
            "topics",
            ListOf(given(TopicCount, (Property("topic", TOPIC), Property("partitions", _COUNT, doc="May only grow.")))),
            (),
            "Topics with other partition counts than they have now.",
        ),
        Property(
            "strategy", PROTOCOL_NAME, "", "Another strategy, such as `cooperative-sticky`; empty: the group's own."
        ),
    ),
    title="PlanGroup",
)
GET_TOPIC = given(
    GetTopic,
    (
        Property("version", Text(64), "", "Wait until the topic is another than this; without it, until there is one."),
        Property("wait_ms", WAIT, 0, _WAIT_DOC),
    ),
)
DELETE_TOPIC = given(DeleteTopic, ())
