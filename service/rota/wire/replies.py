"""The replies as they look in JSON, in both directions.

A reply whose `error` is not NONE is a problem document instead (`problems.py`); only replies without one
come here. Every document also carries `revision` and `epoch`, which belong to the answer around the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.limits import MAX_SAFE_INTEGER, Limits
from rota.protocol.messages import (
    CommitReply,
    DeleteGroupReply,
    DeleteOffsetsReply,
    DescribedMember,
    DescribeReply,
    DrainReply,
    FenceReply,
    FetchedOffset,
    FetchReply,
    FreezeReply,
    HeartbeatReply,
    JoinedMember,
    JoinReply,
    LeaderReply,
    LeaveReply,
    LeftMember,
    ListedGroup,
    ListReply,
    ListTopicsReply,
    PartitionResult,
    PlannedMember,
    PlannedMove,
    PlanReply,
    QuarantineReply,
    RebalanceReply,
    Reply,
    SyncReply,
    TopicPartitions,
    TopicReply,
    Trouble,
)
from rota.wire.fields import AnyObject, Boolean, Code, Integer, Integer64, Octets, Text, TextMap, invalid
from rota.wire.page_token import PageToken
from rota.wire.records import ListOf, ObjectShape, Property

# What a peer sends is bounded by its own limits, which may be larger than ours: replies are read generously.
_TEXT = Text(MAX_SAFE_INTEGER)
_NUMBER = Integer(-MAX_SAFE_INTEGER)
_BYTES = Octets(MAX_SAFE_INTEGER)
_FLAG = Boolean()


def _list_of(item: ObjectShape) -> ListOf:
    return ListOf(item, MAX_SAFE_INTEGER)


def _reply(build: type, *entries: Property, title: str = "") -> ObjectShape:
    return ObjectShape(build, entries, complete=True, title=title)


_MEMBER_ID = Property("member_id", _TEXT)
_INSTANCE_ID = Property("group_instance_id", _TEXT, None)
_GENERATION_ID = Property("generation_id", _NUMBER)
_FENCING_TOKEN = Property(
    "fencing_token", _NUMBER, NO_TOKEN, "The fencing token: hand it to what you write to, which refuses lower ones."
)
_TOPIC = Property("topic", _TEXT)
_PARTITION = Property("partition", _NUMBER)
_STATE = Property("state", _TEXT, doc="Empty, PreparingRebalance, CompletingRebalance, Stable or Dead.")
_CHOSEN = (Property("protocol_type", _TEXT, None), Property("protocol_name", _TEXT, None))
_DECODED = "as its protocol type reads it, for people; null where the type is unknown or cannot read the bytes."
_PARTITION_RESULT = _reply(PartitionResult, _TOPIC, _PARTITION, Property("error", Code()))
_TOPIC_ENTRIES = (
    _TOPIC,
    Property("partitions", _NUMBER),
    Property("attributes", TextMap(MAX_SAFE_INTEGER, _TEXT, _TEXT), ()),
    Property("version", _TEXT, "", "Another one for each other content: hand it to `topicsGet` to wait for a change."),
)

JOIN_REPLY = _reply(
    JoinReply,
    _MEMBER_ID,
    _GENERATION_ID,
    *_CHOSEN,
    Property("leader_id", _TEXT),
    Property(
        "members",
        _list_of(_reply(JoinedMember, _MEMBER_ID, _INSTANCE_ID, Property("metadata", _BYTES))),
        doc="For the leader only: all members, with the metadata of the chosen protocol.",
    ),
    Property("skip_assignment", _FLAG, doc="The leader is back in a Stable group: nothing to assign."),
    _FENCING_TOKEN,
    Property(
        "assignment",
        _BYTES,
        None,
        "The member's share, where the coordinator has assigned the generation already: no sync is needed then.",
    ),
    title="JoinReply",
)
SYNC_REPLY = _reply(
    SyncReply, _GENERATION_ID, *_CHOSEN, Property("assignment", _BYTES), _FENCING_TOKEN, title="SyncReply"
)
HEARTBEAT_REPLY = _reply(
    HeartbeatReply,
    _GENERATION_ID,
    _STATE,
    Property(
        "waited_ms",
        _NUMBER,
        0,
        "For so long this call was parked when the session was renewed again: the session counts from then, and not "
        "from when the call was sent.",
    ),
    title="HeartbeatReply",
)
LEAVE_REPLY = _reply(
    LeaveReply,
    Property("members", _list_of(_reply(LeftMember, _MEMBER_ID, _INSTANCE_ID, Property("error", Code())))),
    title="LeaveReply",
)
COMMIT_REPLY = _reply(CommitReply, Property("partitions", _list_of(_PARTITION_RESULT)), title="CommitReply")
FETCH_REPLY = _reply(
    FetchReply,
    Property(
        "offsets",
        _list_of(
            _reply(
                FetchedOffset,
                _TOPIC,
                _PARTITION,
                Property("offset", Integer64(-1), doc="-1 where nothing was committed. Above 2^53 - 1 a string."),
                Property("leader_epoch", _NUMBER, None),
                Property("metadata", _TEXT),
                Property("committed_at_ms", _NUMBER),
                Property("expires_at_ms", _NUMBER, None, "Set where the commit named a retention."),
                Property("topic_id", _NUMBER, None, "Another one after the topic was deleted: commits may repeat it."),
            )
        ),
    ),
    title="FetchReply",
)
DELETE_OFFSETS_REPLY = _reply(
    DeleteOffsetsReply, Property("partitions", _list_of(_PARTITION_RESULT)), title="DeleteOffsetsReply"
)
FENCE_REPLY = _reply(
    FenceReply,
    _GENERATION_ID,
    Property("is_leader", _FLAG),
    Property("is_member", _FLAG),
    Property("token", _TEXT, "", "Signed with a key of `/.well-known/jwks.json`, where `sign` asked for it."),
    Property("fencing_token", _NUMBER, NO_TOKEN, "That of the member, or the lowest in the generation."),
    title="FenceReply",
)
_TROUBLES = Property(
    "troubles",
    _list_of(
        _reply(
            Trouble,
            Property("kind", _TEXT, doc="A code, such as `flapping`; later releases may have others."),
            Property("text", _TEXT),
            Property("next_step", _TEXT, doc="The command to type next."),
            Property("number", _NUMBER, 1, "Of what the kind counts, such as partitions."),
        )
    ),
    (),
    "What is wrong with the group, the worst first.",
)
DESCRIBE_REPLY = _reply(
    DescribeReply,
    Property("group_id", _TEXT),
    _STATE,
    _GENERATION_ID,
    Property("protocol_type", _TEXT),
    Property("protocol_name", _TEXT),
    Property("leader_id", _TEXT),
    Property(
        "members",
        _list_of(
            _reply(
                DescribedMember,
                _MEMBER_ID,
                _INSTANCE_ID,
                Property("client_id", _TEXT),
                Property("host", _TEXT),
                Property("metadata", _BYTES),
                Property("assignment", _BYTES),
                Property("session_timeout_ms", _NUMBER),
                Property("rebalance_timeout_ms", _NUMBER),
                Property("session_deadline_ms", _NUMBER, None),
                Property("joined", _FLAG),
                Property("awaited", _FLAG, False, "The phase that is under way waits for it, to join or to sync."),
                Property("metadata_decoded", AnyObject(), None, f"The metadata {_DECODED}"),
                Property("assignment_decoded", AnyObject(), None, f"The assignment {_DECODED}"),
                Property("fencing_token", _NUMBER, NO_TOKEN, "-1 for a member that only joins the next generation."),
            )
        ),
    ),
    Property("pending_members", _NUMBER),
    Property("rebalance_reason", _TEXT),
    Property("rebalance_by", _TEXT),
    Property("state_since_ms", _NUMBER),
    Property("phase_deadline_ms", _NUMBER, None, "When the phase in progress ends without the missing members."),
    Property("rebalance_cause", _TEXT, "", "A code, such as `member_expired`; later releases may have others."),
    Property("frozen_until_ms", _NUMBER, None, "No rebalance that could as well start later starts until then."),
    Property("frozen_reason", _TEXT, ""),
    Property("leaving", ListOf(_TEXT, MAX_SAFE_INTEGER), (), "Members that have a permission to leave."),
    Property("quarantine_after", _NUMBER, 0, "So many holders of a unit must fall in a row until it is quarantined."),
    Property("quarantined", ListOf(_TEXT, MAX_SAFE_INTEGER), (), "Units that assignments leave out, such as `docs/3`."),
    Property("preempt_at_ms", _NUMBER, None, "When the leader is asked to hand over to a member that outranks it."),
    Property("generation_protocol_name", _TEXT, "", "That of the current generation, also while the group rebalances."),
    _TROUBLES,
    title="DescribeReply",
)
LIST_REPLY = _reply(
    ListReply,
    Property(
        "groups",
        _list_of(
            _reply(
                ListedGroup,
                Property("group_id", _TEXT),
                _STATE,
                Property("protocol_type", _TEXT),
                Property("generation_id", _NUMBER),
                Property("members", _NUMBER),
                Property("group_type", _TEXT),
                Property("takeovers", _NUMBER, 0, "Static members that another process fenced in this generation."),
                Property("leader_id", _TEXT, ""),
                Property("state_since_ms", _NUMBER, 0),
                Property("rebalance_reason", _TEXT, ""),
                _TROUBLES,
            )
        ),
    ),
    Property("topic", _TEXT, "", "The request's; empty from a release that does not list by topic."),
    title="ListReply",
)
DELETE_GROUP_REPLY = _reply(DeleteGroupReply, title="DeleteGroupReply")
REBALANCE_REPLY = _reply(
    RebalanceReply, Property("generation_id", _NUMBER, doc="The one that the rebalance ends."), title="RebalanceReply"
)
FREEZE_REPLY = _reply(
    FreezeReply,
    Property("frozen_until_ms", _NUMBER, None, "Since 1970 at the owner; null: the group is not frozen."),
    title="FreezeReply",
)
QUARANTINE_REPLY = _reply(
    QuarantineReply,
    Property("after_falls", _NUMBER, doc="0: no unit is quarantined any more."),
    Property("max_units", _NUMBER),
    Property("release_after_ms", _NUMBER, doc="0: until they are released."),
    Property("quarantined", ListOf(_TEXT, MAX_SAFE_INTEGER), doc="The quarantined units, such as `docs/3`."),
    title="QuarantineReply",
)
DRAIN_REPLY = _reply(
    DrainReply,
    Property("granted", _FLAG, doc="Whether the member may leave now."),
    Property("until_ms", _NUMBER, None, "When the permission is void."),
    Property("leaving", ListOf(_TEXT, MAX_SAFE_INTEGER), doc="The members that have a permission."),
    Property("why_not", _TEXT, doc="Why the member may not leave now."),
    title="DrainReply",
)
_TOPIC_PARTITIONS = _list_of(_reply(TopicPartitions, _TOPIC, Property("partitions", ListOf(_NUMBER, MAX_SAFE_INTEGER))))
PLAN_REPLY = _reply(
    PlanReply,
    Property("generation_id", _NUMBER, doc="The one that the plan begins with."),
    Property("protocol_name", _TEXT, doc="The strategy now."),
    Property("planned_protocol_name", _TEXT, doc="The strategy of the plan."),
    Property("rounds", _NUMBER, doc="Join phases: 0 where the members stay in their generation."),
    Property("moves", _NUMBER, doc="Partitions that go from one member to another."),
    Property("least_moves", _NUMBER, doc="The fewest for shares no larger and no smaller than the planned ones."),
    Property("imbalance_before", _NUMBER, doc="Partitions of the fullest member less those of the emptiest."),
    Property("imbalance_after", _NUMBER, doc="The same after the rebalance."),
    Property(
        "members",
        _list_of(
            _reply(
                PlannedMember,
                _MEMBER_ID,
                _INSTANCE_ID,
                Property("fate", _TEXT, doc="stays, leaves or joins."),
                Property("before", _TOPIC_PARTITIONS),
                Property("after", _TOPIC_PARTITIONS),
                Property(
                    "pauses", _TOPIC_PARTITIONS, doc="On these it stops its work: until the rebalance, or for good."
                ),
            )
        ),
    ),
    Property(
        "moved",
        _list_of(
            _reply(
                PlannedMove,
                _TOPIC,
                Property("partitions", ListOf(_NUMBER, MAX_SAFE_INTEGER)),
                Property("from_member_id", _TEXT),
                Property("to_member_id", _TEXT),
            )
        ),
    ),
    Property("unowned", _TOPIC_PARTITIONS, doc="Partitions without a member after the rebalance."),
    Property("notes", ListOf(_TEXT, MAX_SAFE_INTEGER), doc="What the plan assumes, for people."),
    title="PlanReply",
)
LEADER_REPLY = _reply(
    LeaderReply,
    _GENERATION_ID,
    Property("leader_id", _TEXT, doc="Empty: there is no leader now."),
    _INSTANCE_ID,
    Property("client_id", _TEXT),
    _STATE,
    Property("fencing_token", _NUMBER, NO_TOKEN, "The leader's; -1 where there is none."),
    title="LeaderReply",
)
TOPIC_REPLY = _reply(
    TopicReply,
    *_TOPIC_ENTRIES,
    Property("groups", _NUMBER, 0, "Of a deletion: the number of groups whose progress was deleted with the topic."),
    title="TopicReply",
)
LIST_TOPICS_REPLY = _reply(
    ListTopicsReply,
    Property("topics", _list_of(_reply(TopicReply, *_TOPIC_ENTRIES))),
    Property(
        "version", _TEXT, "", "Of all topics, other pages included: hand it to `topicsList` to wait for a change."
    ),
    title="ListTopicsReply",
)

SHAPES: dict[type, ObjectShape] = {
    JoinReply: JOIN_REPLY,
    SyncReply: SYNC_REPLY,
    HeartbeatReply: HEARTBEAT_REPLY,
    LeaveReply: LEAVE_REPLY,
    CommitReply: COMMIT_REPLY,
    FetchReply: FETCH_REPLY,
    DeleteOffsetsReply: DELETE_OFFSETS_REPLY,
    FenceReply: FENCE_REPLY,
    DescribeReply: DESCRIBE_REPLY,
    ListReply: LIST_REPLY,
    DeleteGroupReply: DELETE_GROUP_REPLY,
    RebalanceReply: REBALANCE_REPLY,
    FreezeReply: FREEZE_REPLY,
    QuarantineReply: QUARANTINE_REPLY,
    DrainReply: DRAIN_REPLY,
    PlanReply: PLAN_REPLY,
    LeaderReply: LEADER_REPLY,
    TopicReply: TOPIC_REPLY,
    ListTopicsReply: LIST_TOPICS_REPLY,
}


class MalformedReply(ValueError):
    """A server's document that is no such reply: another version, or not Rota at all."""


@dataclass(frozen=True, slots=True)
class Received:
    """A reply as a client gets it, with the place in the shard's history that it reflects."""

    reply: Reply
    revision: int = 0
    epoch: int = 0
    retry_after_ms: int = 0
    """How long its sender asks to be left alone; 0 where it does not say."""


def encode_reply(reply: Reply) -> dict[str, Any]:
    """The document of a reply without an error. `outcome` says whether a join or sync is done or pending."""
    match reply:
        case JoinReply(pending=True):
            return {"outcome": "pending", "member_id": reply.member_id}
        case SyncReply(pending=True):
            return {"outcome": "pending"}
        case JoinReply():
            return {"outcome": "joined", **JOIN_REPLY.encode(reply)}
        case SyncReply():
            return {"outcome": "synced", **SYNC_REPLY.encode(reply)}
        case ListReply():
            last_group = reply.groups[-1].group_id if reply.groups else ""
            return {**LIST_REPLY.encode(reply), "next_page_token": _next_page(reply.more, last_group)}
        case ListTopicsReply():
            last_topic = reply.topics[-1].topic if reply.topics else ""
            return {**LIST_TOPICS_REPLY.encode(reply), "next_page_token": _next_page(reply.more, last_topic)}
        case _:
            return SHAPES[type(reply)].encode(reply)


def decode_reply(reply_type: type[Reply], document: dict[str, Any]) -> Received:
    """The reverse, for the SDK; `MalformedReply` if the document is no such reply."""
    try:
        reply = _decode(reply_type, document)
        revision = _NUMBER.decode(document.get("revision", 0), Limits())
        epoch = _NUMBER.decode(document.get("epoch", 0), Limits())
    except RejectedRequest as rejected:
        raise MalformedReply(rejected.detail) from None
    return Received(reply, revision, epoch)


def _decode(reply_type: type[Reply], document: dict[str, Any]) -> Reply:
    if document.get("outcome") == "pending":
        if reply_type is JoinReply:
            return JoinReply(pending=True, member_id=_TEXT.decode(document.get("member_id"), Limits()))
        if reply_type is SyncReply:
            return SyncReply(pending=True)
    if not SHAPES[reply_type].entries and "revision" not in document:
        # Without this any object of another program would do.
        raise invalid("revision is missing")
    reply: Reply = SHAPES[reply_type].decode(document, Limits())
    if isinstance(reply, (ListReply, ListTopicsReply)):
        return replace(reply, more=document.get("next_page_token") is not None)
    return reply


def _next_page(more: bool, last_id: str) -> str | None:
    return PageToken().encode(last_id) if more and last_id else None
