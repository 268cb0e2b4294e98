"""Folding records into a group: the only code that changes the facts of one.

Live decisions and a rebuild from the journal go through the same functions, so they cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rota.group.records import (
    AssignmentFailed,
    AssignmentSynced,
    Entry,
    GenerationCompleted,
    GenerationRaised,
    GroupEmptied,
    GroupFrozen,
    GroupUnfrozen,
    LeaderChanged,
    LeaveGranted,
    MemberExpired,
    MemberFenced,
    MemberGone,
    MemberJoined,
    MemberLeft,
    MemberRemoved,
    MemberUpdated,
    OffsetsCommitted,
    OffsetsDeleted,
    QuarantineChanged,
    RebalanceStarted,
    Record,
    RequestFenced,
    SessionStats,
    UnitsQuarantined,
    UnitsReleased,
    UnitsSuspected,
)
from rota.group.result import Result
from rota.group.rows import GroupRow, OffsetRow, Quarantine
from rota.group.state import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ChangeKind,
    Group,
    GroupState,
)
from rota.group.trigger import trigger_of
from rota.types import Departed


def apply(group: Group, record: Record, at_ms: int) -> None:
    """Change `group` as `record` says. Records of a shard or a topic are not a group's business."""
    _APPLY[type(record)](group, record, at_ms)


def record(result: Result, group: Group, fact: Record) -> None:
    """Fold a fact that was just decided into the group, and keep it for the journal."""
    apply(group, fact, result.now_ms)
    result.records.append(Entry(group.namespace, group.group_id, group.generation_id, result.now_ms, fact))


def _rebalance_started(group: Group, record: RebalanceStarted, at_ms: int) -> None:
    group.initial = group.state is EMPTY
    group.move_to(PREPARING_REBALANCE, at_ms)
    _note_trigger(group, record, at_ms)
    group.rebalance_started_ms = at_ms


def _note_trigger(group: Group, record: RebalanceStarted | GroupEmptied | AssignmentSynced, at_ms: int) -> None:
    group.rebalance_cause = record.cause
    group.rebalance_reason = record.reason
    group.rebalance_by = record.by
    group.note_change(at_ms, ChangeKind.REBALANCE, record.cause)


def _member_joined(group: Group, record: MemberJoined, _at_ms: int) -> None:
    if group.state is EMPTY:
        # An Empty group forgets its old type as soon as it has a member.
        group.protocol_type = record.protocol_type
    group.admit(record.member)


def _member_updated(group: Group, record: MemberUpdated, _at_ms: int) -> None:
    member = group.members[record.member.member_id]
    group.update(member, record.member)
    if record.settle:
        group.settle_member(member)


def _member_gone(group: Group, record: MemberGone, at_ms: int) -> None:
    member = group.dismiss(record.member_id)
    client, host = member.image.client_id or record.member_id, member.image.host
    group.note_change(at_ms, ChangeKind.DEPARTURE, f"{client} at {host}" if host else client)
    if member.assignment:
        metadata = member.image.metadata_for(group.protocol_name or "")
        instance_id = member.image.group_instance_id
        group.departed.append(Departed(record.member_id, instance_id, metadata, member.assignment, at_ms))
    if not group.members:
        group.last_gone = record
    if member.settled is not None:
        group.dirty_members[record.member_id] = None
        # It is gone for good, so an owner that loads the group must start a rebalance.
        group.settle(PREPARING_REBALANCE)
        if not any(other.settled for other in group.members.values()):
            # A new owner finds no member, only the row: it must say how the last one went.
            group.settle_trigger(*trigger_of(record))


def _member_fenced(group: Group, record: MemberFenced, at_ms: int) -> None:
    member = group.members[record.member_id]
    group.note_change(at_ms, ChangeKind.TAKEOVER, record.group_instance_id, record.reason)
    group.rename(member, record.new_member_id)
    if record.takeover:
        group.takeovers = member.takeover = record.takeover
    if member.settled is None or group.settled is None:
        return
    group.dirty_members[record.member_id] = None
    group.dirty_members[record.new_member_id] = None
    settled_state = group.settled.state
    # The leader may be assigning to the old id right now (KAFKA-9801): a restart must not let it finish.
    group.settle(PREPARING_REBALANCE if settled_state == COMPLETING_REBALANCE else GroupState(settled_state))


def _generation_completed(group: Group, record: GenerationCompleted, at_ms: int) -> None:
    group.move_to(COMPLETING_REBALANCE, at_ms)
    group.begin_generation(record.generation_id)
    group.join_generation_id = record.generation_id
    group.protocol_name = record.protocol_name
    group.leader_id = group.generation_leader_id = record.leader_id
    group.initial = False
    group.fenced_reported.clear()
    assert tuple(group.members) == record.member_ids, "the journal and the group disagree about the members"
    for member in group.members.values():
        group.settle_member(member)
    group.settle(COMPLETING_REBALANCE)


def _generation_raised(group: Group, record: GenerationRaised, _at_ms: int) -> None:
    group.generation_id = record.generation_id
    group.join_generation_id = record.generation_id
    group.fenced_reported.clear()
    if group.settled is not None:
        # A new owner must let the members agree anew, for none of them holds this generation.
        group.settle(EMPTY if group.settled.state == EMPTY else PREPARING_REBALANCE)


def _leader_changed(_group: Group, _record: LeaderChanged, _at_ms: int) -> None:
    """The generation's own record has moved the leader."""


def _assignment_synced(group: Group, record: AssignmentSynced, at_ms: int) -> None:
    if record.resync:
        group.begin_generation(record.generation_id)
        group.leader_id = group.generation_leader_id = record.leader_id
        group.fenced_reported.clear()
        _note_trigger(group, record, at_ms)
    group.move_to(STABLE, at_ms)
    group.assigned_generation_id = record.generation_id
    group.departed.clear()
    assignments = dict(record.assignments)
    for member in group.members.values():
        assignment = assignments.get(member.member_id, b"")
        if member.assignment != assignment:
            member.assignment = assignment
            group.dirty_members[member.member_id] = None
    group.settle(STABLE)


def _assignment_failed(group: Group, _record: AssignmentFailed, _at_ms: int) -> None:
    group.settle(PREPARING_REBALANCE)


def _group_frozen(group: Group, record: GroupFrozen, _at_ms: int) -> None:
    group.frozen_until_ms, group.frozen_reason = record.until_ms, record.reason
    group.settle_maintenance()


def _group_unfrozen(group: Group, _record: GroupUnfrozen, _at_ms: int) -> None:
    group.frozen_until_ms, group.frozen_reason = None, ""
    group.settle_maintenance()


def _leave_granted(group: Group, record: LeaveGranted, at_ms: int) -> None:
    group.leaving = {**group.leaving_at(at_ms), record.member_id: record.until_ms}
    group.settle_maintenance()


def _quarantine_changed(group: Group, record: QuarantineChanged, _at_ms: int) -> None:
    former = group.quarantine
    suspects = former.suspects if record.after_falls else ()
    group.quarantine = Quarantine(record.after_falls, record.max_units, record.release_after_ms, suspects, former.units)
    group.settle_maintenance()


def _units_suspected(group: Group, record: UnitsSuspected, _at_ms: int) -> None:
    group.quarantine = replace(group.quarantine, suspects=record.suspects)
    group.settle_maintenance()


def _units_quarantined(group: Group, record: UnitsQuarantined, _at_ms: int) -> None:
    suspects = tuple(each for each in group.quarantine.suspects if each[0] not in record.units)
    units = (*group.quarantine.units, *((unit, record.until_ms) for unit in record.units))
    group.quarantine = replace(group.quarantine, suspects=suspects, units=units)
    group.settle_maintenance()


def _units_released(group: Group, record: UnitsReleased, _at_ms: int) -> None:
    units = tuple(each for each in group.quarantine.units if each[0] not in record.units)
    group.quarantine = replace(group.quarantine, units=units)
    group.settle_maintenance()


def _offsets_committed(group: Group, record: OffsetsCommitted, at_ms: int) -> None:
    namespace, group_id = group.namespace, group.group_id
    for topic, partition, offset, leader_epoch, metadata, its_at_ms, expires_at_ms in record.offsets:
        committed_at_ms = at_ms if its_at_ms is None else its_at_ms
        key = (topic, partition)
        group.offsets[key] = OffsetRow(
            namespace,
            group_id,
            topic,
            partition,
            offset,
            leader_epoch,
            metadata,
            committed_at_ms,
            expires_at_ms,
            group.topic_id(topic),
        )
        group.dirty_offsets[key] = None
    if group.settled is None:
        _settle_simple(group, at_ms)


def _settle_simple(group: Group, at_ms: int) -> None:
    """Offsets keep a group in being although no generation of it was ever completed."""
    if group.state is EMPTY:
        group.state_since_ms = at_ms
    group.settled = GroupRow(
        group.namespace,
        group.group_id,
        EMPTY.value,
        group.generation_id,
        group.generation_id,
        None,
        None,
        None,
        at_ms,
        "",
        "",
    )
    group.dirty = True


def _offsets_deleted(group: Group, record: OffsetsDeleted, _at_ms: int) -> None:
    for key in record.partitions:
        del group.offsets[key]
        group.dirty_offsets[key] = None


def _request_fenced(_group: Group, _record: RequestFenced, _at_ms: int) -> None:
    """The line is for readers of the journal: it changes nothing."""


def _session_stats(_group: Group, _record: SessionStats, _at_ms: int) -> None:
    """The line is for readers of the journal: it changes nothing."""


def _group_emptied(group: Group, record: GroupEmptied, at_ms: int) -> None:
    if group.state is not EMPTY:
        group.move_to(EMPTY, at_ms)
    group.begin_generation(record.generation_id)
    group.join_generation_id = record.generation_id
    group.protocol_name = None
    group.leader_id = group.generation_leader_id = None
    group.initial = False
    group.fenced_reported.clear()
    group.departed.clear()
    _note_trigger(group, record, at_ms)
    group.settle(EMPTY)


_APPLY: dict[type, Callable[[Group, Any, int], None]] = {
    RebalanceStarted: _rebalance_started,
    MemberJoined: _member_joined,
    MemberUpdated: _member_updated,
    MemberLeft: _member_gone,
    MemberExpired: _member_gone,
    MemberRemoved: _member_gone,
    MemberFenced: _member_fenced,
    GenerationCompleted: _generation_completed,
    GenerationRaised: _generation_raised,
    LeaderChanged: _leader_changed,
    AssignmentSynced: _assignment_synced,
    AssignmentFailed: _assignment_failed,
    OffsetsCommitted: _offsets_committed,
    OffsetsDeleted: _offsets_deleted,
    RequestFenced: _request_fenced,
    SessionStats: _session_stats,
    GroupFrozen: _group_frozen,
    GroupUnfrozen: _group_unfrozen,
    LeaveGranted: _leave_granted,
    QuarantineChanged: _quarantine_changed,
    UnitsSuspected: _units_suspected,
    UnitsQuarantined: _units_quarantined,
    UnitsReleased: _units_released,
    GroupEmptied: _group_emptied,
}
