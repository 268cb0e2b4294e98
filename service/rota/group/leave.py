"""LeaveGroup and removal by an administrator: one batch, one rebalance (protocol.md §3, §8.10)."""

from __future__ import annotations

from rota.group.apply import record
from rota.group.membership_checks import check_caller, check_member, report_fenced
from rota.group.rebalance import drop_parked, empty_group, maybe_complete_join, replace_departed
from rota.group.records import MemberLeft, MemberRemoved
from rota.group.result import Result
from rota.group.sessions import report_gaps
from rota.group.state import EMPTY, PREPARING_REBALANCE, Group, Member
from rota.group.suspects import clear_survived, note_fall
from rota.group.trigger import Trigger
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import LeaveGroup, LeaveReply, LeavingMember, LeftMember


def leave_group(result: Result, group: Group, request: LeaveGroup, call: int, limits: Limits) -> None:
    """Remove the members, answer with an error for ids that are none, then have the others rebalance, once."""
    members_before = len(group.members)
    pending_before = len(group.pending)
    by_admin, subject = request.by_admin, request.subject
    answers = tuple(_leave(result, group, member, by_admin=by_admin, subject=subject) for member in request.members)
    left = [each for each, a in zip(request.members, answers, strict=True) if a.error is ErrorCode.NONE]
    if len(group.members) < members_before:
        _after_departure(result, group, limits, left, by_admin=request.by_admin)
    elif len(group.pending) < pending_before:
        # A pending id was never in the generation: its going only ends the wait for it (§9).
        maybe_complete_join(result, group)
    result.reply(call, LeaveReply(members=answers))


def _leave(result: Result, group: Group, leaving: LeavingMember, *, by_admin: bool, subject: str) -> LeftMember:
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if not member_id and instance_id is not None:
        current = group.static_members.get(instance_id)
        error = check_caller(group.members[current], subject) if current else ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending and instance_id is None:
        del group.pending[member_id]
        return LeftMember(member_id, instance_id, ErrorCode.NONE)
    else:
        current = member_id
        error = check_member(group, member_id, instance_id, subject)
        report_fenced(result, group, "leave", error, member_id, instance_id, -1)
    if error is ErrorCode.NONE and leaving.silent_for_ms is not None:
        assert current is not None
        error = _check_silent(group.members[current], result.now_ms - leaving.silent_for_ms)
    if error is ErrorCode.NONE:
        assert current is not None
        _dismiss(result, group, current, leaving, by_admin=by_admin)
    return LeftMember(member_id, instance_id, error)


def _check_silent(member: Member, since_ms: int) -> ErrorCode:
    """Its last heartbeat renewed the session; with a parked call it waits for an answer, and so is alive."""
    if member.session_deadline_ms is None or member.heartbeat_call is not None:
        return ErrorCode.INVALID_REQUEST
    seen_ms = member.session_deadline_ms - member.image.session_timeout_ms
    return ErrorCode.INVALID_REQUEST if seen_ms > since_ms else ErrorCode.NONE


def _dismiss(result: Result, group: Group, member_id: str, leaving: LeavingMember, *, by_admin: bool) -> None:
    member = group.members[member_id]
    drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
    report_gaps(result, group, (member,))
    cause = _cause(leaving, by_admin=by_admin)
    if not by_admin:
        _note_end(result, group, member, leaving)
    departure = MemberRemoved if by_admin else MemberLeft
    record(result, group, departure(member_id, member.image.group_instance_id, leaving.reason, cause))


def _note_end(result: Result, group: Group, member: Member, leaving: LeavingMember) -> None:
    """What the member's end says of its units: its work on one failed, its connection is lost, or it left in order."""
    if leaving.failed_unit:
        note_fall(result, group, member, Cause.UNIT_FAILED, leaving.reason, leaving.failed_unit)
    elif leaving.silent_for_ms is not None:
        note_fall(result, group, member, Cause.MEMBER_LEFT, leaving.reason)
    else:
        clear_survived(result, group, member)


def _cause(leaving: LeavingMember, *, by_admin: bool) -> Cause:
    if by_admin:
        return Cause.MEMBER_REMOVED
    return Cause.UNIT_FAILED if leaving.failed_unit else Cause.MEMBER_LEFT


def _after_departure(
    result: Result, group: Group, limits: Limits, left: list[LeavingMember], *, by_admin: bool
) -> None:
    gone, failed_unit = [each.member_id or each.group_instance_id or "" for each in left], left[0].failed_unit
    verb = "was removed" if by_admin else f"left: its work on {failed_unit} failed" if failed_unit else "left"
    reason = f"{', '.join(gone[:3])}{' and others' if len(gone) > 3 else ''} {verb}"
    trigger = Trigger(_cause(left[0], by_admin=by_admin), reason, gone[0] if len(gone) == 1 else "")
    if group.state is PREPARING_REBALANCE:
        maybe_complete_join(result, group)
    elif group.members:
        replace_departed(result, group, limits, trigger)
    else:
        assert group.state is not EMPTY
        empty_group(result, group, trigger)
