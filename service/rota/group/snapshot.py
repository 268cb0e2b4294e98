"""PlanGroup, first half: the group as its plan begins. Its owner adds the topics and makes the plan (plan.py)."""

from __future__ import annotations

from rota.group.state import EMPTY, STABLE, Group
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import GroupSnapshot, PlanReply, SnapshotMember
from rota.types.consumer import PROTOCOL_TYPE


def snapshot_group(group: Group) -> PlanReply:
    """The group's members with what they hold, or why there is no plan. Changes nothing."""
    if group.state is EMPTY:
        return PlanReply(ErrorCode.INVALID_REQUEST, "the group has no members, so there is no assignment to plan from")
    if group.protocol_type != PROTOCOL_TYPE:
        why = f"the group is of type '{group.protocol_type}': only groups of type '{PROTOCOL_TYPE}' share partitions"
        return PlanReply(ErrorCode.INVALID_REQUEST, f"{why} that a plan can assign")
    if group.state is not STABLE:
        why = f"the group rebalances ({group.rebalance_reason}); ask again once it is Stable"
        return PlanReply(ErrorCode.REBALANCE_IN_PROGRESS, why)
    return PlanReply(snapshot=_snapshot(group))


def _snapshot(group: Group) -> GroupSnapshot:
    name = group.protocol_name or ""
    members = tuple(
        SnapshotMember(
            member.member_id,
            member.image.group_instance_id,
            tuple(protocol.name for protocol in member.image.protocols),
            member.image.metadata_for(name),
            member.assignment,
        )
        for member in group.members.values()
    )
    return GroupSnapshot(group.generation_id, group.leader_id or "", name, members, group.quarantine.names)
