"""SyncGroup: the leader sends the assignment, every member fetches its share (protocol.md §3)."""

from __future__ import annotations

from collections.abc import Mapping

from rota.core.group.assignment import (
    AssignmentJob,
    again_at_ms,
    ask_again,
    describe_changes,
    describe_topic_changes,
    is_current,
    leave_out,
    mark_synced,
    record_assignment,
    server_side_of,
    shares_of,
)
from rota.core.group.join import sync_mismatch
from rota.core.group.maintenance import hold_back
from rota.core.group.rebalance import REBALANCE_IN_PROGRESS, start_rebalance
from rota.core.group.records import AssignmentFailed, Trigger
from rota.core.group.rows import GroupState
from rota.core.group.sessions import (
    check_generation,
    release_heartbeats,
    report_fenced,
    start_session,
    start_sessions,
    stop_session,
    was_taken_along,
    why,
)
from rota.core.group.state import Group, Member, Result, record
from rota.core.group.succession import note_fetched, watch_candidates
from rota.core.types import attempt
from rota.protocol.causes import MEMBER_ENDS, Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import SyncGroup, SyncReply
from rota.protocol.texts import ERROR_MAX_CHARS, TOPICS_CHANGED, shortened


def sync_group(result: Result, group: Group, request: SyncGroup, call: int) -> None:
    """Park a follower until the leader's sync, or answer from the stored assignment."""
    refusal = _check(group, request)
    if refusal is not None:
        result.reply(call, refusal)
        report_fenced(
            result, group, "sync", refusal.error, request.member_id, request.group_instance_id, request.generation_id
        )
        return
    member = group.members[request.member_id]
    # Where the server assigns, the leader is an ordinary member.
    leads = group.is_leader(member.member_id) and server_side_of(group) is None
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            result.reply(call, SyncReply(REBALANCE_IN_PROGRESS, detail=group.rebalance_reason))
        case _ if request.leader_error is not None and not leads:
            result.reply(call, SyncReply(ErrorCode.INVALID_REQUEST, detail="only the leader may send an error"))
        case _ if request.leader_error is not None:
            _fail_assignment(result, group, member, request.leader_error, call)
        case GroupState.COMPLETING_REBALANCE:
            _park(result, group, member, call)
            if leads:
                # The generation is Stable once the store has this; then all waiting members are answered.
                record_assignment(result, group, dict(request.assignments), resync=False, trigger=Trigger("", ""))
                result.reason = f"leader {member.member_id} assigned generation {group.generation_id}"
                answer_syncs(result, group)
        case GroupState.STABLE if leads and _is_resync(member, request):
            _resync(result, group, member, request, call)
        case GroupState.STABLE:
            mark_synced(group, member)
            member.skip_assignment = False
            result.reply(call, sync_reply(group, member))
            note_fetched(result, group, member)
        case state:
            raise AssertionError(f"a group with members cannot be {state}")


def sync_reply(group: Group, member: Member) -> SyncReply:
    """This member's share of the current generation."""
    return SyncReply(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
        fencing_token=group.token_of(member),
    )


def _check(group: Group, request: SyncGroup) -> SyncReply | None:
    instance_id, subject = request.group_instance_id, request.subject
    error = check_generation(group, request.member_id, instance_id, request.generation_id, subject)
    if error is ErrorCode.ILLEGAL_GENERATION and was_taken_along(group, request.member_id, request.generation_id):
        return SyncReply(REBALANCE_IN_PROGRESS, detail=group.rebalance_reason)
    if error is not ErrorCode.NONE:
        return SyncReply(error, why(error, group, instance_id))
    named = (request.protocol_type, request.protocol_name)
    # A sync need not name either, and before its first generation a group has no protocol.
    pairs = zip(named, (group.protocol_type, group.protocol_name), strict=True)
    if any(of_request is not None and of_group and of_request != of_group for of_request, of_group in pairs):
        return SyncReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail=sync_mismatch(group, *named))
    return None


def _park(result: Result, group: Group, member: Member, call: int) -> None:
    """Hold the answer until the leader has synced; being parked proves life."""
    if member.sync_call is not None:
        superseded = SyncReply(REBALANCE_IN_PROGRESS, detail="a later sync took its place")
        result.reply(member.sync_call, superseded)
    member.sync_call = call
    stop_session(result, group, member)
    mark_synced(group, member)


def answer_syncs(result: Result, group: Group) -> None:
    """Answer all parked syncs with the members' shares."""
    answered = []
    for member in group.members.values():
        if member.sync_call is not None:
            result.reply(member.sync_call, sync_reply(group, member))
            member.sync_call = None
            member.has_fetched, member.taken_along_from = True, None
            answered.append(member)
    start_sessions(result, group, answered)


def _fail_assignment(result: Result, group: Group, leader: Member, error: str, call: int) -> None:
    """The leader cannot assign, or not assign anew: the generation fails for all members, with the leader's message."""
    reply = SyncReply(ErrorCode.ASSIGNMENT_FAILED, detail=error)
    result.reply(call, reply)
    reason = f"leader {leader.member_id} could not assign: {error}"
    trigger = Trigger(Cause.ASSIGNMENT_FAILED, reason, leader.member_id)
    if hold_back(result, group, trigger):
        return
    record(result, group, AssignmentFailed(group.generation_id, leader.member_id, error))
    start_session(result, group, leader)
    start_rebalance(result, group, trigger, parked_syncs=reply)


def _is_resync(member: Member, request: SyncGroup) -> bool:
    """A changed assignment from the leader of a Stable group opens a generation of its own.

    Not from a returning static leader that has to skip assigning: it only fetches.
    """
    return bool(request.assignments) and not member.skip_assignment


def _resync(result: Result, group: Group, leader: Member, request: SyncGroup, call: int) -> None:
    given = leave_out(group, dict(request.assignments))
    # A retry, because the first answer was lost: nothing changes.
    if all(given.get(m.member_id, b"") == m.assignment for m in group.members.values()):
        result.reply(call, sync_reply(group, leader))
        return
    if hold_back(result, group, Trigger(Cause.LEADER_REJOINED, f"leader {leader.member_id} assigned anew")):
        result.reply(call, sync_reply(group, leader))
        return
    # It assigns to an id that a static member has given up since: the one that came back would lose its share.
    # So the group rebalances, and the leader learns the new ids.
    reason = ""
    if stranger := next((m for m, a in given.items() if a and m not in group.members), None):
        reason = f"leader {leader.member_id} assigned to {stranger}, which is no member any more"
    # It may believe that this is its first assignment, so that no member holds anything yet.
    elif leader.joined_again:
        reason = f"leader {leader.member_id} joined again, and may not know of its first assignment"
    if reason:
        result.reply(call, SyncReply(REBALANCE_IN_PROGRESS, detail=reason))
        start_rebalance(result, group, Trigger(Cause.ASSIGNMENT_OUTDATED, reason, leader.member_id))
        return
    trigger = Trigger(Cause.RESYNC, "the leader assigned anew", leader.member_id)
    record_assignment(result, group, given, resync=True, trigger=trigger)
    result.reply(call, sync_reply(group, leader))
    release_heartbeats(result, group)


# --- when the server assigns ------------------------------------------------------------------


def finish_job(result: Result, group: Group | None, job: AssignmentJob, outcome: Mapping[str, bytes] | str) -> None:
    """Take in the assignments, or why there are none. They count only for the group that they were computed for.

    A Stable group with changed topics is resynced: the generation is raised, and members fetch their new shares.
    Where a member would lose a partition it rebalances instead, because another one that is given it would begin before
    that member had stopped. Where no assignment could be computed, members keep theirs.
    """
    if group is None or not is_current(group, job):
        return
    if isinstance(outcome, Mapping):
        outcome = leave_out(group, outcome)
    match group.state, outcome:
        case GroupState.COMPLETING_REBALANCE, str():
            # As if the leader had sent an error. A strategy of a plug-in may say anything.
            error = shortened(outcome, ERROR_MAX_CHARS)
            record(result, group, AssignmentFailed(group.generation_id, group.leader_id or "", error))
            trigger = Trigger(Cause.ASSIGNMENT_FAILED, f"the server could not assign: {error}")
            start_rebalance(result, group, trigger, SyncReply(ErrorCode.ASSIGNMENT_FAILED, detail=error))
        case GroupState.COMPLETING_REBALANCE, Mapping():
            record_assignment(result, group, outcome, resync=False)
            answer_syncs(result, group)
            watch_candidates(result, group)
        case GroupState.STABLE, Mapping() if group.is_frozen(result.now_ms):
            pass  # It is asked again when the freeze ends.
        case GroupState.STABLE, Mapping() if _takes_away(group, job, outcome):
            start_rebalance(result, group, _reassigns(group, outcome, result.now_ms))
        case GroupState.STABLE, Mapping() if any(
            outcome.get(member_id, b"") != share for member_id, share in shares_of(group).items()
        ):
            record_assignment(result, group, outcome, resync=True)
            release_heartbeats(result, group)
            watch_candidates(result, group)
    if group.state is GroupState.STABLE:
        ask_again(result, group)


def _reassigns(group: Group, assignments: Mapping[str, bytes], now_ms: int) -> Trigger:
    """Why these assignments make a Stable group rebalance."""
    changes, waits_until_ms = describe_topic_changes(group, assignments), again_at_ms(group)
    if not changes and waits_until_ms is not None and waits_until_ms <= now_ms:
        reason = f"what waited for departed members is given out{describe_changes(group, assignments)}"
        return Trigger(Cause.RETURN_DELAY_OVER, reason)
    if not changes and group.rebalance_cause in MEMBER_ENDS:
        reason = f"copies are given out anew, for {group.rebalance_reason}"
        return Trigger(Cause(group.rebalance_cause), reason, group.rebalance_by)
    return Trigger(Cause.TOPICS_CHANGED, f"{TOPICS_CHANGED}{changes}")


def _takes_away(group: Group, job: AssignmentJob, assignments: Mapping[str, bytes]) -> bool:
    """Whether a member would lose something. True if a plug-in's function raises: a rebalance is always safe."""
    return attempt(True, job.side.takes_away, shares_of(group), assignments)
