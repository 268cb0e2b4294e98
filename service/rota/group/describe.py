"""Reading a group: describe, list and leader. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterable

from rota.group.health import judge
from rota.group.state import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE, Group, GroupState, Member
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.messages import (
    DescribedMember,
    DescribeReply,
    LeaderReply,
    ListedGroup,
    ListGroups,
    ListReply,
)
from rota.types.registry import decoded, readable_assignment, readable_metadata, subscribes

GROUP_TYPE = "classic"
MAX_DECODED_MEMBERS = 1_000
"""Of one answer: decoding more would hold other groups' calls up."""


def describe_group(group: Group, now_ms: int) -> DescribeReply:
    """The group with its members: their metadata only while it is Stable, their last assignments until the next ones,
    since they may hold them still.
    """
    return DescribeReply(
        group_id=group.group_id,
        state=group.state.value,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type or "",
        protocol_name=(group.protocol_name or "") if group.state is STABLE else "",
        leader_id=group.generation_leader_id or "",
        members=tuple(
            _described(group, member, decodes=number < MAX_DECODED_MEMBERS)
            for number, member in enumerate(group.members.values())
        ),
        pending_members=len(group.pending),
        rebalance_reason=group.rebalance_reason,
        rebalance_by=group.rebalance_by,
        rebalance_cause=group.rebalance_cause,
        state_since_ms=group.state_since_ms,
        phase_deadline_ms=_phase_deadline_ms(group),
        frozen_until_ms=group.frozen_until_ms,
        frozen_reason=group.frozen_reason,
        leaving=tuple(group.leaving_at(now_ms)),
        quarantine_after=group.quarantine.after_falls,
        quarantined=group.quarantine.names,
        preempt_at_ms=group.preempt_at_ms if group.state is STABLE else None,
        generation_protocol_name=group.protocol_name or "",
        troubles=judge(group, now_ms),
    )


def list_groups(groups: Iterable[Group], request: ListGroups, now_ms: int) -> ListReply:
    """One page of the namespace's groups in these shards, ordered by id."""
    states = {state.strip().lower() for state in request.states}
    types = {kind.lower() for kind in request.group_types}
    if types and GROUP_TYPE not in types:
        return ListReply(topic=request.topic)
    found = sorted(
        (group for group in groups if _listed(group, request, states)),
        key=lambda group: group.group_id,
    )
    page = found[: request.limit]
    return ListReply(
        groups=tuple(_summary(group, now_ms) for group in page), more=len(found) > len(page), topic=request.topic
    )


def get_leader(group: Group) -> LeaderReply:
    """The leader of the current generation; in a join phase that of the last one, while it is a member."""
    leader = group.members.get(group.generation_leader_id or "")
    return LeaderReply(
        generation_id=group.generation_id,
        leader_id=leader.member_id if leader else "",
        group_instance_id=leader.image.group_instance_id if leader else None,
        client_id=leader.image.client_id if leader else "",
        state=group.state.value,
        fencing_token=group.token_of(leader) if leader else NO_TOKEN,
    )


def _listed(group: Group, request: ListGroups, states: set[str]) -> bool:
    return (
        group.namespace == request.namespace
        and group.group_id > request.after
        and (not states or group.state.value.lower() in states)
        and (not request.protocol_types or (group.protocol_type or "") in request.protocol_types)
        and (not request.topic or _has_subscriber(group, request.topic))
    )


def _has_subscriber(group: Group, topic: str) -> bool:
    """Whether a member is known to subscribe to the topic. Before the first generation no protocol is chosen yet."""
    kind, name = group.protocol_type or "", group.protocol_name
    return name is not None and any(
        subscribes(kind, member.image.metadata_for(name), topic) for member in group.members.values()
    )


def _summary(group: Group, now_ms: int) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        state=group.state.value,
        protocol_type=group.protocol_type or "",
        generation_id=group.generation_id,
        members=len(group.members),
        group_type=GROUP_TYPE,
        takeovers=group.takeovers,
        leader_id=group.generation_leader_id or "",
        state_since_ms=group.state_since_ms,
        rebalance_reason=group.rebalance_reason,
        troubles=judge(group, now_ms),
    )


def _described(group: Group, member: Member, *, decodes: bool) -> DescribedMember:
    image = member.image
    metadata = image.metadata_for(group.protocol_name or "") if group.state is STABLE else b""
    # An assignment that was interrupted has ended those of the generation before, too, as in Kafka 4.
    assigned_id = group.generation_id - 1 if group.state is COMPLETING_REBALANCE else group.generation_id
    assignment = member.assignment if group.assigned_generation_id == assigned_id else b""
    kind = group.protocol_type or ""
    return DescribedMember(
        member_id=image.member_id,
        group_instance_id=image.group_instance_id,
        client_id=image.client_id,
        host=image.host,
        metadata=metadata,
        assignment=assignment,
        session_timeout_ms=image.session_timeout_ms,
        rebalance_timeout_ms=image.rebalance_timeout_ms,
        session_deadline_ms=member.session_deadline_ms,
        joined=member.joined,
        awaited=_is_awaited(group, member),
        fencing_token=group.token_of(member) if member.settled is not None else NO_TOKEN,
        metadata_decoded=decoded(readable_metadata(kind, metadata)) if metadata and decodes else None,
        protocols=tuple(protocol.name for protocol in image.protocols),
        assignment_decoded=decoded(readable_assignment(kind, assignment)) if assignment and decodes else None,
    )


def _is_awaited(group: Group, member: Member) -> bool:
    if group.state is PREPARING_REBALANCE:
        return not member.joined
    return group.state is COMPLETING_REBALANCE and member.member_id in group.pending_sync


def _phase_deadline_ms(group: Group) -> int | None:
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            return group.join_deadline_ms
        case GroupState.COMPLETING_REBALANCE:
            return group.sync_deadline_ms
        case _:
            return None
