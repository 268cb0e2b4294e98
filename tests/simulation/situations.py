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
from rota.protocol.messages import Heartbeat, HeartbeatReply, JoinGroup, JoinReply, SyncGroup, SyncReply
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
    request, reply = call.request, call.reply
    assert reply is not None
    outcome = "pending" if getattr(reply, "pending", False) else reply.error.value
    history.sometimes[f"{type(request).__name__} {outcome}"] += 1
    match request, reply:
        case JoinGroup(), JoinReply(skip_assignment=True, members=(_, *_)):
            history.sometimes["returning static leader skips its assignment"] += 1
        case SyncGroup(assignments=(_, *_)), SyncReply(error=error) if error is not ErrorCode.NONE:
            history.sometimes["leader's sync came too late"] += 1
        case Heartbeat(generation_id=known), HeartbeatReply(error=ErrorCode.NONE, generation_id=new) if new > known:
            history.sometimes["resync learnt by heartbeat"] += 1
        case Heartbeat(wait_ms=wait_ms), HeartbeatReply(error=ErrorCode.REBALANCE_IN_PROGRESS) if wait_ms:
            history.sometimes["parked heartbeat answered with a rebalance"] += 1
