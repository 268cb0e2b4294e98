"""Units of work that are suspected of felling their holders, and assignments without those in quarantine (ADR 81).

A holder falls where its session expires, its connection is lost, or it leaves because its work on a unit failed. A unit
is suspected while its last holders have all fallen: one that survives it, because it leaves in order or hands the unit
over, acquits it. Falls are judged together at the next generation, since a single one may be the first of an outage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rota.group.apply import record
from rota.group.records import UnitsQuarantined, UnitsSuspected
from rota.group.result import Result, TimerKind
from rota.group.state import Fall, Group, Member
from rota.protocol.causes import Cause
from rota.protocol.defaults import QUARANTINE_WINDOW_MS
from rota.types import units_of, without_units

_SHOWN = 5
"""Units that one sentence names."""


def leave_out(group: Group, assignments: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The assignments less the units in quarantine, of the leader and of the server alike."""
    units = frozenset(group.quarantine.names)
    if not units:
        return assignments
    kind = group.protocol_type or ""
    return {member_id: without_units(kind, share, units) for member_id, share in assignments.items()}


# --- evidence ---------------------------------------------------------------------------------


def note_fall(
    result: Result, group: Group, member: Member, cause: Cause, reason: str, failed_unit: str | None = None
) -> None:
    """A member is about to be removed because it has fallen. A report names the one unit that it failed on."""
    if not group.quarantine.after_falls:
        return
    held = units_of(group.protocol_type or "", member.assignment)
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
    survived = units_of(group.protocol_type or "", member.assignment)
    group.falls = [fall._replace(units=tuple(u for u in fall.units if u not in survived)) for fall in group.falls]
    _clear(result, group, survived, member.member_id, "left in order")


def clear_handed_over(result: Result, group: Group, given: Mapping[str, bytes]) -> None:
    """Members that lose units by a new assignment have survived them."""
    kind = group.protocol_type or ""
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
