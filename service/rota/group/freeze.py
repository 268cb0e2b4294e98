"""Freezes: for a while no rebalance starts that could as well start later; failures and leaves are no such (ADR 64).

A freeze holds back newcomers, changes of topics, and candidates that outrank the leader, while the group is Stable. A
join phase that something else has started takes all of them along. What was held back is soft state: a new owner does
not know of it, so it has the members agree anew when the freeze ends.
"""

from __future__ import annotations

from rota.group.apply import record
from rota.group.assignment import ask_for_assignment, server_side_of
from rota.group.rebalance import start_rebalance
from rota.group.records import GroupFrozen, GroupUnfrozen
from rota.group.result import Result, TimerKind
from rota.group.state import STABLE, Group
from rota.group.succession import watch_candidates
from rota.group.trigger import Trigger
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import FreezeGroup, FreezeReply, JoinGroup, JoinReply
from rota.protocol.texts import TOPICS_CHANGED

_HELD_BACK = Trigger(Cause.TOPICS_CHANGED, f"{TOPICS_CHANGED}, perhaps: the shard has another owner since the freeze")


def freeze_group(result: Result, group: Group, request: FreezeGroup, call: int, limits: Limits) -> None:
    """An administrator freezes the group, prolongs or shortens its freeze, or ends it (`for_ms` of 0)."""
    if group.settled is None:
        result.reply(call, FreezeReply(ErrorCode.INVALID_REQUEST, "the group has had no generation yet"))
        return
    if request.for_ms:
        record(result, group, GroupFrozen(result.now_ms + request.for_ms, request.reason))
        watch_freeze(result, group)
        watch_candidates(result, group)
    elif group.frozen_until_ms is not None:
        record(result, group, GroupUnfrozen(request.reason))
        _thaw(result, group, limits)
    result.reply(call, FreezeReply(frozen_until_ms=group.frozen_until_ms))


def refuse_newcomer(group: Group, request: JoinGroup, now_ms: int) -> JoinReply | None:
    """The answer to a newcomer of a Stable group that is frozen; None where it may join."""
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


def on_thaw_timer(result: Result, group: Group, at_ms: int, limits: Limits) -> None:
    """The time of a freeze is over, unless it was prolonged or ended meanwhile."""
    if group.frozen_until_ms == at_ms and not group.is_frozen(result.now_ms):
        _thaw(result, group, limits)


def _thaw(result: Result, group: Group, limits: Limits) -> None:
    trigger, group.held_back = group.held_back, None
    if trigger is not None and group.state is STABLE:
        reason = f"{trigger.reason}; held back until the freeze ended"
        start_rebalance(result, group, limits, Trigger(trigger.cause, reason))
        return
    ask_for_assignment(result, group)
    watch_candidates(result, group)
