"""Permissions to leave: at most so many members leave at once, and none while the group rebalances (ADR 64)."""

from __future__ import annotations

from rota.group.apply import record
from rota.group.membership_checks import check_member, why
from rota.group.records import LeaveGranted
from rota.group.result import Result
from rota.group.state import STABLE, Group
from rota.protocol.errors import ErrorCode, no_member
from rota.protocol.messages import DrainMember, DrainReply


def drain_member(result: Result, group: Group, request: DrainMember, call: int) -> None:
    """May this member leave now? A permission counts until the member has left, or its time is over."""
    member_id = request.member_id or group.static_members.get(request.group_instance_id or "", "")
    error = check_member(group, member_id, request.group_instance_id, request.subject)
    if error is not ErrorCode.NONE:
        detail = why(error, group, request.group_instance_id)
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            detail = no_member(request.group_instance_id or member_id, group.group_id, group.namespace)
        result.reply(call, DrainReply(error, detail))
        return
    leaving = group.leaving_at(result.now_ms)
    others = tuple(each for each in leaving if each != member_id)
    why_not = _refusal(group, others, request, result.now_ms)
    if why_not:
        result.reply(call, DrainReply(leaving=tuple(leaving), why_not=why_not))
        return
    until_ms = result.now_ms + request.grant_ms
    record(result, group, LeaveGranted(member_id, until_ms, request.max_leaving, request.reason))
    result.reply(call, DrainReply(granted=True, until_ms=until_ms, leaving=tuple(group.leaving_at(result.now_ms))))


def _refusal(group: Group, others: tuple[str, ...], request: DrainMember, now_ms: int) -> str:
    if group.is_frozen(now_ms):
        return group.says_frozen(now_ms)
    if group.state is not STABLE:
        return f"the group rebalances: {group.rebalance_reason}"
    if len(others) >= request.max_leaving:
        return f"{len(others)} of at most {request.max_leaving} members are leaving: {', '.join(others[:5])}"
    return ""
