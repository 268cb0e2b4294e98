"""Members as their calls show them: whether a call is from one, until when its session lasts, and heartbeats.

A session is a deadline in memory. A heartbeat moves it on; a parked call stops it, because that call itself shows that
the member is there. Nothing of it is journalled: a new owner of the shard starts every session afresh, as Kafka does.

A timer is not moved with the deadline. One that fires early is set again: a heartbeat costs an assignment, no timer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from rota.core.group.assignment import mark_synced, server_side_of
from rota.core.group.records import GapCount, RequestFenced, SessionStats, gap_class
from rota.core.group.state import PREPARING_REBALANCE, STABLE, Group, Member, Result, Timer, TimerKind, record
from rota.core.group.succession import note_fetched
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    MemberHeartbeat,
)

# --- is this a current member? The order of the checks is Kafka's ---------------------------------


FENCED_INSTANCE_ID = ErrorCode.FENCED_INSTANCE_ID
ILLEGAL_GENERATION = ErrorCode.ILLEGAL_GENERATION
NONE = ErrorCode.NONE
UNKNOWN_MEMBER_ID = ErrorCode.UNKNOWN_MEMBER_ID


NOT_THE_CALLER = "another caller joined as this member"


def check_caller(member: Member, subject: str) -> ErrorCode:
    """Whether this caller may act as the member: it joined as it, or either of them is not known.

    A member that joined without rules has no caller, and gets one when it joins in a later join phase.
    """
    is_callers = not subject or member.image.subject in ("", subject)
    return NONE if is_callers else ErrorCode.GROUP_AUTHORIZATION_FAILED


def taken_over(group_instance_id: str, host: str) -> str:
    """Why a member was fenced, for the journal and for the fenced process: its operator has to find the other one."""
    return f"another process{f' at {host}' if host else ''} joined as {group_instance_id}"


def why(error: ErrorCode, group: Group, group_instance_id: str | None) -> str:
    """What an answer with this error says for people."""
    if error is FENCED_INSTANCE_ID and group_instance_id is not None:
        return taken_over(group_instance_id, group.members[group.static_members[group_instance_id]].image.host)
    return NOT_THE_CALLER if error is ErrorCode.GROUP_AUTHORIZATION_FAILED else ""


def check_member(group: Group, member_id: str, group_instance_id: str | None, subject: str) -> ErrorCode:
    """Fenced instance first, then unknown member (protocol.md §8.8), then whether it is the caller's."""
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is None:
            return UNKNOWN_MEMBER_ID
        if current != member_id:
            return FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None:
        return UNKNOWN_MEMBER_ID
    return check_caller(member, subject) if subject else NONE


def check_generation(
    group: Group, member_id: str, group_instance_id: str | None, generation_id: int, subject: str
) -> ErrorCode:
    """A current member, and the current generation."""
    error = check_member(group, member_id, group_instance_id, subject)
    if error is NONE and generation_id != group.generation_id:
        return ILLEGAL_GENERATION
    return error


def was_taken_along(group: Group, member_id: str, generation_id: int) -> bool:
    """Whether this is an earlier generation, which the member may still hold, for it was taken along into the present
    one: it is to join. See `rebalance.py`.
    """
    member = group.members.get(member_id)
    first = None if member is None else member.taken_along_from
    return first is not None and first <= generation_id < group.join_generation_id


def is_in_generation(group: Group, member_id: str) -> bool:
    """Whether the member is in the current generation: the rule of commits and of fence checks (S9).

    A newcomer of a join phase under way is a member, but only of the next generation. Transactions in Postgres have the
    same rule, because the store has the rows of settled members only.
    """
    member = group.members.get(member_id)
    return member is not None and member.settled is not None


def report_fenced(
    result: Result,
    group: Group,
    operation: str,
    error: ErrorCode,
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
) -> None:
    """Record the request of a zombie in the journal, once for a member, operation and generation."""
    if error is not FENCED_INSTANCE_ID and (error is not ILLEGAL_GENERATION or generation_id >= group.generation_id):
        return
    if len(group.fenced_reported) < 1_000 and (operation, member_id) not in group.fenced_reported:
        group.fenced_reported.add((operation, member_id))
        record(result, group, RequestFenced(member_id, group_instance_id, operation, error.value, generation_id))


# --- sessions -------------------------------------------------------------------------------------


MemberName = tuple[str, str, str]
"""Namespace, group id, member id."""


def renew_session(result: Result, group: Group, member: Member) -> None:
    """`renew_sessions` of one member."""
    renew_sessions(result, group, (member,))


def renew_sessions(result: Result, group: Group, members: Iterable[Member]) -> None:
    """The members show that they live: count the gap since each last did, and start its session afresh.

    While a call of its is parked, that call shows it. This is the hottest path of all, so it is written out.
    """
    now_ms, seen = result.now_ms, result.seen
    # Members that share a message were last seen together as a rule: their gaps are of one class, and one deadline in
    # memory does for all of them.
    last_gap_ms, number, last_timeout_ms, until_ms = 0, 0, 0, 0
    for member in members:
        deadline_ms = member.session_deadline_ms
        if deadline_ms is None:
            continue
        timeout_ms, gaps = member.image.session_timeout_ms, member.gaps
        gap_ms = now_ms - deadline_ms + timeout_ms
        if gap_ms != last_gap_ms:
            last_gap_ms, number = gap_ms, gap_class(gap_ms)
        if gaps is None:
            gaps = member.gaps = GapCount(now_ms, number)
        if number == gaps.number:
            gaps.in_a_row += 1
        else:
            gaps.begin_row(number)
        if last_gap_ms > gaps.longest_ms:  # noqa: PLR1730 - max() takes longer
            gaps.longest_ms = last_gap_ms
        if timeout_ms != last_timeout_ms:
            last_timeout_ms, until_ms = timeout_ms, now_ms + timeout_ms
        member.session_deadline_ms = until_ms
        armed_ms = member.session_armed_ms
        if armed_ms is None or armed_ms > until_ms:
            _arm(result, group, member, until_ms)
        if seen is not None:
            seen[member] = group


def start_session(result: Result, group: Group, member: Member) -> None:
    """`start_sessions` of one member."""
    start_sessions(result, group, (member,))


def start_sessions(result: Result, group: Group, members: Iterable[Member]) -> None:
    """Start sessions afresh where that is the coordinator's doing, and says nothing of the members' regularity."""
    deadlines: dict[int, int] = {}  # by timeout: a deadline of thousands of members is in memory once
    for member in members:
        timeout_ms = member.image.session_timeout_ms
        deadline_ms = deadlines.setdefault(timeout_ms, result.now_ms + timeout_ms)
        set_session_deadline(result, group, member, deadline_ms)
        if result.seen is not None:
            result.seen[member] = group


def stop_session(result: Result, group: Group, member: Member) -> None:
    """A parked call proves from here on that the member lives."""
    member.session_deadline_ms = None
    if result.seen is not None:
        result.seen[member] = group


def set_session_deadline(result: Result, group: Group, member: Member, deadline_ms: int) -> None:
    """Let the session end then, and see to a timer that fires by then."""
    member.session_deadline_ms = deadline_ms
    armed_ms = member.session_armed_ms
    if armed_ms is None or armed_ms > deadline_ms:
        _arm(result, group, member, deadline_ms)


def _arm(result: Result, group: Group, member: Member, at_ms: int) -> None:
    member.session_armed_ms = at_ms
    result.set_timer(TimerKind.SESSION, group, member.member_id, at_ms)


# --- the end of a session ---------------------------------------------------------------------


def member_to_expire(result: Result, group: Group, timer: Timer) -> Member | None:
    """The member with the expired session. A stale timer does nothing; an early one is set again."""
    member = group.members.get(timer.member_id)
    if member is None or member.session_armed_ms != timer.at_ms:
        return None
    member.session_armed_ms = None
    deadline_ms = member.session_deadline_ms
    if deadline_ms is None:
        return None
    if deadline_ms > result.now_ms:
        _arm(result, group, member, deadline_ms)
        return None
    return member


# --- between replicas -------------------------------------------------------------------------


def shorten_sessions(
    result: Result,
    groups: Iterable[Group],
    seen_ms_ago: Mapping[MemberName, int],
    grace_ms: int,
    unknown_ms_ago: int | None,
) -> None:
    """Members in `seen_ms_ago` keep the rest of their sessions and `grace_ms`; the others keep their deadlines.

    With `unknown_ms_ago` each of them may have been seen once more, so long ago: no session is shorter than from there.
    """
    for group in groups:
        for member in group.members.values():
            ago_ms = seen_ms_ago.get((group.namespace, group.group_id, member.member_id))
            if ago_ms is not None and member.session_deadline_ms is not None:
                session_ms = member.image.session_timeout_ms
                left_ms = max(0, session_ms - ago_ms) + grace_ms
                if unknown_ms_ago is not None:
                    left_ms = max(left_ms, session_ms - unknown_ms_ago)
                deadline_ms = min(member.session_deadline_ms, result.now_ms + left_ms)
                set_session_deadline(result, group, member, deadline_ms)


# --- how regularly members are seen -----------------------------------------------------------


def report_gaps(result: Result, group: Group, members: Iterable[Member]) -> None:
    """One journal entry for all these members, if any was seen since the last; their counts start anew."""
    reported = []
    for member in members:
        gaps, member.gaps = member.gaps, None
        if gaps is not None:
            member.longest_gap_ms = gaps.longest_ms
            image, counted = member.image, tuple(sorted(gaps.classes.items()))
            reported.append(
                (image.member_id, image.client_id, image.session_timeout_ms, gaps.since_ms, gaps.longest_ms, counted)
            )
    if reported:
        record(result, group, SessionStats(tuple(reported)))


# --- heartbeats (protocol.md §3) ------------------------------------------------------------------


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
        result.replies.append((call, _alive(group)))


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
    return HeartbeatReply(_NONE, "", group.generation_id, group.state.value)


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
