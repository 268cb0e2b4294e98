"""Rebalances: members that leave or expire, and the join phase, its timers and its end.

A member that leaves or expires starts one, unless standbys take over; a join does (`join.py`).

Where the leader of a Stable group is gone and the other members hold nothing (type `leader`), there is nothing to wait
for: the coordinator has their metadata, and they have nothing to give up. It takes them along into the next generation.
So the departure, the generation and its leader are one transaction, and a candidate that is slow or silent delays no
other one. Members that were taken along are asked to join, as in any rebalance, and are answered at once with the
generation that is there; those that understand it get that answer together with the request, and do not join. One that
does not sync within the rebalance timeout is removed, as after any join phase.
Kafka has none of this.
"""

from __future__ import annotations

from rota.core.group.assignment import (
    begin_assigning,
    clear_survived,
    judge_falls,
    note_fall,
    promote_standbys,
    record_assignment,
    server_side_of,
)
from rota.core.group.records import (
    GenerationCompleted,
    GenerationRaised,
    GroupEmptied,
    LeaderChanged,
    MemberExpired,
    MemberLeft,
    MemberRemoved,
    RebalanceStarted,
    Trigger,
    trigger_of,
)
from rota.core.group.sessions import (
    check_caller,
    check_member,
    member_to_expire,
    release_heartbeats,
    report_fenced,
    report_gaps,
    start_session,
    start_sessions,
)
from rota.core.group.state import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    Group,
    Member,
    Result,
    StepsDown,
    Timer,
    TimerKind,
    record,
)
from rota.core.group.succession import (
    can_hand_over,
    choose_leader,
    due_preemption,
    handing_over,
    lacks_only_a_leader,
    watch_candidates,
)
from rota.core.types import attempt
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    HeartbeatReply,
    JoinedMember,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    LeftMember,
    RebalanceGroup,
    RebalanceReply,
    SyncReply,
)

# --- join phases ----------------------------------------------------------------------------------


REBALANCE_IN_PROGRESS = ErrorCode.REBALANCE_IN_PROGRESS
LEADERLESS_WAIT_MS = 100
"""Minimum wait in a group without a possible leader: its members may have joined with no timeout at all."""


def rebalance_or_complete(result: Result, group: Group, trigger: Trigger) -> None:
    """After a member joined or left: start a join phase, or complete the running one if all have joined."""
    if group.state is PREPARING_REBALANCE:
        maybe_complete_join(result, group)
    else:
        start_rebalance(result, group, trigger)


def replace_departed(result: Result, group: Group, trigger: Trigger) -> None:
    """Members have left a generation, or expired: their standbys are promoted, or the others join anew."""
    if promote_standbys(result, group, trigger):
        release_heartbeats(result, group)
    else:
        start_rebalance(result, group, trigger)


def start_rebalance(result: Result, group: Group, trigger: Trigger, parked_syncs: SyncReply | None = None) -> None:
    """Enter the join phase. From Empty it lasts the initial delay, so that a fleet starts in one generation."""
    reply = parked_syncs or SyncReply(REBALANCE_IN_PROGRESS, detail=trigger.reason)
    for member in group.members.values():
        if member.sync_call is not None:
            result.reply(member.sync_call, reply)
            member.sync_call = None
            # A member that joined again before this answer arrived is parked, and so alive, already.
            if member.join_call is None:
                start_session(result, group, member)
    group.sync_deadline_ms = None
    elects_at_once = group.state is STABLE and lacks_only_a_leader(group)
    record(result, group, RebalanceStarted(trigger.reason, trigger.by, group.state.value, trigger.cause))
    result.reason = trigger.reason
    if not elects_at_once:
        release_heartbeats(result, group)
    if group.initial:
        delay_ms = result.limits.initial_rebalance_delay_ms
        group.newcomer_arrived = False
        group.join_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        _set_join_timer(result, group, delay_ms)
    elif group.all_joined():
        complete_join(result, group)
    elif elects_at_once:
        _take_along(result, group)
    else:
        _set_join_timer(result, group, group.rebalance_timeout_ms())


def _take_along(result: Result, group: Group) -> None:
    """Let all members count as joined, except for static ones that missed the last join phase: these may be gone.

    Parked heartbeats are answered as in any rebalance, and with what the join that they ask for would be answered.
    That renews no session: a heartbeat in the new generation does, and shows that the member has its share.
    """
    for member in group.members.values():
        if not member.missed_phase:
            member.joined = True  # `joined_count` is not read before the phase ends, which is now.
            if member.taken_along_from is None:
                member.taken_along_from = group.join_generation_id
    complete_join(result, group)
    for member in group.members.values():
        if member.heartbeat_call is not None:
            entered = join_reply(group, member)
            reply = HeartbeatReply(
                REBALANCE_IN_PROGRESS, group.rebalance_reason, group.generation_id, group.state.value, entered
            )
            result.reply(member.heartbeat_call, reply)
            member.heartbeat_call = None


def force_rebalance(result: Result, group: Group, request: RebalanceGroup) -> RebalanceReply:
    """An administrator has the group agree anew, by another leader where `step_down` asks so. Not in Kafka.

    It starts a join phase, or goes along with the one that is under way; no member is removed by it.
    """
    leader_id = group.generation_leader_id
    if group.state is EMPTY:
        return RebalanceReply(ErrorCode.INVALID_REQUEST, "the group has no members")
    if request.step_down and leader_id is None:
        return RebalanceReply(ErrorCode.INVALID_REQUEST, "the group has no leader")
    if group.is_frozen(result.now_ms):
        why = f"{group.says_frozen(result.now_ms)}: unfreeze it first"
        return RebalanceReply(ErrorCode.INVALID_REQUEST, why)
    asked = f"leader {leader_id} was asked to step down" if request.step_down else "a rebalance was asked for"
    cause = Cause.STEP_DOWN if request.step_down else Cause.REQUESTED
    asked = f"{asked}: {request.reason}" if request.reason else asked
    if request.step_down and leader_id and can_hand_over(group, leader_id):
        wish = group.steps_down = StepsDown(leader_id, result.now_ms, asked)
        watch_candidates(result, group)
        if group.preempt_at_ms == result.now_ms:
            on_preempt_timer(result, group, result.now_ms)
            return RebalanceReply(generation_id=group.generation_id)
        group.steps_down = wish  # It is asked when another member has joined.
    elif request.step_down:
        group.passed_over = leader_id
    if group.state is not PREPARING_REBALANCE:
        start_rebalance(result, group, Trigger(cause, asked))
    return RebalanceReply(generation_id=group.generation_id)


def on_preempt_timer(result: Result, group: Group, at_ms: int) -> None:
    """A candidate has outranked the leader of a Stable group for long enough: ask the leader to end its work and join.

    The request opens a generation of the same members. The leader works on until its work has ended.
    """
    if group.state is not STABLE or group.preempt_at_ms != at_ms:
        return
    due = due_preemption(group, result.now_ms)
    if due is None:
        watch_candidates(result, group)
        return
    side = server_side_of(group)
    assert side is not None
    group.steps_down = None
    group.preempt_at_ms = None
    assignments = attempt(None, side.checked_assign, handing_over(group, due.member_id), {})
    if assignments is None:
        return  # The leader stays.
    reason = f"{due.reason}: it is asked to hand over to {due.member_id}"
    record_assignment(result, group, assignments, resync=True, trigger=Trigger(Cause.RESYNC, reason))
    release_heartbeats(result, group)
    watch_candidates(result, group)


def raise_generation(
    result: Result,
    group: Group,
    generation_id: int,
    reason: str,
    lost: tuple[tuple[str, int, int], ...] = (),
) -> None:
    """Let the next generation follow on `generation_id`, and have the members agree on it.

    No member holds the raised number, so each heartbeat, commit and fence check of the group is rejected until then.
    """
    record(result, group, GenerationRaised(generation_id, group.generation_id, lost, reason))
    if group.state in (STABLE, COMPLETING_REBALANCE):
        start_rebalance(result, group, Trigger(Cause.GENERATION_RAISED, reason))


def maybe_complete_join(result: Result, group: Group) -> None:
    """The join phase is over when all members have joined, except that the initial delay always runs out."""
    if group.state is PREPARING_REBALANCE and not group.initial and group.all_joined():
        complete_join(result, group)


def on_join_timer(result: Result, group: Group, at_ms: int) -> None:
    """The initial delay or the rebalance timeout ran out."""
    if group.join_deadline_ms != at_ms or group.state is not PREPARING_REBALANCE:
        return
    group.join_deadline_ms = None
    if group.initial and group.newcomer_arrived and group.join_remaining_ms > 0:
        _extend_initial_delay(result, group)
    else:
        complete_join(result, group)


def complete_join(result: Result, group: Group) -> None:
    """End the join phase: the members that joined are the next generation.

    Dynamic members that did not rejoin are removed; static ones stay until their session is over.
    """
    group.join_deadline_ms = None
    for member in [m for m in group.members.values() if not m.joined and m.image.group_instance_id is None]:
        drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
        late = "did not rejoin within the rebalance timeout"
        record(result, group, MemberExpired(member.member_id, None, late, Cause.MEMBER_EXPIRED))
    if not group.members:
        empty_group(result, group, _last_departure(group))
    elif (leader_id := choose_leader(group, protocol_name := group.select_protocol())) is None:
        # Only static members remain and none is here: wait until they come or their sessions end.
        _set_join_timer(result, group, max(group.rebalance_timeout_ms(), LEADERLESS_WAIT_MS))
    else:
        _complete_generation(result, group, leader_id, protocol_name)


def _last_departure(group: Group) -> Trigger:
    """How the last member went. A new owner has not seen it go: the group's row says it."""
    if group.last_gone is not None:
        return trigger_of(group.last_gone)
    reason = group.rebalance_reason or "no member is left"
    return Trigger(group.rebalance_cause or Cause.OTHER, reason, group.rebalance_by)


def empty_group(result: Result, group: Group, trigger: Trigger) -> None:
    """The last member is gone. The generation is raised, so that no token or commit of the old one is accepted."""
    group.join_deadline_ms = None
    group.sync_deadline_ms = None
    group.pending_sync.clear()
    judge_falls(result, group)
    record(result, group, GroupEmptied(group.generation_id + 1, trigger.reason, trigger.cause, trigger.by))
    result.reason = trigger.reason


def join_reply(
    group: Group, member: Member, *, skip_assignment: bool = False, is_served: bool | None = None
) -> JoinReply:
    """The current generation as `member` sees it: the leader gets the member list, if it is to assign.

    `is_served` is whether the server assigns, for callers that have looked already.
    """
    leads = group.is_leader(member.member_id)
    if is_served is None:
        is_served = server_side_of(group) is not None
    by_server = leads and is_served
    return JoinReply(
        member_id=member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id or "",
        members=tuple(
            JoinedMember(m.image.member_id, m.image.group_instance_id, m.image.metadata_for(group.protocol_name))
            for m in (group.members.values() if leads and not by_server else ())
        ),
        skip_assignment=skip_assignment or by_server,
        fencing_token=group.token_of(member),
        assignment=member.assignment if is_served and group.state is STABLE else None,
    )


def drop_parked(result: Result, member: Member, error: ErrorCode, detail: str = "", *, member_id: str = "") -> None:
    """Answer the parked calls of a member that is being removed."""
    if member.join_call is not None:
        result.reply(member.join_call, JoinReply(error, detail, member_id=member_id))
        member.join_call = None
    if member.sync_call is not None:
        result.reply(member.sync_call, SyncReply(error, detail))
        member.sync_call = None
    if member.heartbeat_call is not None:
        result.reply(member.heartbeat_call, HeartbeatReply(error, detail))
        member.heartbeat_call = None


def _extend_initial_delay(result: Result, group: Group) -> None:
    """Newcomers keep arriving: wait for min(delay, what remains), and charge it to what remains (§8.1)."""
    delay_ms = min(result.limits.initial_rebalance_delay_ms, group.join_remaining_ms)
    group.newcomer_arrived = False
    group.join_remaining_ms = max(group.join_remaining_ms - delay_ms, 0)
    _set_join_timer(result, group, delay_ms)


def _set_join_timer(result: Result, group: Group, delay_ms: int) -> None:
    group.join_deadline_ms = result.now_ms + delay_ms
    result.set_timer(TimerKind.JOIN, group, "", group.join_deadline_ms)


def _complete_generation(result: Result, group: Group, leader_id: str, protocol_name: str) -> None:
    former_leader_id = group.generation_leader_id
    record(
        result,
        group,
        GenerationCompleted(
            generation_id=group.generation_id + 1,
            protocol_type=group.protocol_type,
            protocol_name=protocol_name,
            leader_id=leader_id,
            member_ids=tuple(group.members),
            started_at_ms=group.rebalance_started_ms,
            reason=group.rebalance_reason,
            by=group.rebalance_by,
            cause=group.rebalance_cause,
        ),
    )
    if former_leader_id != leader_id:
        reason, cause = group.rebalance_reason, group.rebalance_cause
        record(result, group, LeaderChanged(former_leader_id or "", leader_id, reason, cause))
    judge_falls(result, group)
    assert group.state is COMPLETING_REBALANCE
    group.joined_count = 0
    group.passed_over = None
    for member in group.members.values():
        member.missed_phase = not member.joined
        if member.missed_phase:
            member.taken_along_from = None
        member.joined = member.has_fetched = member.joined_again = member.skip_assignment = False
        group.pending_sync[member.member_id] = None
    group.sync_deadline_ms = result.now_ms + group.rebalance_timeout_ms()
    result.set_timer(TimerKind.SYNC, group, "", group.sync_deadline_ms)
    side = server_side_of(group)
    if side is not None:
        begin_assigning(result, group, side)
    _answer_joins(result, group, is_served=side is not None)
    watch_candidates(result, group)


def _answer_joins(result: Result, group: Group, *, is_served: bool) -> None:
    """All joins are answered at once, and every session starts again, also of members that did not join. Sessions of
    members that were taken along go on: nothing has shown that these live.
    """
    for member in group.members.values():
        if member.join_call is not None:
            result.reply(member.join_call, join_reply(group, member, is_served=is_served))
            member.join_call = None
    start_sessions(result, group, [member for member in group.members.values() if member.taken_along_from is None])


# --- leaves and removals (protocol.md §3) ---------------------------------------------------------


def leave_group(result: Result, group: Group, request: LeaveGroup) -> LeaveReply:
    """Remove the members, answer with an error for ids that are none, then have the others rebalance, once."""
    members_before = len(group.members)
    pending_before = len(group.pending)
    answers = tuple(_leave(result, group, member, request) for member in request.members)
    left = [each for each, a in zip(request.members, answers, strict=True) if a.error is ErrorCode.NONE]
    if len(group.members) < members_before:
        _after_departure(result, group, left, by_admin=request.by_admin)
    elif len(group.pending) < pending_before:
        # A pending id was never in the generation: its going only ends the wait for it (§9).
        maybe_complete_join(result, group)
    return LeaveReply(members=answers)


def _leave(result: Result, group: Group, leaving: LeavingMember, request: LeaveGroup) -> LeftMember:
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if not member_id and instance_id is not None:
        current = group.static_members.get(instance_id)
        error = check_caller(group.members[current], request.subject) if current else ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending and instance_id is None:
        del group.pending[member_id]
        return LeftMember(member_id, instance_id, ErrorCode.NONE)
    else:
        current = member_id
        error = check_member(group, member_id, instance_id, request.subject)
        report_fenced(result, group, "leave", error, member_id, instance_id, -1)
    if error is ErrorCode.NONE:
        assert current is not None
        silent_ms = request.silent_for_ms
        if silent_ms is not None and _is_alive(group.members[current], result.now_ms - silent_ms):
            return LeftMember(member_id, instance_id, ErrorCode.INVALID_REQUEST)
        _dismiss(result, group, current, leaving, request)
    return LeftMember(member_id, instance_id, error)


def _is_alive(member: Member, since_ms: int) -> bool:
    """Whether the member has renewed its session since then, or waits for the answer to a parked call."""
    return member.heartbeat_call is not None or member.seen_at_ms is None or member.seen_at_ms > since_ms


def _dismiss(result: Result, group: Group, member_id: str, leaving: LeavingMember, request: LeaveGroup) -> None:
    member = group.members[member_id]
    drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
    report_gaps(result, group, (member,))
    cause = _cause(leaving, by_admin=request.by_admin)
    if leaving.failed_unit and not request.by_admin:
        note_fall(result, group, member, Cause.UNIT_FAILED, leaving.reason, leaving.failed_unit)
    elif request.silent_for_ms is not None and not request.by_admin:
        note_fall(result, group, member, Cause.MEMBER_LEFT, leaving.reason)
    elif not request.by_admin:
        clear_survived(result, group, member)
    departure = MemberRemoved if request.by_admin else MemberLeft
    record(result, group, departure(member_id, member.image.group_instance_id, leaving.reason, cause))


def _cause(leaving: LeavingMember, *, by_admin: bool) -> Cause:
    if by_admin:
        return Cause.MEMBER_REMOVED
    return Cause.UNIT_FAILED if leaving.failed_unit else Cause.MEMBER_LEFT


def _after_departure(result: Result, group: Group, left: list[LeavingMember], *, by_admin: bool) -> None:
    gone, failed_unit = [each.member_id or each.group_instance_id or "" for each in left], left[0].failed_unit
    verb = "was removed" if by_admin else f"left: its work on {failed_unit} failed" if failed_unit else "left"
    reason = f"{', '.join(gone[:3])}{' and others' if len(gone) > 3 else ''} {verb}"
    trigger = Trigger(_cause(left[0], by_admin=by_admin), reason, gone[0] if len(gone) == 1 else "")
    # Unlike an expiry, a leave does not end the initial delay early: so does Kafka.
    if not (group.state is PREPARING_REBALANCE and group.initial):
        _go_on_without(result, group, trigger)


# --- the end of a member's time (protocol.md §5) --------------------------------------------------


def removes_members(group: Group, timer: Timer, now_ms: int) -> bool:
    """Return whether this timer removes members now because they are silent. The owner first reads what has arrived."""
    match timer.kind:
        case TimerKind.SESSION:
            member = group.members.get(timer.member_id)
            if member is None or member.session_armed_ms != timer.at_ms:
                return False
            return member.session_deadline_ms is not None and member.session_deadline_ms <= now_ms
        case TimerKind.JOIN:
            return group.join_deadline_ms == timer.at_ms and not group.all_joined()
        case TimerKind.SYNC:
            return group.sync_deadline_ms == timer.at_ms
        case _:
            return False


def on_session_timer(result: Result, group: Group, timer: Timer) -> None:
    """Expire the member, unless it has shown since that it lives."""
    member = member_to_expire(result, group, timer)
    if member is None:
        return
    member_id, instance_id = member.member_id, member.image.group_instance_id
    silent = f"no heartbeat within its session timeout of {member.image.session_timeout_ms} ms"
    drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
    report_gaps(result, group, (member,))
    note_fall(result, group, member, Cause.MEMBER_EXPIRED, silent)
    gone = MemberExpired(member_id, instance_id, silent, Cause.MEMBER_EXPIRED)
    record(result, group, gone)
    _go_on_without(result, group, trigger_of(gone))


def _go_on_without(result: Result, group: Group, trigger: Trigger) -> None:
    """A member is gone: the join phase may be over, standbys take over, the others rebalance, or the group is empty."""
    if group.state is PREPARING_REBALANCE:
        if group.all_joined():
            complete_join(result, group)
    elif group.members:
        replace_departed(result, group, trigger)
    else:
        empty_group(result, group, trigger)


def on_pending_timer(result: Result, group: Group, timer: Timer) -> None:
    """No member has joined by this id."""
    if group.pending.get(timer.member_id) != timer.at_ms:
        return
    del group.pending[timer.member_id]
    if group.state is PREPARING_REBALANCE and group.all_joined():
        complete_join(result, group)


def on_sync_timer(result: Result, group: Group, timer: Timer) -> None:
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
    _go_on_without(result, group, Trigger(Cause.SYNC_TIMEOUT, reason, by))
