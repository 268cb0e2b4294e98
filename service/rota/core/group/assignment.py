"""Phase two done by the coordinator: for `server:<strategy>` protocols, and for groups of type `leader`.

A strategy may need topics, which are in shards of their own, and it may take a second. So the core asks for it: the
ASSIGN timer that goes with a generation is the request, `AssignmentJob` lists the members to be assigned, the runtime
computes it wherever it likes, and `finish_job` takes it in as a leader's sync (sync.py). Where no topics are needed
there is nothing to wait for, and the generation is Stable in the same step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rota.core.group.records import AssignmentSynced, Trigger, UnitsQuarantined, UnitsSuspected
from rota.core.group.state import COMPLETING_REBALANCE, STABLE, Fall, Group, Member, Result, TimerKind, record
from rota.core.types import (
    Generation,
    JoinedWith,
    ServerSide,
    attempt,
    describe_topics,
    server_side,
    units_of,
    without_units,
)
from rota.protocol.causes import Cause
from rota.protocol.defaults import QUARANTINE_WINDOW_MS
from rota.protocol.fencing_token import NO_TOKEN

# --- units that fell their holders ----------------------------------------------------------------

# A holder falls if its session expires, its connection is lost, or it leaves because its work on a unit failed. A unit
# is suspected while its last holders have all fallen: one that survives it, because it leaves in order or hands the
# unit over, acquits it. Falls are judged together at the next generation, since a single one may be the first of an
# outage. Assignments leave units in quarantine out (ADR 81).


_SHOWN = 5
"""Units that one sentence names."""


def leave_out(group: Group, assignments: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The assignments less the units in quarantine, of the leader and of the server alike."""
    units = frozenset(group.quarantine.names)
    if not units:
        return assignments
    kind = group.protocol_type
    return {member_id: without_units(kind, share, units) for member_id, share in assignments.items()}


# --- evidence ---------------------------------------------------------------------------------


def note_fall(
    result: Result, group: Group, member: Member, cause: Cause, reason: str, failed_unit: str | None = None
) -> None:
    """A member is about to be removed because it has fallen. A report names the one unit that it failed on."""
    if not group.quarantine.after_falls:
        return
    held = units_of(group.protocol_type, member.assignment)
    if failed_unit is not None:
        held &= {failed_unit}
    elif not _was_seen(result, group, member):
        held = frozenset()
    why = reason if cause is Cause.UNIT_FAILED else f"{member.member_id}: {reason}"
    group.falls.append(Fall(member.member_id, tuple(sorted(held)), cause, why))


def _was_seen(result: Result, group: Group, member: Member) -> bool:
    """Whether this owner has received anything of the member: a failover, or an outage of the store, is no evidence."""
    return group.loaded_ms is None or result.now_ms > group.loaded_ms + member.image.session_timeout_ms


def clear_survived(result: Result, group: Group, member: Member) -> None:
    """The member leaves in order: its units have not felled it, also where they have just felled another holder."""
    if not (group.quarantine.suspects or group.falls):
        return
    survived = units_of(group.protocol_type, member.assignment)
    group.falls = [fall._replace(units=tuple(u for u in fall.units if u not in survived)) for fall in group.falls]
    _clear(result, group, survived, member.member_id, "left in order")


def clear_handed_over(result: Result, group: Group, given: Mapping[str, bytes]) -> None:
    """Members that lose units by a new assignment have survived them."""
    kind = group.protocol_type
    for member_id, member in list(group.members.items()) if group.quarantine.suspects else ():
        share = given.get(member_id, b"")
        if member.assignment != share:
            lost = units_of(kind, member.assignment) - units_of(kind, share)
            _clear(result, group, lost, member_id, "gave them up")


def _clear(result: Result, group: Group, survived: Collection[str], member_id: str, verb: str) -> None:
    former = group.quarantine.suspects
    left = tuple(each for each in former if each[0] not in survived)
    if left != former:
        acquitted = _listed([unit for unit, *_ in former if unit in survived])
        record(result, group, UnitsSuspected(left, member_id, f"{member_id} {verb}: {acquitted}"))


# --- judgement --------------------------------------------------------------------------------


def judge_falls(result: Result, group: Group) -> None:
    """Count the falls since the last generation, and quarantine the units that have felled enough holders in a row."""
    noted, group.falls = group.falls, []
    outage = _is_outage(group, noted)
    falls = [fall for fall in noted if fall.units and (fall.cause is Cause.UNIT_FAILED or not outage)]
    if not falls or not group.quarantine.after_falls:
        return
    now_ms, since_ms = result.now_ms, result.now_ms - QUARANTINE_WINDOW_MS
    counts = {unit: (count, at_ms) for unit, count, at_ms in group.quarantine.suspects if at_ms > since_ms}
    for unit in (unit for fall in falls for unit in fall.units):
        counts[unit] = (counts.get(unit, (0, 0))[0] + 1, now_ms)
    suspects = tuple((unit, count, at_ms) for unit, (count, at_ms) in counts.items())
    why = f"{falls[-1].member_id} fell with {_listed(falls[-1].units)}"
    record(result, group, UnitsSuspected(suspects, falls[-1].member_id, why))
    _quarantine_due(result, group, falls[-1])


def _is_outage(group: Group, falls: list[Fall]) -> bool:
    """Whether at least as many holders have fallen in silence as are left: that says nothing of their units."""
    silent = sum(fall.cause is not Cause.UNIT_FAILED for fall in falls)
    return silent > 1 and silent >= sum(bool(member.assignment) for member in group.members.values())


def _quarantine_due(result: Result, group: Group, last: Fall) -> None:
    """All units that are due, or none where they are more than there is room for: then the fault is not a unit's."""
    rule = group.quarantine
    due = tuple(unit for unit, count, _at_ms in rule.suspects if count >= rule.after_falls)
    if not due:
        return
    if len(rule.units) + len(due) > rule.max_units:
        result.warning = (
            f"group {group.group_id}: {_listed(due)} felled {rule.after_falls} holders in a row, and are assigned: at "
            f"most {rule.max_units} units may be quarantined"
        )
        return
    until_ms = result.now_ms + rule.release_after_ms if rule.release_after_ms else 0
    why = f"{rule.after_falls} holders in a row fell; the last was {last.member_id}: {last.reason}"
    record(result, group, UnitsQuarantined(due, until_ms, why, last.cause))
    if until_ms:
        result.set_timer(TimerKind.RELEASE, group, "", until_ms)


def _listed(units: Collection[str]) -> str:
    shown = ", ".join(sorted(units)[:_SHOWN])
    return f"{shown} and {len(units) - _SHOWN} more" if len(units) > _SHOWN else shown


# --- assignments by the server --------------------------------------------------------------------


AGAIN_MS = 1_000
"""How soon a group is assigned again whose time for that was over when it was assigned last."""


def server_side_of(group: Group) -> ServerSide | None:
    """How the coordinator assigns for this generation; None if its leader does."""
    return server_side(group.protocol_type, group.protocol_name)


def begin_assigning(result: Result, group: Group, side: ServerSide) -> None:
    """A generation is complete, and the server assigns it. No member owes a sync then.

    A plug-in's strategy may fail. The replica runs it again then, and hands its error in.
    """
    group.asked_ms = result.now_ms
    assignments = _assign_at_once(side, group)
    if assignments is None:
        _ask_for_assignment(result, group)
    else:
        _await_no_syncs(group)
        record_assignment(result, group, assignments, resync=False)


def _assign_at_once(side: ServerSide, group: Group) -> Mapping[str, bytes] | None:
    """None if the strategy needs topics, or fails."""
    return attempt(None, side.checked_assign, generation_of(group), {}) if side.wants_topic is None else None


def ask_for_assignment(result: Result, group: Group) -> None:
    """Have the replica assign a generation that was loaded from the store, if it is for the server to assign."""
    side = server_side_of(group)
    if side is not None and (group.state is COMPLETING_REBALANCE or side.wants_topic is not None):
        _ask_for_assignment(result, group)


def renew_assignment(result: Result, group: Group, successor: Member) -> bool:
    """Assign anew if the server assigns, and a member that shares name, with its token, has a new member id: the
    leader, or any member where the type says so. False if the strategy of a plug-in fails.

    Only where no topics are needed: then the shares are a matter of the members, and the same ones get the same.
    """
    side = server_side_of(group)
    if side is None or side.wants_topic is not None:
        return True
    if not side.of_members and not group.is_leader(successor.member_id):
        return True
    assignments = _assign_at_once(side, group)
    if assignments is None:
        return False
    record_assignment(result, group, assignments, resync=False)
    return True


def concerns_all(group: Group, former: bytes, metadata: bytes) -> bool:
    """Whether other members' shares depend on the metadata of a static member that came back."""
    side = server_side_of(group)
    return side is not None and side.of_members and metadata != former


def again_at_ms(group: Group) -> int | None:
    """When a Stable group is to be assigned again, though nothing else happens; None if that is never."""
    side = server_side_of(group)
    return None if side is None or side.again_at_ms is None else attempt(None, side.again_at_ms, shares_of(group))


def ask_again(result: Result, group: Group) -> None:
    """Have the replica assign the group when it is time for that. A freeze, in which assignments have no effect, puts
    it off until its end; where the time is over already, a failure or a slow job is the reason.
    """
    at_ms = again_at_ms(group)
    if at_ms is not None:
        at_ms = max(at_ms, group.frozen_until_ms or at_ms)
        result.set_timer(TimerKind.ASSIGN, group, "", at_ms if at_ms > result.now_ms else result.now_ms + AGAIN_MS)


def _ask_for_assignment(result: Result, group: Group) -> None:
    _await_no_syncs(group)
    group.asked_ms = result.now_ms
    result.set_timer(TimerKind.ASSIGN, group, "", result.now_ms)


def record_assignment(
    result: Result, group: Group, assignments: Mapping[str, bytes], *, resync: bool, trigger: Trigger | None = None
) -> None:
    """As if the leader had sent it, less the units in quarantine. Members that were left out get nothing."""
    generation_id = group.generation_id + resync
    assignments = leave_out(group, assignments)
    given = tuple((m, a) for m, a in assignments.items() if m in group.members)
    changes = (describe_topic_changes(group, dict(given)) if resync else "") or describe_changes(group, dict(given))
    clear_handed_over(result, group, dict(given))
    if trigger is not None:
        cause, reason, by = trigger.cause, f"{trigger.reason}{changes}", trigger.by
    else:
        cause, by = Cause.RESYNC if resync else "", ""
        reason = f"the server assigned generation {generation_id} by {group.protocol_name}{changes}"
    record(result, group, AssignmentSynced(generation_id, group.leader_id or "", given, resync, reason, cause, by))
    result.reason = reason


def promote_standbys(result: Result, group: Group, trigger: Trigger) -> bool:
    """A member of a Stable group is gone: if others have copies of all that it did, one of each is promoted at once.

    The members fetch their new roles and work on, as after any resync. The missing copies follow with the assignment
    that the replica computes next. False if the group has to rebalance instead.
    """
    side = server_side_of(group)
    if group.state is not STABLE or side is None or side.promote is None:
        return False
    shares = attempt(None, side.promote, generation_of(group))
    if shares is None:
        return False
    record_assignment(result, group, shares, resync=True, trigger=trigger)
    _ask_for_assignment(result, group)
    return True


def describe_topic_changes(group: Group, assignments: Mapping[str, bytes]) -> str:
    """What a new assignment says of topics, to be put behind a reason: `: docs 64 → 96`; or nothing."""
    changes = describe_topics(group.protocol_type, shares_of(group), assignments)
    return f": {changes}" if changes else ""


def shares_of(group: Group) -> dict[str, bytes]:
    """What each member has been assigned."""
    return {member_id: member.assignment for member_id, member in group.members.items()}


def describe_changes(group: Group, assignments: Mapping[str, bytes]) -> str:
    """What changes, in the words of the type; nothing if it has none, or its function raises."""
    side = server_side_of(group)
    if side is None or side.describe is None:
        return ""
    described = attempt(None, side.describe, shares_of(group), assignments)
    return "" if described is None else f": {described}"


def mark_synced(group: Group, member: Member) -> None:
    """The member has its share, or has asked for it: it will not be removed for owing a sync."""
    group.pending_sync.pop(member.member_id, None)
    if not group.pending_sync:
        group.pending_sync.clear()  # which frees its table
        group.sync_deadline_ms = None


def _await_no_syncs(group: Group) -> None:
    """No member owes a sync, except those that were taken along into the generation and have not joined yet."""
    members = group.members
    group.pending_sync = {each: None for each in group.pending_sync if members[each].taken_along_from is not None}
    if not group.pending_sync:
        group.sync_deadline_ms = None


def generation_of(group: Group) -> Generation:
    """The members as they are to be assigned."""
    members = tuple(
        JoinedWith(
            m.member_id,
            m.image.group_instance_id,
            m.image.metadata_for(group.protocol_name),
            m.assignment,
            group.token_of(m),
        )
        for m in group.members.values()
    )
    leader = group.members.get(group.leader_id or "")
    return Generation(
        group.generation_id,
        group.leader_id or "",
        group.protocol_name,
        members,
        group.token_of(leader) if leader is not None else NO_TOKEN,
        departed=tuple(group.departed),
        now_ms=group.asked_ms,
        is_stable=group.state is STABLE,
    )


@dataclass(frozen=True, slots=True)
class AssignmentJob:
    """A generation that waits for the server's assignment, or for a new one because its topics may have changed."""

    namespace: str
    group_id: str
    side: ServerSide
    generation: Generation


def assignment_job(group: Group | None) -> AssignmentJob | None:
    """None if there is nothing for the runtime to assign (any more)."""
    if group is None or group.state not in (COMPLETING_REBALANCE, STABLE):
        return None
    side = server_side_of(group)
    if side is None or (group.state is STABLE and side.wants_topic is None):
        return None
    return AssignmentJob(group.namespace, group.group_id, side, generation_of(group))


def is_current(group: Group | None, job: AssignmentJob) -> bool:
    """Whether the group is still as the job found it. A static member may be back under a new id since, in the same
    generation: the computed assignment would leave it with nothing.
    """
    return (
        group is not None
        and group.generation_id == job.generation.generation_id
        and list(group.members) == [member.member_id for member in job.generation.members]
    )
