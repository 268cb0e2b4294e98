"""Heartbeat: the sign of life, and the fastest way to learn that the group moves (protocol.md §3)."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from rota.group.assignment import mark_synced, server_side_of
from rota.group.membership_checks import check_member, report_fenced, was_taken_along, why
from rota.group.result import Result
from rota.group.sessions import renew_session, renew_sessions
from rota.group.state import PREPARING_REBALANCE, STABLE, Group, GroupState, Member
from rota.group.succession import note_fetched
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    MemberHeartbeat,
)

_NONE = ErrorCode.NONE


def heartbeat(result: Result, group: Group, request: Heartbeat, call: int) -> None:
    """Renew the session. With `wait_ms` the answer waits until the group leaves this generation."""
    error = check_member(group, request.member_id, request.group_instance_id, request.subject)
    is_to_join = group.state is PREPARING_REBALANCE
    if error is _NONE and not group.join_generation_id <= request.generation_id <= group.generation_id:
        is_to_join = was_taken_along(group, request.member_id, request.generation_id)
        error = _NONE if is_to_join else ErrorCode.ILLEGAL_GENERATION
    if error is not _NONE:
        _refuse(result, group, request, error, call)
        return
    member = group.members[request.member_id]
    renew_sessions(result, group, (member,))
    if not member.has_fetched and request.generation_id == group.generation_id:
        _note_share(result, group, member)
    if is_to_join:
        detail = group.rebalance_reason
        reply = HeartbeatReply(ErrorCode.REBALANCE_IN_PROGRESS, detail, group.generation_id, group.state.value)
        result.reply(call, reply)
    elif request.wait_ms and request.generation_id == group.generation_id:
        _park(result, group, member, call)
    else:
        result.replies.append((call, _reply_of(group.generation_id, group.state)))


def heartbeat_many(result: Result, group: Group, request: HeartbeatMany, call: int) -> None:
    """What `heartbeat` does without a wait, for several members, without a call for each: there may be thousands."""
    errors: list[HeartbeatError] = []
    alive: list[Member] = []
    members, static_members = group.members, group.static_members
    oldest, newest, subject = group.join_generation_id, group.generation_id, request.subject
    for beat in request.members:
        member_id = beat.member_id
        member = members.get(member_id)
        instance_id = beat.group_instance_id
        if (
            member is None
            or not oldest <= beat.generation_id <= newest
            or (instance_id is not None and static_members.get(instance_id) != member_id)
            or ((owner := member.image.subject) != subject and subject and owner)
        ):
            errors.append(_answer_one(result, group, beat, subject))
        else:
            alive.append(member)
    renew_sessions(result, group, alive)
    leader = members.get(group.leader_id or "")
    if group.pending_sync or (leader is not None and not leader.has_fetched):
        _note_shares(result, group, request, alive)
    if group.state is PREPARING_REBALANCE:
        refused = {error.member_id for error in errors}
        rejoining = (beat.member_id for beat in request.members if beat.member_id not in refused)
        errors += [HeartbeatError(m, ErrorCode.REBALANCE_IN_PROGRESS, group.rebalance_reason) for m in rejoining]
    reply = HeartbeatManyReply(generation_id=newest, state=group.state.value, errors=tuple(errors))
    result.reply(call, reply)


def _note_shares(result: Result, group: Group, request: HeartbeatMany, alive: list[Member]) -> None:
    present = {beat.member_id for beat in request.members if beat.generation_id == group.generation_id}
    for member in alive:
        if not member.has_fetched and member.member_id in present:
            _note_share(result, group, member)


def _note_share(result: Result, group: Group, member: Member) -> None:
    """A member sends heartbeats in the present generation: where the server assigns, its join was answered with its
    share, or it was taken along and got its share with the news of that.
    """
    if group.state is STABLE and server_side_of(group) is not None:
        mark_synced(group, member)
        note_fetched(result, group, member)


def unpark_heartbeat(result: Result, group: Group, member: Member, *, answer: bool) -> None:
    """The group did not move in the call's time. An answered wait shows that the member was there until now.

    The call renewed the session when it was received. So the time since the last renewal is never longer than its wait.
    """
    call, member.heartbeat_call = member.heartbeat_call, None
    if answer and call is not None:
        renewed_ms = (member.session_deadline_ms or result.now_ms) - member.image.session_timeout_ms
        renew_session(result, group, member)
        result.reply(call, replace(_alive(group), waited_ms=max(0, result.now_ms - renewed_ms)))


def release_heartbeats(result: Result, group: Group) -> None:
    """Answer parked heartbeats, because their group moves: no member is notified only after its heartbeat interval."""
    moving = group.state is PREPARING_REBALANCE
    reply = HeartbeatReply(
        ErrorCode.REBALANCE_IN_PROGRESS if moving else ErrorCode.NONE,
        detail=group.rebalance_reason if moving else "",
        generation_id=group.generation_id,
        state=group.state.value,
    )
    for member in group.members.values():
        if member.heartbeat_call is not None:
            result.reply(member.heartbeat_call, reply)
            member.heartbeat_call = None


def _alive(group: Group) -> HeartbeatReply:
    """A `generation_id` above the member's own notifies it of a resync: it syncs again, without joining."""
    return _reply_of(group.generation_id, group.state)


@lru_cache(maxsize=1_000)
def _reply_of(generation_id: int, state: GroupState) -> HeartbeatReply:
    """Replies are frozen, and to make one costs a fifth of a heartbeat."""
    return HeartbeatReply(_NONE, "", generation_id, state.value)


def _park(result: Result, group: Group, member: Member, call: int) -> None:
    if member.heartbeat_call is not None:
        result.reply(member.heartbeat_call, _alive(group))
    member.heartbeat_call = call


def _refuse(result: Result, group: Group, request: Heartbeat, error: ErrorCode, call: int) -> None:
    result.reply(
        call,
        HeartbeatReply(error, why(error, group, request.group_instance_id), group.generation_id, group.state.value),
    )
    report_fenced(
        result, group, "heartbeat", error, request.member_id, request.group_instance_id, request.generation_id
    )


def _answer_one(result: Result, group: Group, beat: MemberHeartbeat, subject: str) -> HeartbeatError:
    """A member that does not hold the present generation."""
    error = check_member(group, beat.member_id, beat.group_instance_id, subject)
    if error is _NONE and was_taken_along(group, beat.member_id, beat.generation_id):
        renew_session(result, group, group.members[beat.member_id])
        return HeartbeatError(beat.member_id, ErrorCode.REBALANCE_IN_PROGRESS, group.rebalance_reason)
    if error is _NONE:
        error = ErrorCode.ILLEGAL_GENERATION
    report_fenced(result, group, "heartbeat", error, beat.member_id, beat.group_instance_id, beat.generation_id)
    return HeartbeatError(beat.member_id, error, why(error, group, beat.group_instance_id))
