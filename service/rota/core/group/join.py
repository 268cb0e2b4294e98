"""JoinGroup: admits members, parks their calls, or answers with the current generation (protocol.md §3)."""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern
from typing import TypeVar

from rota.core.group.assignment import ask_for_assignment, concerns_all, mark_synced, renew_assignment
from rota.core.group.maintenance import hold_back
from rota.core.group.rebalance import (
    drop_parked,
    join_reply,
    maybe_complete_join,
    raise_generation,
    rebalance_or_complete,
    start_rebalance,
)
from rota.core.group.records import MemberFenced, MemberJoined, MemberRemoved, MemberUpdated, Trigger
from rota.core.group.rows import GroupState, MemberImage
from rota.core.group.sessions import (
    check_caller,
    check_member,
    renew_session,
    report_fenced,
    start_session,
    stop_session,
    taken_over,
    why,
)
from rota.core.group.state import EMPTY, PREPARING_REBALANCE, STABLE, Group, Member, Result, TimerKind, record
from rota.core.group.succession import successor_of, watch_candidates
from rota.core.types import why_not_assigned
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import LAST_TAKEOVER
from rota.protocol.limits import Limits
from rota.protocol.messages import JoinGroup, JoinReply
from rota.protocol.texts import is_of_topics

# --- protocols that do not match, for people ------------------------------------------------------


_MOST_NAMES = 5
_MOST_CHARS = 80
_USED_BY = {
    "consumer": "consumers and worker pools",
    "leader": "elections",
    "worker": "Connect workers",
    "permits": "permits and locks",
}
"""The kinds of the SDK, by the protocol type of their groups."""


def join_mismatch(group: Group, protocol_type: str, protocol_names: Sequence[str]) -> str:
    """Say why a join with these protocols cannot be accepted; the group does not support them."""
    if group.state is EMPTY or not protocol_type or not protocol_names:
        return "a join needs a protocol type and at least one protocol"
    offered = f"this member offers {_names(protocol_names)}"
    if group.protocol_type != protocol_type:
        return (
            f"group {_quoted(group.group_id)} has {_type(group.protocol_type)} and {_names(_common(group))};"
            f" {offered} of {_type(protocol_type)}; use another group name"
        )
    return (
        f"group {_quoted(group.group_id)} has {_type(protocol_type)}, and all its members list"
        f" {_names(_common(group))}; {offered}; list a protocol that all members list"
    )


def listed_twice(protocol_names: Sequence[str]) -> str:
    """Say which protocol a join lists more than once: it would count as that of several members."""
    twice = next(name for place, name in enumerate(protocol_names) if name in protocol_names[:place])
    return f"this member lists the protocol {_quoted(twice)} more than once"


def sync_mismatch(group: Group, protocol_type: str | None, protocol_name: str | None) -> str:
    """Say what differs between a sync and the group, which has agreed on another protocol."""
    differs = "protocol type" if protocol_type not in (None, group.protocol_type) else "protocol"
    of_group, of_member = (
        (group.protocol_type, protocol_type) if differs == "protocol type" else (group.protocol_name, protocol_name)
    )
    return (
        f"group {_quoted(group.group_id)} has the {differs} {_quoted(of_group)}, this member's sync names"
        f" {_quoted(of_member or '')}"
    )


def _common(group: Group) -> list[str]:
    """The protocols that all members list."""
    return [name for name, count in group.support.items() if count == len(group.members)]


def _type(protocol_type: str) -> str:
    used_by = _USED_BY.get(protocol_type)
    return f"the protocol type {_quoted(protocol_type)}" + (f" ({used_by})" if used_by else "")


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(_quoted(name) for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"the protocol{'s' if len(names) > 1 else ''} {shown}{more}"


def _quoted(name: str) -> str:
    """Text that a caller chose, in quotes and not longer than a message can bear."""
    return repr(name if len(name) <= _MOST_CHARS else f"{name[:_MOST_CHARS]}…")


# --- joins ----------------------------------------------------------------------------------------


Said = TypeVar("Said")

MOST_GENERATIONS_AHEAD = 10_000
"""By so much a member may be ahead of its group: a store is seldom taken back over more generations than that."""

_HELD_BY_ANOTHER = "a member of another caller has this group_instance_id, until it leaves or its session is over"


def check_join(group: Group, request: JoinGroup, limits: Limits) -> JoinReply | None:
    """Capacity and protocol come first (§8.8): the refusal, or None. Refusing changes nothing here."""
    names = tuple([protocol.name for protocol in request.protocols])
    is_returning = not request.member_id and request.group_instance_id in group.static_members
    if not is_returning and not _has_room(group, request.member_id, limits):
        return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, detail=f"the group has {limits.group_max_size} members")
    if len(set(names)) < len(names):
        return JoinReply(ErrorCode.INVALID_REQUEST, detail=listed_twice(names), member_id=request.member_id)
    if not group.supports(request.protocol_type, names):
        return JoinReply(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            detail=join_mismatch(group, request.protocol_type, names),
            member_id=request.member_id,
        )
    for protocol in request.protocols:
        if why := why_not_assigned(request.protocol_type, protocol.name, protocol.metadata):
            return JoinReply(ErrorCode.INVALID_REQUEST, detail=why, member_id=request.member_id)
    return None


def join_group(result: Result, group: Group, request: JoinGroup, call: int, floor: int) -> None:
    """Admit, park or answer a join that passed `check_join`."""
    member_id, instance_id, error, detail = request.member_id, request.group_instance_id, ErrorCode.NONE, ""
    former_id = None if member_id or instance_id is None else group.static_members.get(instance_id)
    if not member_id and instance_id is None:
        # A dynamic newcomer first gets an id, so that its retries do not become members of their own (KIP-394).
        member_id, void_at_ms = request.new_member_id, result.now_ms + request.session_timeout_ms
        group.pending[member_id] = void_at_ms
        result.set_timer(TimerKind.PENDING, group, member_id, void_at_ms)
        error, detail = ErrorCode.MEMBER_ID_REQUIRED, "join again with this id"
    elif former_id is not None:
        error, detail = check_caller(group.members[former_id], request.subject), _HELD_BY_ANOTHER
    elif member_id in group.pending and instance_id is not None:
        error = ErrorCode.INVALID_REQUEST
        detail = "a pending member_id belongs to a dynamic member, it cannot bring a group_instance_id"
    elif member_id and member_id not in group.pending:
        error = check_member(group, member_id, instance_id, request.subject)
        detail = why(error, group, instance_id)
    if error is not ErrorCode.NONE:
        result.reply(call, JoinReply(error, detail, member_id=member_id))
        report_fenced(result, group, "join", error, member_id, instance_id, -1)
        return
    pass_generations(result, group, request, floor)
    if former_id is not None:
        _replace_static_member(result, group, request, former_id, call)
    elif member_id in group.members:
        _rejoin(result, group, group.members[member_id], request, call)
    else:
        _add_member(result, group, request, member_id or request.new_member_id, call)


def pass_generations(result: Result, group: Group, request: JoinGroup, floor: int) -> None:
    """Before a member is admitted: raise the generation to the shard's floor, and to the last one that it held.

    A member can name any number, so one that is far ahead is ignored: a caller that may join could otherwise use up all
    numbers by a few calls.
    """
    held, name = request.last_generation_id, request.member_id or request.group_instance_id
    if held > group.generation_id + MOST_GENERATIONS_AHEAD:
        result.warning = f"member {name} claims generation {held}, the group is in {group.generation_id}: ignored"
        held = 0
    if held > group.generation_id and held >= floor:
        # To one more, which no member has held: those of that generation have to join, too.
        raise_generation(result, group, held + 1, f"member {name} has held generation {held}")
    elif floor > group.generation_id:
        raise_generation(result, group, floor, f"no generation up to {floor} is granted in this shard")


def reject_join(result: Result, group: Group, request: JoinGroup, refusal: JoinReply, call: int) -> None:
    """Answer a join that `check_join` has rejected.

    It may end the join phase: the member that a full group removes may be the last one that the others waited for, and
    no other event would end the phase before its timeout, for which Kafka 4 waits.
    """
    if refusal.error is ErrorCode.GROUP_MAX_SIZE_REACHED:
        _lose_place(result, group, request.member_id)
    result.reply(call, refusal)
    maybe_complete_join(result, group)


def _lose_place(result: Result, group: Group, member_id: str) -> None:
    """Remove a member that joins again too late, when the group is full; a pending id is forgotten. As in Kafka."""
    group.pending.pop(member_id, None)
    member = group.members.get(member_id)
    if member is not None:
        drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
        instance_id = member.image.group_instance_id
        record(result, group, MemberRemoved(member_id, instance_id, "the group is full", Cause.GROUP_FULL))


def _has_room(group: Group, member_id: str, limits: Limits) -> bool:
    """In the join phase only members that have joined count, because the others may not come back."""
    if group.state is EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is PREPARING_REBALANCE:
        return (member is not None and member.joined) or group.joined_count < limits.group_max_size
    return member is not None or len(group.members) < limits.group_max_size


def _add_member(result: Result, group: Group, request: JoinGroup, member_id: str, call: int) -> None:
    group.pending.pop(member_id, None)
    image = _image(group, request, member_id, request.group_instance_id)
    record(result, group, MemberJoined(image, request.protocol_type, request.reason))
    _park(result, group, group.members[member_id], request, call)
    if group.state is PREPARING_REBALANCE and group.initial:
        group.newcomer_arrived = True
    trigger = _trigger(Cause.MEMBER_JOINED, f"member {member_id} joined", request, member_id)
    rebalance_or_complete(result, group, trigger)


def _rejoin(result: Result, group: Group, member: Member, request: JoinGroup, call: int) -> None:
    """A member that is known joins again. What that means is a matter of the state (§8.5, §8.6)."""
    changed = member.image.protocols != request.protocols
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            cause, reason = Cause.OTHER, ""
        case GroupState.COMPLETING_REBALANCE if changed:
            cause = Cause.METADATA_CHANGED
            reason = f"member {member.member_id} changed its metadata while the assignment was awaited"
        case GroupState.COMPLETING_REBALANCE:
            _answer_from_memory(result, group, member, call)
            return
        case GroupState.STABLE if member.taken_along_from is not None and not changed:
            _answer_from_memory(result, group, member, call)
            return
        case GroupState.STABLE if group.is_leader(member.member_id):
            cause = Cause.TOPICS_CHANGED if is_of_topics(request.reason) else Cause.LEADER_REJOINED
            reason = f"leader {member.member_id} joined again"
            said = next((each.metadata for each in request.protocols if each.name == group.protocol_name), b"")
            if successor_id := successor_of(group, said, request.last_generation_id):
                cause, reason = Cause.LEADER_HANDED_OVER, f"leader {member.member_id} hands over to {successor_id}"
        case GroupState.STABLE if changed:
            cause, reason = Cause.METADATA_CHANGED, f"member {member.member_id} changed its metadata"
        case GroupState.STABLE:
            _answer_from_memory(result, group, member, call)
            return
        case state:
            raise AssertionError(f"a group with members cannot be {state}")
    trigger = _trigger(cause, reason, request, member.member_id)
    if is_of_topics(request.reason) and hold_back(result, group, trigger):
        _answer_from_memory(result, group, member, call)
        return
    _update(result, group, member, request, settle=False)
    _park(result, group, member, request, call)
    rebalance_or_complete(result, group, trigger)


def _answer_from_memory(
    result: Result, group: Group, member: Member, call: int, *, skip_assignment: bool = False
) -> None:
    """The present generation, without a join phase. Where the server has assigned it, the member has its share by that.

    A member that was taken along takes this for the end of a join phase, which renews its session from the moment of
    its join: so it does here. Any other one counts on no renewal (§8.2).
    """
    if member.taken_along_from is not None:
        renew_session(result, group, member)
    member.joined_again = True
    reply = join_reply(group, member, skip_assignment=skip_assignment)
    result.reply(call, reply)
    if reply.assignment is not None:
        mark_synced(group, member)
        if member.missed_phase:
            member.missed_phase = False
            watch_candidates(result, group)


def _replace_static_member(result: Result, group: Group, request: JoinGroup, old_id: str, call: int) -> None:
    """A static member came back under a new id; the old one is fenced (KIP-345).

    In Stable no other member notices, unless the group would now choose another protocol or assign otherwise, or the
    numbers that distinguish the successors' fencing tokens are used up. While the assignment is awaited it always
    rebalances, because the leader may already be assigning to the old id (KAFKA-9801).
    """
    assert request.group_instance_id is not None
    member = group.members[old_id]
    reason = taken_over(request.group_instance_id, request.host)
    drop_parked(result, member, ErrorCode.FENCED_INSTANCE_ID, reason, member_id=old_id)
    takeover = group.next_takeover(member)
    reason = _with_client_reason(reason, request)
    fenced = MemberFenced(old_id, request.new_member_id, request.group_instance_id, reason, takeover)
    record(result, group, fenced)
    member.session_armed_ms = None
    start_session(result, group, member)
    has_own_token = takeover < LAST_TAKEOVER
    keeps_assignment = group.state is STABLE and has_own_token and _keeps_others(group, member, request)
    former = member.image.metadata_for(group.protocol_name)
    _update(result, group, member, request, settle=keeps_assignment)
    if keeps_assignment and renew_assignment(result, group, member):
        member.has_fetched = member.missed_phase = False
        member.taken_along_from = None
        member.skip_assignment = group.is_leader(member.member_id)
        _answer_from_memory(result, group, member, call, skip_assignment=member.skip_assignment)
        if member.image.metadata_for(group.protocol_name) != former:
            # It may subscribe to other topics now. Where members assign, the leader compares by itself (see the SDK).
            ask_for_assignment(result, group)
        watch_candidates(result, group)
        return
    _park(result, group, member, request, call)
    reason = f"static member {request.group_instance_id} came back as {member.member_id}"
    if group.state is PREPARING_REBALANCE:
        maybe_complete_join(result, group)
    else:
        trigger = _trigger(Cause.STATIC_MEMBER_RETURNED, reason, request, member.member_id)
        start_rebalance(result, group, trigger)


def _keeps_others(group: Group, member: Member, request: JoinGroup) -> bool:
    """Return whether a Stable group would choose the same protocol again, and assign the same to the others."""
    name = group.protocol_name
    said = next((protocol.metadata for protocol in request.protocols if protocol.name == name), b"")
    return _keeps_protocol(group, member, request) and not concerns_all(group, member.image.metadata_for(name), said)


def _keeps_protocol(group: Group, member: Member, request: JoinGroup) -> bool:
    """Return whether a Stable group would choose the same protocol again with the new protocols of `member`."""
    former = member.image
    if [p.name for p in request.protocols] == [p.name for p in former.protocols]:
        # Its vote is the same. The others need not be asked, however many return in a rolling restart.
        return True
    group.update(member, _image(group, request, member.member_id, request.group_instance_id))
    try:
        return group.select_protocol() == group.protocol_name
    finally:
        group.update(member, former)


def _update(result: Result, group: Group, member: Member, request: JoinGroup, *, settle: bool) -> None:
    """Take over what the member now says of itself, where it differs."""
    former = member.image
    # Its instance id is for life: a rejoin without it does not make a static member a dynamic one.
    image = _image(group, request, member.member_id, former.group_instance_id, former.subject)
    if image != former:
        record(result, group, MemberUpdated(image, settle, request.reason))


def _park(result: Result, group: Group, member: Member, request: JoinGroup, call: int) -> None:
    """Hold the answer until the join phase is over. Being parked proves life, so the session timer stops.

    A call that was parked before is answered now: its client has moved on, but must not hang (§9).
    """
    if member.join_call is not None:
        superseded = JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, detail="a later join took its place")
        result.reply(member.join_call, superseded)
    member.join_call, member.known_generation_id = call, request.last_generation_id
    member.taken_along_from = None
    stop_session(result, group, member)
    if not member.joined:
        member.joined = True
        group.joined_count += 1


def _image(
    group: Group, request: JoinGroup, member_id: str, group_instance_id: str | None, former_subject: str = ""
) -> MemberImage:
    """What the member now is. An administrator that joins in its name does not become its caller.

    Values that equal the oldest member's, as nearly all do, are stored once.
    """
    oldest = next(iter(group.members.values()), None)
    said = request if oldest is None else oldest.image
    return MemberImage(
        member_id=member_id,
        group_instance_id=group_instance_id,
        client_id=_shared(request.client_id, said.client_id),
        host=intern(request.host),  # thousands of equal ones take memory
        session_timeout_ms=_shared(request.session_timeout_ms, said.session_timeout_ms),
        rebalance_timeout_ms=_shared(request.rebalance_timeout_ms, said.rebalance_timeout_ms),
        protocols=_shared(request.protocols, said.protocols),
        subject=request.subject or former_subject,
    )


def _shared(value: Said, others: Said) -> Said:
    """The value, as the other one's object where they are equal."""
    return others if others == value else value


def _trigger(cause: Cause, reason: str, request: JoinGroup, member_id: str) -> Trigger:
    return Trigger(cause, _with_client_reason(reason, request), member_id)


def _with_client_reason(reason: str, request: JoinGroup) -> str:
    return f"{reason}; client reason: {request.reason}" if request.reason else reason
