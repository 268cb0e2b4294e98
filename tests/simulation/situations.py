"""Naming the rare situations that a run came through, so that the run can show that it met them."""

from __future__ import annotations

from rota.core.group.records import (
    AssignmentFailed,
    Entry,
    GenerationCompleted,
    MemberExpired,
    MemberFenced,
    MemberRemoved,
    OffsetsDeleted,
    RebalanceStarted,
)
from rota.core.group.shard import ShardState
from rota.core.group.state import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteGroupReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    SyncGroup,
    SyncReply,
)
from tests.simulation.history import Call, History

_TAKEOVERS = {
    PREPARING_REBALANCE: "taken over in a join phase",
    COMPLETING_REBALANCE: "taken over while the assignment was awaited",
    STABLE: "taken over while stable",
}


def note_takeover(history: History, folded: ShardState) -> None:
    """A shard changes its owner: in which states are its groups?"""
    for group in folded.groups.values():
        if group.state in _TAKEOVERS:
            history.sometimes[_TAKEOVERS[group.state]] += 1


def note_landing(history: History, folded: ShardState, entry: Entry) -> None:
    """A journal line is about to be taken in; `folded` stands before it."""
    key = (entry.namespace, entry.group_id)
    group, record = folded.groups.get(key), entry.record
    if isinstance(record, MemberFenced) and group is not None:
        history.sometimes[f"static member replaced in {group.state}"] += 1
    elif isinstance(record, RebalanceStarted) and record.reason.endswith("no member any more"):
        history.sometimes["resync for a static member that came back meanwhile"] += 1
    elif isinstance(record, GenerationCompleted) and key in folded.tombstones:
        history.sometimes["group was made again after its deletion"] += 1
    elif isinstance(record, MemberExpired) and not record.reason.startswith("no heartbeat"):
        history.sometimes[f"member removed: {record.reason}"] += 1
    elif isinstance(record, MemberRemoved | AssignmentFailed | OffsetsDeleted):
        history.sometimes[f"journal: {record.kind}"] += 1


def note_reply_situation(history: History, call: Call) -> None:
    """An answer reached a client."""
    situation = _situation(call)
    if situation:
        history.sometimes[situation] += 1


def _situation(call: Call) -> str:
    reply = call.reply
    match call.request, reply:
        case JoinGroup(), JoinReply(pending=True):
            return "join answered pending"
        case JoinGroup(), JoinReply(skip_assignment=True, members=(_, *_)):
            return "returning static leader skips its assignment"
        case JoinGroup(), JoinReply(error=ErrorCode.GROUP_MAX_SIZE_REACHED):
            return "group was full"
        case JoinGroup(), JoinReply(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
            return "stranger was refused"
        case SyncGroup(), SyncReply(pending=True):
            return "sync answered pending"
        case SyncGroup(assignments=assignments), SyncReply(error=error) if assignments and error is not ErrorCode.NONE:
            return "leader's sync came too late"
        case SyncGroup(), SyncReply(error=ErrorCode.ASSIGNMENT_FAILED):
            return "assignment failed"
        case Heartbeat() as asked, HeartbeatReply(error=ErrorCode.NONE) as answer if (
            answer.generation_id > asked.generation_id
        ):
            return "resync learnt by heartbeat"
        case Heartbeat(wait_ms=wait_ms), HeartbeatReply(error=ErrorCode.REBALANCE_IN_PROGRESS) if wait_ms:
            return "parked heartbeat answered with a rebalance"
        case Heartbeat(), HeartbeatReply(error=ErrorCode.UNKNOWN_MEMBER_ID):
            return "heartbeat after expiry"
        case Heartbeat(), HeartbeatReply(error=ErrorCode.FENCED_INSTANCE_ID):
            return "heartbeat of a fenced instance"
        case CommitOffsets(), CommitReply(error=ErrorCode.ILLEGAL_GENERATION):
            return "commit across a generation"
        case CommitOffsets(), CommitReply(error=ErrorCode.REBALANCE_IN_PROGRESS):
            return "commit while the assignment was awaited"
        case DeleteGroup(), DeleteGroupReply(error=ErrorCode.NONE):
            return "group deleted"
    return ""
