"""Heartbeat: the sign of life, and the fastest way to learn that the group moves (protocol.md §3)."""

from __future__ import annotations

from rota.group.membership_checks import check_member, report_fenced
from rota.group.result import Result
from rota.group.state import PREPARING_REBALANCE, Group, Member
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatReply

_NONE = ErrorCode.NONE


def heartbeat(result: Result, group: Group, request: Heartbeat, call: int) -> None:
    """Renew the session. With `wait_ms` the answer waits until the group leaves this generation."""
    error = check_member(group, request.member_id, request.group_instance_id)
    if error is _NONE and not group.join_generation_id <= request.generation_id <= group.generation_id:
        error = ErrorCode.ILLEGAL_GENERATION
    if error is not _NONE:
        _refuse(result, group, request, error, call)
        return
    member = group.members[request.member_id]
    if member.session_deadline_ms is not None:
        result.renew_session(group, member)
    if group.state is PREPARING_REBALANCE:
        detail = group.rebalance_reason
        reply = HeartbeatReply(ErrorCode.REBALANCE_IN_PROGRESS, detail, group.generation_id, group.state.value)
        result.reply(call, reply)
    elif request.wait_ms and request.generation_id == group.generation_id:
        _park(result, group, member, call)
    else:
        result.reply(call, _alive(group))


def unpark_heartbeat(result: Result, group: Group, member: Member, *, answer: bool) -> None:
    """The group did not move in the call's time. An answered wait shows that the member was there until now."""
    call, member.heartbeat_call = member.heartbeat_call, None
    if answer and call is not None:
        if member.session_deadline_ms is not None:
            result.renew_session(group, member)
        result.reply(call, _alive(group))


def _alive(group: Group) -> HeartbeatReply:
    """A `generation_id` above the member's own tells it of a resync: it syncs again, without joining."""
    return HeartbeatReply(_NONE, "", group.generation_id, group.state.value)


def _park(result: Result, group: Group, member: Member, call: int) -> None:
    if member.heartbeat_call is not None:
        result.reply(member.heartbeat_call, _alive(group))
    member.heartbeat_call = call


def _refuse(result: Result, group: Group, request: Heartbeat, error: ErrorCode, call: int) -> None:
    result.reply(call, HeartbeatReply(error, "", group.generation_id, group.state.value))
    report_fenced(
        result, group, "heartbeat", error, request.member_id, request.group_instance_id, request.generation_id
    )
