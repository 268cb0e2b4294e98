"""Planted bugs of the group's rules: defects that users could have met (F5, F7), and A1 to A12, planted in a review."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rota.group import apply, expiry, heartbeat, join, leave, offsets, rebalance, sessions, shard, sync
from rota.group.membership_checks import check_member
from rota.group.records import MemberExpired, MemberLeft, MemberRemoved
from rota.group.result import Result
from rota.group.state import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE
from rota.protocol.errors import ErrorCode
from tests.sim.registry import Patch, mutant

# --- the join phase -----------------------------------------------------------------------------------


@mutant
def full_group_waits_for_a_removed_member(patch: Patch) -> None:
    """L3 (F5): a member that loses its place in a full group is the last one that the phase waits for."""

    def reject(result: Result, group: Any, request: Any, refusal: Any, call: int) -> None:
        if refusal.error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            join._lose_place(result, group, request.member_id)
        result.reply(call, refusal)

    patch(shard, "reject_join", reject)


@mutant
def void_pending_id_does_not_end_the_join_phase(patch: Patch) -> None:
    """L3 (A5): the phase waits for its timeout after the last pending id is void."""

    def on_pending_timer(_result: Result, group: Any, timer: Any) -> None:
        if group.pending.get(timer.member_id) == timer.at_ms:
            del group.pending[timer.member_id]

    patch(expiry, "_on_pending_timer", on_pending_timer)


@mutant
def leave_does_not_end_the_join_phase(patch: Patch) -> None:
    """L3 (A7): the phase waits for its timeout after the last member that had not joined has left."""
    original = leave._after_departure

    def after_departure(result: Result, group: Any, limits: Any, gone: Any, *, by_admin: bool) -> None:
        if group.state is not PREPARING_REBALANCE:
            original(result, group, limits, gone, by_admin=by_admin)

    patch(leave, "_after_departure", after_departure)


@mutant
def static_members_go_at_the_rebalance_timeout(patch: Patch) -> None:
    """L1 (A9): a static member that has not joined again is removed although its session lasts."""
    original = rebalance.complete_join

    def complete_join(result: Result, group: Any) -> None:
        for member in [member for member in group.members.values() if not member.joined]:
            rebalance.drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
            why = "did not rejoin within the rebalance timeout"
            apply.record(result, group, MemberExpired(member.member_id, member.image.group_instance_id, why))
        original(result, group)

    patch(rebalance, "complete_join", complete_join)


@mutant
def room_for_one_member_too_many(patch: Patch) -> None:
    """S18 (A6): a full group takes one more member."""
    original = join._has_room

    def has_room(group: Any, member_id: str, limits: Any) -> bool:
        return original(group, member_id, replace(limits, group_max_size=limits.group_max_size + 1))

    patch(join, "_has_room", has_room)


# --- assignments --------------------------------------------------------------------------------------


@mutant
def departure_while_the_assignment_is_awaited_is_not_settled(patch: Patch) -> None:
    """S16 (A1): a restart finds the generation still waiting for its leader, without one of its members."""

    def gone(group: Any, record: Any, at_ms: int) -> None:
        settled = group.settled
        apply._member_gone(group, record, at_ms)
        if group.state is COMPLETING_REBALANCE:
            group.settled = settled

    patch(apply, "_APPLY", {**apply._APPLY, MemberLeft: gone, MemberExpired: gone, MemberRemoved: gone})


@mutant
def skipped_assignment_counts(patch: Patch) -> None:
    """S6 (A2): a returning static leader that was asked not to assign assigns anew."""
    patch(sync, "_is_resync", lambda _member, request: bool(request.assignments))


@mutant
def repeated_resync_opens_a_generation(patch: Patch) -> None:
    """S6 (A3): a leader's retry of its resync counts as another one."""
    original = sync._resync

    def resync(result: Result, group: Any, leader: Any, request: Any, call: int, limits: Any) -> None:
        given = dict(request.assignments)
        if any(given.get(member.member_id, b"") != member.assignment for member in group.members.values()):
            original(result, group, leader, request, call, limits)
            return
        apply.record(result, group, sync._synced(group, request, group.generation_id + 1, resync=True))
        result.reply(call, sync.sync_reply(group, leader))
        rebalance.release_heartbeats(result, group)

    patch(sync, "_resync", resync)


# --- progress -----------------------------------------------------------------------------------------


@mutant
def newcomer_commits(patch: Patch) -> None:
    """S9 (F7): a member that has only joined the next generation commits in this one."""
    patch(offsets, "is_in_generation", lambda _group, _member_id: True)


@mutant
def commit_while_the_assignment_is_awaited(patch: Patch) -> None:
    """S9 (A11): a commit lands in a generation that has no assignment yet."""
    original = offsets.check_commit

    def check_commit(group: Any, request: Any) -> ErrorCode:
        error = original(group, request)
        return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS else error

    patch(offsets, "check_commit", check_commit)


@mutant
def offsets_of_an_empty_group_expire_by_their_own_age(patch: Patch) -> None:
    """S10 (A12): offsets that were committed long ago are gone as soon as the last member has left."""
    original = offsets.expired_offsets

    def expired_offsets(group: Any, now_ms: int, limits: Any) -> Any:
        if group.state is not EMPTY:
            return original(group, now_ms, limits)
        over = [
            key for key, row in group.offsets.items() if row.committed_at_ms + limits.offsets_retention_ms <= now_ms
        ]
        return over, len(over) == len(group.offsets)

    patch(shard, "expired_offsets", expired_offsets)


# --- sessions -----------------------------------------------------------------------------------------


@mutant
def commit_does_not_renew_the_session(patch: Patch) -> None:
    """L1 (A4): a member that only commits is expired."""
    original = offsets.commit_offsets

    def commit(result: Result, group: Any, request: Any, call: int, limits: Any) -> None:
        member = group.members.get(request.member_id)
        deadline_ms = member.session_deadline_ms if member is not None else None
        original(result, group, request, call, limits)
        if member is not None:
            member.session_deadline_ms = deadline_ms

    patch(shard, "commit_offsets", commit)


@mutant
def heartbeat_of_an_older_generation_is_accepted(patch: Patch) -> None:
    """S15 (A8): a member that has missed a join phase is not asked to join."""
    original = heartbeat.heartbeat

    def beat(result: Result, group: Any, request: Any, call: int) -> None:
        known = check_member(group, request.member_id, request.group_instance_id) is ErrorCode.NONE
        if known and request.generation_id < group.join_generation_id:
            request = replace(request, generation_id=group.generation_id)
        original(result, group, request, call)

    patch(shard, "heartbeat", beat)


@mutant
def sessions_end_early(patch: Patch) -> None:
    """L1 (A10): a session ends 200 ms before its time."""
    original = sessions.set_session_deadline

    def set_session_deadline(result: Result, group: Any, member: Any, deadline_ms: int) -> None:
        original(result, group, member, deadline_ms - 200)

    patch(sessions, "set_session_deadline", set_session_deadline)
