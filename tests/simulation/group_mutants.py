"""Planted bugs in the rules of a group: generations, members, sessions. F5, F7, A1 to A12 were found in a review."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from rota.core.group import assignment, describe, join, offsets, rebalance, sessions, shard, state, sync
from rota.core.group.records import (
    AssignmentSynced,
    GenerationCompleted,
    MemberExpired,
    MemberLeft,
    MemberRemoved,
    OffsetsCommitted,
    Trigger,
)
from rota.core.group.rows import RowChanges
from rota.core.group.sessions import check_member
from rota.core.group.state import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, Result
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitReply, FenceReply, SyncGroup
from tests.simulation.registry import Patch, mutant


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

    patch(shard, "on_pending_timer", on_pending_timer)


@mutant
def leave_does_not_end_the_join_phase(patch: Patch) -> None:
    """L3 (A7): the phase waits for its timeout after the last member that had not joined has left."""
    original = rebalance._after_departure

    def after_departure(result: Result, group: Any, gone: Any, *, by_admin: bool) -> None:
        if group.state is not PREPARING_REBALANCE:
            original(result, group, gone, by_admin=by_admin)

    patch(rebalance, "_after_departure", after_departure)


@mutant
def candidates_wait_for_each_other_once_their_leader_has_gone(patch: Patch) -> None:
    """L3: one silent candidate keeps the others from leading until its session or the rebalance timeout is over."""
    patch(rebalance, "lacks_only_a_leader", lambda _group: False)


@mutant
def a_join_of_a_member_taken_along_renews_no_session(patch: Patch) -> None:
    """S7c: it leads by its own reckoning after its session, and the next one leads as well."""
    patch(join, "renew_session", lambda *_: None)


@mutant
def static_members_go_at_the_rebalance_timeout(patch: Patch) -> None:
    """L1 (A9): a static member that has not joined again is removed although its session lasts."""
    original = rebalance.complete_join

    def complete_join(result: Result, group: Any) -> None:
        for member in [member for member in group.members.values() if not member.joined]:
            rebalance.drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
            why = "did not rejoin within the rebalance timeout"
            state.record(
                result,
                group,
                MemberExpired(member.member_id, member.image.group_instance_id, why, Cause.MEMBER_EXPIRED),
            )
        original(result, group)

    patch(rebalance, "complete_join", complete_join)


@mutant
def a_group_without_members_was_always_left(patch: Patch) -> None:
    """S21 (D6): a group that expired in a join phase has the cause of a leave."""
    patch(rebalance, "trigger_of", lambda gone: Trigger(Cause.MEMBER_LEFT, "nobody is left"))


@mutant
def each_rebalance_has_the_cause_of_a_join(patch: Patch) -> None:
    """S21: a rebalance after a departure has the cause of a join."""
    original = rebalance.replace_departed

    def replace_departed(result: Result, group: Any, trigger: Trigger) -> None:
        original(result, group, trigger._replace(cause=Cause.MEMBER_JOINED))

    patch(rebalance, "replace_departed", replace_departed)


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
    """S15, S16 (A1): a restart finds the generation still waiting for its leader, without one of its members."""

    def gone(group: Any, record: Any, at_ms: int) -> None:
        settled = group.settled
        state._member_gone(group, record, at_ms)
        if group.state is COMPLETING_REBALANCE:
            group.settled = settled

    patch(state, "_APPLY", {**state._APPLY, MemberLeft: gone, MemberExpired: gone, MemberRemoved: gone})


@mutant
def skipped_assignment_counts(patch: Patch) -> None:
    """S6 (A2): a returning static leader that was asked not to assign assigns anew."""
    patch(sync, "_is_resync", lambda _member, request: bool(request.assignments))


@mutant
def repeated_resync_opens_a_generation(patch: Patch) -> None:
    """S6 (A3): a leader's retry of its resync counts as another one."""
    original = sync._resync

    def resync(result: Result, group: Any, leader: Any, request: Any, call: int) -> None:
        given = dict(request.assignments)
        if any(given.get(member.member_id, b"") != member.assignment for member in group.members.values()):
            original(result, group, leader, request, call)
            return
        trigger = Trigger(Cause.RESYNC, "the leader assigned anew", leader.member_id)
        assignment.record_assignment(result, group, given, resync=True, trigger=trigger)
        result.reply(call, sync.sync_reply(group, leader))
        sessions.release_heartbeats(result, group)

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


@mutant
def the_retention_of_a_commit_is_ignored(patch: Patch) -> None:
    """S10: each offset expires by the server's retention, though its commit named a longer one."""
    patch(
        offsets,
        "_expires_at_ms",
        lambda row, empty_since_ms, retention_ms: (empty_since_ms or row.committed_at_ms) + retention_ms,
    )


@mutant
def an_offset_keeps_the_retention_of_an_earlier_commit(patch: Patch) -> None:
    """S10, S14: a commit that names no retention leaves the former one in force, so the offset expires too early."""
    original = state._APPLY[OffsetsCommitted]

    def offsets_committed(group: Any, record: Any, at_ms: int) -> None:
        former = dict(group.offsets)
        original(group, record, at_ms)
        for item in record.offsets:
            key = (item.topic, item.partition)
            if item.expires_at_ms is None and key in former:
                group.offsets[key] = group.offsets[key]._replace(expires_at_ms=former[key].expires_at_ms)

    patch(state, "_APPLY", {**state._APPLY, OffsetsCommitted: offsets_committed})


@mutant
def what_is_taken_in_loses_its_retention(patch: Patch) -> None:
    """S10: the owner takes in what a user's transaction committed without the retention that it named."""
    original = offsets.take_in

    def take_in(result: Any, groups: Any, commits: Any) -> None:
        without = [
            replace(each, row=None if each.row is None else each.row._replace(expires_at_ms=None)) for each in commits
        ]
        original(result, groups, without)

    patch(shard, "take_in", take_in)


@mutant
def a_successor_has_its_predecessors_token(patch: Patch) -> None:
    """S7d: the generation alone is the token, so a static member and its successor have the same (faults F2)."""
    patch(state.Group, "next_takeover", lambda _self, _member: 0)


@mutant
def takeovers_are_counted_on_in_the_next_generation(patch: Patch) -> None:
    """S7d: a new generation does not begin with tokens of its own."""
    patch(state.Group, "begin_generation", lambda self, generation_id: setattr(self, "generation_id", generation_id))


@mutant
def a_takeover_is_forgotten_with_its_owner(patch: Patch) -> None:
    """S7d, S14: a new owner counts the takeovers of a generation from zero, so it gives a token twice."""
    original = shard.ShardState._fill_group

    def fill(self: Any, row: Any) -> None:
        original(self, replace(row, takeovers=0))

    patch(shard.ShardState, "_fill_group", fill)


# --- sessions -----------------------------------------------------------------------------------------


@mutant
def commit_does_not_renew_the_session(patch: Patch) -> None:
    """L1 (A4): a member that only commits is expired."""
    original = offsets.commit_offsets

    def commit(result: Result, group: Any, request: Any) -> CommitReply:
        member = group.members.get(request.member_id)
        deadline_ms = member.session_deadline_ms if member is not None else None
        reply = original(result, group, request)
        if member is not None:
            member.session_deadline_ms = deadline_ms
        return reply

    patch(shard, "commit_offsets", commit)


@mutant
def heartbeat_of_an_older_generation_is_accepted(patch: Patch) -> None:
    """S15 (A8): a member that has missed a join phase is not asked to join."""
    original = sessions.heartbeat

    def beat(result: Result, group: Any, request: Any, call: int) -> None:
        known = check_member(group, request.member_id, request.group_instance_id, "") is ErrorCode.NONE
        if known and request.generation_id < group.join_generation_id:
            request = structs.replace(request, generation_id=group.generation_id)
        original(result, group, request, call)

    patch(shard, "heartbeat", beat)


@mutant
def sessions_end_early(patch: Patch) -> None:
    """L1 (A10): a session ends 200 ms before its time."""
    original = sessions.set_session_deadline

    def set_session_deadline(result: Result, group: Any, member: Any, deadline_ms: int) -> None:
        original(result, group, member, deadline_ms - 200)

    patch(sessions, "set_session_deadline", set_session_deadline)


# --- generations ----------------------------------------------------------------------------------------


@mutant
def generation_not_bumped(patch: Patch) -> None:
    """S1: a join phase that changed no member keeps the generation."""
    original = GenerationCompleted

    def completed(*, generation_id: int, **fields: Any) -> Any:
        return original(generation_id=generation_id - (generation_id > 2), **fields)

    patch(rebalance, "GenerationCompleted", completed)


@mutant
def generation_not_persisted(patch: Patch) -> None:
    """S14: the new generation is in the journal but not in the rows."""
    original = shard._group_rows

    def group_rows(group: Any, changes: RowChanges) -> None:
        if group.state is COMPLETING_REBALANCE:
            group.dirty = False
        original(group, changes)

    patch(shard, "_group_rows", group_rows)


@mutant
def assignment_not_persisted(patch: Patch) -> None:
    """S14: a new owner finds the assignment of the generation before."""

    def synced(group: Any, record: Any, at_ms: int) -> None:
        original(group, record, at_ms)
        group.dirty_members.clear()

    original = state._APPLY[AssignmentSynced]
    patch(state, "_APPLY", {**state._APPLY, AssignmentSynced: synced})


@mutant
def tombstone_forgotten(patch: Patch) -> None:
    """S1: a group that is made again counts from zero."""
    original = shard.Shard._remove

    def remove(self: Any, group: Any, record: Any, at_ms: int) -> None:
        original(self, group, record, at_ms)
        del self.tombstones[group.key]

    patch(shard.Shard, "_remove", remove)


@mutant
def commit_ignores_generation(patch: Patch) -> None:
    """S9: a commit of an old generation lands."""
    patch(
        offsets,
        "check_generation",
        lambda group, member_id, instance_id, *_: check_member(group, member_id, instance_id, ""),
    )


@mutant
def sync_ignores_generation(patch: Patch) -> None:
    """S5, S6: a leader of an old generation assigns for the new one."""
    patch(
        sync,
        "check_generation",
        lambda group, member_id, instance_id, *_: check_member(group, member_id, instance_id, ""),
    )


@mutant
def anybody_may_assign(patch: Patch) -> None:
    """S6: a follower's assignments are taken."""
    patch(state.Group, "is_leader", lambda self, member_id: member_id in self.members)


@mutant
def generation_completes_without_waiting(patch: Patch) -> None:
    """S7c: the next generation begins although a member of this one has neither rejoined nor expired."""
    patch(state.Group, "all_joined", lambda self: self.joined_count >= max(1, len(self.members) - 1))


# --- members --------------------------------------------------------------------------------------------


@mutant
def pending_id_ignored(patch: Patch) -> None:
    """S3: the join phase ends without the members that have just been given their id."""
    patch(state.Group, "all_joined", lambda self: self.joined_count == len(self.members))


@mutant
def parked_reply_dropped(patch: Patch) -> None:
    """L6: a follower with a parked join is forgotten when the phase ends."""
    original = rebalance._answer_joins

    def answer_joins(result: Result, group: Any, *, is_served: bool) -> None:
        for member in list(group.members.values())[2:]:
            member.join_call = None
        original(result, group, is_served=is_served)

    patch(rebalance, "_answer_joins", answer_joins)


@mutant
def answered_twice(patch: Patch) -> None:
    """L6: a parked heartbeat is released and kept."""
    original = sessions.release_heartbeats

    def release(result: Result, group: Any) -> None:
        kept = {member: member.heartbeat_call for member in group.members.values()}
        original(result, group)
        for member, call in kept.items():
            member.heartbeat_call = call

    patch(rebalance, "release_heartbeats", release)


@mutant
def leave_not_durable(patch: Patch) -> None:
    """S12, S14: a leave is answered, but not in the journal."""

    def dismiss(result: Result, group: Any, member_id: str, leaving: Any, _request: Any) -> None:
        member = group.members[member_id]
        rebalance.drop_parked(result, member, ErrorCode.UNKNOWN_MEMBER_ID)
        state.apply(group, MemberLeft(member_id, member.image.group_instance_id, leaving.reason), result.now_ms)

    patch(rebalance, "_dismiss", dismiss)


@mutant
def static_replacement_in_completing(patch: Patch) -> None:
    """S14, S16 (KAFKA-9801): a static member comes back while the leader assigns to its old id, without a rebalance."""
    original = rebalance.start_rebalance

    def start(result: Result, group: Any, trigger: Trigger) -> None:
        if group.state is not COMPLETING_REBALANCE or trigger.cause is not Cause.STATIC_MEMBER_RETURNED:
            original(result, group, trigger)
            return
        member = group.members[trigger.by]
        result.reply(member.join_call, rebalance.join_reply(group, member))
        member.join_call = None
        member.joined = False
        group.joined_count -= 1
        group.settle_member(member)
        group.settle(COMPLETING_REBALANCE)
        sessions.start_session(result, group, member)

    patch(join, "start_rebalance", start)


@mutant
def resync_drops_a_static_return(patch: Patch) -> None:
    """S16: the leader assigns anew to an id that a static member has given up since, and no rebalance follows."""
    original = sync._resync

    def resync(result: Result, group: Any, leader: Any, request: Any, call: int) -> None:
        known = tuple((member_id, share) for member_id, share in request.assignments if member_id in group.members)
        original(
            result,
            group,
            leader,
            SyncGroup(request.namespace, request.group_id, request.member_id, request.generation_id, assignments=known),
            call,
        )

    patch(sync, "_resync", resync)


@mutant
def candidate_is_named_as_leader(patch: Patch) -> None:
    """L3, S2, S15, S22: once the leader has gone, the next one in line is said to lead the old generation."""
    original = state.Group.dismiss

    def dismiss(self: Any, member_id: str) -> Any:
        member = original(self, member_id)
        self.generation_leader_id = self.generation_leader_id or self.leader_id
        return member

    patch(state.Group, "dismiss", dismiss)


@mutant
def newcomer_passes_the_fence(patch: Patch) -> None:
    """S7d, S15: a member that has only joined the next generation passes for a member of this one."""

    def verify(group: Any, request: Any) -> Any:
        reply = original(group, request)
        joined = group is not None and request.member_id in group.members
        return FenceReply(generation_id=group.generation_id, is_member=True) if joined else reply

    original = describe.verify_fence
    patch(shard, "verify_fence", verify)


# --- sessions -------------------------------------------------------------------------------------------


@mutant
def failover_shortens_sessions(patch: Patch) -> None:
    """L1: a member with a heartbeat at the old owner gets less than its session from the new one."""
    original = shard._resume

    def resume(result: Result, group: Any) -> None:
        now_ms = result.now_ms
        result.now_ms = now_ms - 1_100
        original(result, group)
        result.now_ms = now_ms

    patch(shard, "_resume", resume)


@mutant
def heartbeat_in_join_phase_does_not_renew(patch: Patch) -> None:
    """L1: a heartbeat that is answered REBALANCE_IN_PROGRESS does not count as life."""
    original = sessions.heartbeat

    def beat(result: Result, group: Any, request: Any, call: int) -> None:
        member = group.members.get(request.member_id)
        if group.state is not PREPARING_REBALANCE or member is None:
            original(result, group, request, call)
            return
        deadline_ms = member.session_deadline_ms
        original(result, group, request, call)
        member.session_deadline_ms = deadline_ms

    patch(shard, "heartbeat", beat)


@mutant
def session_timer_not_rearmed(patch: Patch) -> None:
    """L2: a session timer that fires early is not set again, so the member never expires."""

    def member_to_expire(result: Result, group: Any, timer: Any) -> Any:
        member = group.members.get(timer.member_id)
        if member is None or member.session_deadline_ms is None or member.session_deadline_ms > result.now_ms:
            return None
        return member

    patch(rebalance, "member_to_expire", member_to_expire)
