"""What happens when time runs out: sessions, pending ids, the wait for syncs (protocol.md §5)."""

from __future__ import annotations

from rota.group.apply import record
from rota.group.freeze import on_thaw_timer
from rota.group.quarantine import on_release_timer
from rota.group.rebalance import (
    complete_join,
    drop_parked,
    empty_group,
    on_join_timer,
    on_preempt_timer,
    replace_departed,
)
from rota.group.records import MemberExpired
from rota.group.result import Result, Timer, TimerKind
from rota.group.sessions import member_to_expire, report_gaps, session_is_over
from rota.group.state import PREPARING_REBALANCE, Group, Member
from rota.group.suspects import note_fall
from rota.group.trigger import Trigger, trigger_of
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits


def on_timer(result: Result, group: Group, timer: Timer, limits: Limits) -> None:
    """A timer fired. It may be out of date: each handler checks the state first."""
    match timer.kind:
        case TimerKind.SESSION:
            member = member_to_expire(result, group, timer)
            if member is not None:
                _expire(result, group, member, limits)
        case TimerKind.JOIN:
            on_join_timer(result, group, limits, timer.at_ms)
        case TimerKind.SYNC:
            _on_sync_timer(result, group, timer, limits)
        case TimerKind.PENDING:
            _on_pending_timer(result, group, timer)
        case TimerKind.THAW:
            on_thaw_timer(result, group, timer.at_ms, limits)
        case TimerKind.RELEASE:
            on_release_timer(result, group, limits)
        case TimerKind.PREEMPT:
            on_preempt_timer(result, group, timer.at_ms)
        case TimerKind.ASSIGN:
            pass  # The replica hands the assignment in, with `Shard.finish_job`.


def removes_members(group: Group, timer: Timer, now_ms: int) -> bool:
    """Would this timer remove members now because they are silent? Then the owner first reads what has arrived."""
    match timer.kind:
        case TimerKind.SESSION:
            return session_is_over(group, timer, now_ms)
        case TimerKind.JOIN:
            return group.join_deadline_ms == timer.at_ms and not group.all_joined()
        case TimerKind.SYNC:
            return group.sync_deadline_ms == timer.at_ms
        case _:
            return False


def _expire(result: Result, group: Group, member: Member, limits: Limits) -> None:
    member_id, instance_id = member.member_id, member.image.group_instance_id
    silent = f"no heartbeat within its session timeout of {member.image.session_timeout_ms} ms"
    drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
    report_gaps(result, group, (member,))
    note_fall(result, group, member, Cause.MEMBER_EXPIRED, silent)
    gone = MemberExpired(member_id, instance_id, silent, Cause.MEMBER_EXPIRED)
    record(result, group, gone)
    _after_expiry(result, group, limits, trigger_of(gone))


def _after_expiry(result: Result, group: Group, limits: Limits, trigger: Trigger) -> None:
    """Unlike a leave, an expiry may end the initial delay early: so does Kafka."""
    if group.state is PREPARING_REBALANCE:
        if group.all_joined():
            complete_join(result, group)
    elif group.members:
        replace_departed(result, group, limits, trigger)
    else:
        empty_group(result, group, trigger)


def _on_pending_timer(result: Result, group: Group, timer: Timer) -> None:
    if group.pending.get(timer.member_id) != timer.at_ms:
        return
    del group.pending[timer.member_id]
    if group.state is PREPARING_REBALANCE and group.all_joined():
        complete_join(result, group)


def _on_sync_timer(result: Result, group: Group, timer: Timer, limits: Limits) -> None:
    """The rebalance timeout after the join phase ran out: members that have not synced are removed, static or not."""
    if group.sync_deadline_ms != timer.at_ms:
        return
    group.sync_deadline_ms = None
    late = list(group.pending_sync)
    for member_id in late:
        member = group.members[member_id]
        drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
        why, instance_id = "did not sync within the rebalance timeout", member.image.group_instance_id
        record(result, group, MemberExpired(member_id, instance_id, why, Cause.SYNC_TIMEOUT))
    if not late:
        return
    reason = f"{len(late)} of the members did not sync within the rebalance timeout"
    by = late[0] if len(late) == 1 else ""
    _after_expiry(result, group, limits, Trigger(Cause.SYNC_TIMEOUT, reason, by))
