"""The administrator's side of a group: freezes, members that may leave, and quarantine (ADR 81)."""

from __future__ import annotations

from collections.abc import Collection

from rota.core.group.assignment import ask_for_assignment, server_side_of
from rota.core.group.rebalance import start_rebalance
from rota.core.group.records import GroupFrozen, GroupUnfrozen, LeaveGranted, QuarantineChanged, Trigger, UnitsReleased
from rota.core.group.sessions import check_member, why
from rota.core.group.state import COMPLETING_REBALANCE, STABLE, Group, Result, TimerKind, record
from rota.core.group.succession import watch_candidates
from rota.core.types import has_units
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode, no_member
from rota.protocol.messages import (
    DrainMember,
    DrainReply,
    FreezeGroup,
    FreezeReply,
    JoinGroup,
    JoinReply,
    QuarantineGroup,
    QuarantineReply,
)
from rota.protocol.texts import TOPICS_CHANGED

# --- freezes --------------------------------------------------------------------------------------

# For a while no rebalance starts that could as well start later; failures and leaves are no such (ADR 64). A freeze
# holds back newcomers, changes of topics, and candidates that outrank the leader, while the group is Stable. A join
# phase that something else has started takes all of them along. What was held back is soft state: a new owner does not
# know of it, so it has the members agree anew when the freeze ends.


_HELD_BACK = Trigger(Cause.TOPICS_CHANGED, f"{TOPICS_CHANGED}, perhaps: the shard has another owner since the freeze")


def freeze_group(result: Result, group: Group, request: FreezeGroup) -> FreezeReply:
    """An administrator freezes the group, prolongs or shortens its freeze, or ends it (`for_ms` of 0)."""
    if group.settled is None:
        return FreezeReply(ErrorCode.INVALID_REQUEST, "the group has had no generation yet")
    if request.for_ms:
        record(result, group, GroupFrozen(result.now_ms + request.for_ms, request.reason))
        watch_freeze(result, group)
        watch_candidates(result, group)
    elif group.frozen_until_ms is not None:
        record(result, group, GroupUnfrozen(request.reason))
        _thaw(result, group)
    return FreezeReply(frozen_until_ms=group.frozen_until_ms)


def refuse_newcomer(group: Group, request: JoinGroup, now_ms: int) -> JoinReply | None:
    """The answer to a newcomer of a Stable group that is frozen; None if it may join."""
    is_known = request.member_id in group.members or request.group_instance_id in group.static_members
    if is_known or group.state is not STABLE or not group.is_frozen(now_ms):
        return None
    why = f"newcomers wait: {group.says_frozen(now_ms)}"
    return JoinReply(ErrorCode.THROTTLED, detail=why, member_id=request.member_id)


def hold_back(result: Result, group: Group, trigger: Trigger) -> bool:
    """Whether this rebalance of a Stable group waits for the end of the freeze."""
    if group.state is not STABLE or not group.is_frozen(result.now_ms):
        return False
    group.held_back = group.held_back or trigger
    result.reason = f"held back: {trigger.reason}: {group.says_frozen(result.now_ms)}"
    return True


def watch_freeze(result: Result, group: Group, *, is_loaded: bool = False) -> None:
    """Set the timer for the end of a freeze. A group that is loaded may have held something back."""
    if not group.is_frozen(result.now_ms):
        return
    if is_loaded and server_side_of(group) is None and group.state is STABLE:
        group.held_back = _HELD_BACK
    assert group.frozen_until_ms is not None
    result.set_timer(TimerKind.THAW, group, "", group.frozen_until_ms)


def on_thaw_timer(result: Result, group: Group, at_ms: int) -> None:
    """The time of a freeze is over, unless it was prolonged or ended meanwhile."""
    if group.frozen_until_ms == at_ms and not group.is_frozen(result.now_ms):
        _thaw(result, group)


def _thaw(result: Result, group: Group) -> None:
    trigger, group.held_back = group.held_back, None
    if trigger is not None and group.state is STABLE:
        reason = f"{trigger.reason}; held back until the freeze ended"
        start_rebalance(result, group, Trigger(trigger.cause, reason))
        return
    ask_for_assignment(result, group)
    watch_candidates(result, group)


# --- members that may leave -----------------------------------------------------------------------

# At most so many members leave at once, and none while the group rebalances (ADR 64).


def drain_member(result: Result, group: Group, request: DrainMember) -> DrainReply:
    """Permit the member to leave, or say why not. A permission counts until the member has left, or it expires."""
    member_id = request.member_id or group.static_members.get(request.group_instance_id or "", "")
    error = check_member(group, member_id, request.group_instance_id, request.subject)
    if error is not ErrorCode.NONE:
        detail = why(error, group, request.group_instance_id)
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            detail = no_member(request.group_instance_id or member_id, group.group_id, group.namespace)
        return DrainReply(error, detail)
    leaving = group.leaving_at(result.now_ms)
    others = tuple(each for each in leaving if each != member_id)
    why_not = _drain_refusal(group, others, request, result.now_ms)
    if why_not:
        return DrainReply(leaving=tuple(leaving), why_not=why_not)
    until_ms = result.now_ms + request.grant_ms
    record(result, group, LeaveGranted(member_id, until_ms, request.max_leaving, request.reason))
    return DrainReply(granted=True, until_ms=until_ms, leaving=tuple(group.leaving_at(result.now_ms)))


def _drain_refusal(group: Group, others: tuple[str, ...], request: DrainMember, now_ms: int) -> str:
    if group.is_frozen(now_ms):
        return group.says_frozen(now_ms)
    if group.state is not STABLE:
        return f"the group rebalances: {group.rebalance_reason}"
    if len(others) >= request.max_leaving:
        return f"{len(others)} of at most {request.max_leaving} members are leaving: {', '.join(others[:5])}"
    return ""


# --- quarantine -----------------------------------------------------------------------------------


def quarantine_group(result: Result, group: Group, request: QuarantineGroup) -> QuarantineReply:
    """Change the rule, and release units."""
    refusal = _quarantine_refusal(group, request)
    if refusal:
        return QuarantineReply(ErrorCode.INVALID_REQUEST, refusal)
    rule = group.quarantine
    former = (rule.after_falls, rule.max_units, rule.release_after_ms)
    asked = (request.after_falls, request.max_units, request.release_after_ms)
    after_falls, max_units, release_after_ms = (
        now if new is None else new for now, new in zip(former, asked, strict=True)
    )
    if (after_falls, max_units, release_after_ms) != former:
        record(result, group, QuarantineChanged(after_falls, max_units, release_after_ms, request.reason))
    if request.release:
        release_units(result, group, tuple(dict.fromkeys(request.release)), request.reason)
    units = group.quarantine.names
    return QuarantineReply(ErrorCode.NONE, "", after_falls, max_units, release_after_ms, units)


def watch_quarantine(result: Result, group: Group) -> None:
    """Set the timers for the releases of a group that is loaded."""
    for until_ms in sorted({until_ms for _unit, until_ms in group.quarantine.units if until_ms}):
        result.set_timer(TimerKind.RELEASE, group, "", max(until_ms, result.now_ms + 1))


def on_release_timer(result: Result, group: Group) -> None:
    """The time of some units is over, unless an administrator has released them."""
    due = [unit for unit, until_ms in group.quarantine.units if until_ms and until_ms <= result.now_ms]
    if due:
        release_units(result, group, due, "their time in quarantine is over")


def release_units(result: Result, group: Group, units: Collection[str], reason: str) -> None:
    """Members may own them again, by a rebalance: nobody else asks for one, if no count of partitions changes."""
    record(result, group, UnitsReleased(tuple(units), reason))
    trigger = Trigger(Cause.UNITS_RELEASED, f"{', '.join(units)} released from quarantine")
    if group.state in (STABLE, COMPLETING_REBALANCE) and not hold_back(result, group, trigger):
        start_rebalance(result, group, trigger)


def _quarantine_refusal(group: Group, request: QuarantineGroup) -> str:
    if group.settled is None or not group.protocol_type:
        return "the group has had no generation yet"
    if not has_units(group.protocol_type):
        return f"shares of type {group.protocol_type!r} have no units that could be quarantined"
    unknown = [unit for unit in request.release if unit not in group.quarantine.names]
    return f"{unknown[0]} is not quarantined" if unknown else ""
