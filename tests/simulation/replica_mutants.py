"""Planted bugs in the rules of a replica and in the store's twin: commits, leases, forwarding, shared liveness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from rota.core.group import assignment, records, shard
from rota.core.replica import assigning, forwarding, leases, owned_shard
from rota.core.replica.forwarding import Forwarding
from rota.core.replica.leases import DropClosed, Leases, Serve
from rota.core.replica.owned_shard import Now, OwnedShard, Ready
from rota.core.replica.ports import Answer, StoreUnavailable
from rota.core.types import worker as worker_type
from rota.protocol.errors import ErrorCode
from rota.server.runtime import forwarding as calls
from rota.server.runtime.forwarding import Forwarder
from rota.server.runtime.loop import ShardLoop
from rota.server.runtime.sessions import SharedSessions
from rota.testing import memory
from tests.simulation.registry import Patch, mutant

# --- the order of commit and answer -------------------------------------------------------------------


@mutant
def reply_before_commit(patch: Patch) -> None:
    """D1: answers leave as soon as they are decided."""
    original = OwnedShard._take

    def take(self: Any, result: Any, now: Any) -> Any:
        replies, result.replies = result.replies, []
        ready = original(self, result, now)
        result.replies = replies
        ready.replies = [*ready.replies, *self._released(replies, self.seq, now)]
        return ready

    patch(OwnedShard, "_take", take)


@mutant
def a_departure_is_not_waited_for(patch: Patch) -> None:
    """S12: the leave or the expiry of a member waits for the next append, as its join does."""
    original = records.settles
    patch(owned_shard, "settles", lambda e: original(e) and not isinstance(e.record, records.MemberGone))


@mutant
def later_replies_released(patch: Patch) -> None:
    """D1: replies that wait for a later transaction leave with the first."""
    original = OwnedShard.committed

    def committed(self: Any, last_seq: int, now: Any) -> Any:
        ready = original(self, self.seq, now)
        self.durable_seq = last_seq
        return ready

    patch(OwnedShard, "committed", committed)


@mutant
def answered_from_memory(patch: Patch) -> None:
    """D1: a request that decides nothing is answered at once, from memory that is not durable."""
    original = OwnedShard._take

    def take(self: Any, result: Any, now: Any) -> Any:
        if result.records or self.is_dropped:
            return original(self, result, now)
        return Ready(timers=result.timers, replies=self._released(result.replies, self.seq, now), decided=result)

    patch(OwnedShard, "_take", take)


@mutant
def a_heartbeat_is_answered_from_memory(patch: Patch) -> None:
    """D1: a heartbeat that does not wait is answered at once, from memory that is not durable."""
    original = OwnedShard.try_heartbeat

    def try_heartbeat(self: Any, number: int, request: Any, now: Any) -> Any:
        durable_seq, self.durable_seq = self.durable_seq, self.seq
        try:
            return original(self, number, request, now)
        finally:
            self.durable_seq = durable_seq

    patch(OwnedShard, "try_heartbeat", try_heartbeat)


@mutant
def unknown_outcome_is_failure(patch: Patch) -> None:
    """D2, D3, S1: a write without an answer is taken to have failed; the owner goes on with its epoch."""
    too_late = Now(0, 2**62)

    def give_up_all(self: Any, batches: Any, _why: str) -> None:
        for owned, batch in batches.items():
            self._hand_out(owned, owned.committed(batch.last_seq, too_late))

    patch(ShardLoop, "_give_up_all", give_up_all)


@mutant
def only_one_shard_is_given_up(patch: Patch) -> None:
    """D2, D3, S1: of several shards in a write of unknown outcome only the first is given up."""
    original = ShardLoop._give_up_all
    patch(ShardLoop, "_give_up_all", lambda self, batches, why: original(self, dict(list(batches.items())[:1]), why))


@mutant
def lease_is_not_watched(patch: Patch) -> None:
    """S15: an owner answers on although its lease is over."""
    patch(OwnedShard, "may_answer", lambda self, _now: not self.is_dropped)


@mutant
def replies_after_the_lease(patch: Patch) -> None:
    """S15: a decision that was made in time is answered when the lease is over."""

    def released(self: Any, replies: Any, seq: int, _now: Any) -> Any:
        answers = ((number, Answer(reply, seq, self.claim.epoch)) for number, reply in replies)
        return [answer for answer in answers if self._waiting.pop(answer[0], None) is not None]

    patch(OwnedShard, "_released", released)


@mutant
def stale_renewal_reinstalls(patch: Patch) -> None:
    """D2, L9, R2: the late answer to a renewal brings back a shard that was dropped meanwhile."""
    original = Leases._renewed

    def renewed(self: Any, sent: Any, kept: Any, sent_ms: int, now: Any) -> Any:
        for shard_id, owned in sent.items():
            if owned.is_dropped and shard_id in kept and shard_id not in self.owned:
                owned.is_dropped = False
                owned.lease_until_ms = sent_ms + self.lease_ms
                self.owned[shard_id] = owned
        return original(self, sent, kept, sent_ms, now)

    patch(Leases, "_renewed", renewed)


@mutant
def lease_counts_from_the_answer(patch: Patch) -> None:
    """S15: a renewed lease is counted from when the answer came, instead of from before it was asked for."""
    original = Leases._renewed

    def renewed(self: Any, sent: Any, kept: Any, _sent_ms: int, now: Any) -> Any:
        return original(self, sent, kept, now.monotonic_ms, now)

    patch(Leases, "_renewed", renewed)


@mutant
def a_shard_is_served_after_another_has_appended(patch: Patch) -> None:
    """D2: a replica that was paused between claim and load believes that the store has lost the next owner's lines."""
    patch(leases, "_untouched", list)


@mutant
def claimed_lease_counts_from_the_answer(patch: Patch) -> None:
    """S15: the lease of a claim is counted from when its rows were read, instead of from before it was sent."""
    original = Leases._claim_and_load

    def claim_and_load(self: Any, shard_ids: Any, now: Any) -> Any:
        steps = original(self, shard_ids, now)
        do = next(steps)
        try:
            while True:
                if isinstance(do, Serve):
                    do = replace(do, lease_until_ms=now.monotonic_ms + self.lease_ms)
                try:
                    answer, now = yield do
                except StoreUnavailable as error:
                    do = steps.throw(error)
                else:
                    do = steps.send((answer, now))
        except StopIteration as end:
            return end.value

    patch(Leases, "_claim_and_load", claim_and_load)


@mutant
def a_lease_that_ran_out_is_renewed(patch: Patch) -> None:
    """L5, L7: a shard that has lost its lease goes on with sessions that no member could renew meanwhile."""

    def renewed(self: Any, sent: Any, kept: Any, sent_ms: int, _now: Any) -> Any:
        for shard_id, owned in sent.items():
            if shard_id in kept and not owned.is_dropped:
                owned.lease_until_ms = sent_ms + self.lease_ms
        return [(owned, "lost") for shard_id, owned in sent.items() if shard_id not in kept]

    patch(Leases, "_renewed", renewed)
    patch(Leases, "_give_up_overdue", _nothing_is_overdue)


def _nothing_is_overdue(_self: Any, now: Any) -> Any:
    yield from ()
    return now


@mutant
def an_overdue_shard_is_kept(patch: Patch) -> None:
    """L5, L7: a replica without a store refuses the calls of a shard that another replica has by now."""
    patch(Leases, "_give_up_overdue", _nothing_is_overdue)


@mutant
def handed_over_before_it_is_durable(patch: Patch) -> None:
    """D1, L10: a shard is released while its last decisions are under way, and answered as if nothing were decided."""

    def close_and_drop(self: Any, shards: Any, _journaled: str, reason: str, code: Any) -> Any:
        for owned in shards:
            yield DropClosed(owned, reason, code, undecided=True)

    patch(Leases, "_close_and_drop", close_and_drop)


# --- the store ------------------------------------------------------------------------------------------


@mutant
def reacquire_keeps_epoch(patch: Patch) -> None:
    """S11, R1: a replica that takes its own shard again keeps the epoch, so its stalled writes still land."""
    original = memory.MemoryTables.claim

    def claim(self: Any, shard_ids: Any, replica_id: str, address: str, lease_ms: int, **more: Any) -> Any:
        claims = original(self, shard_ids, replica_id, address, lease_ms, **more)
        for number, each in enumerate(claims):
            if each.former_replica_id == replica_id:
                claims[number] = replace(each, epoch=each.former_epoch)
                self._shards[each.shard_id].epoch = each.former_epoch
        return claims

    patch(memory.MemoryTables, "claim", claim)


@mutant
def no_epoch_check(patch: Patch) -> None:
    """D2, S11: a write lands whatever its epoch is."""
    patch(memory._Shard, "accepts", lambda self, batch: len(self.events) == batch.first_seq - 1)


@mutant
def no_sequence_check(patch: Patch) -> None:
    """D1, S11, S12: a write lands wherever the journal ends."""
    patch(memory._Shard, "accepts", lambda self, batch: self.epoch == batch.epoch)

    def give_up_all(self: Any, batches: Any, _why: str) -> None:
        for owned, batch in batches.items():
            self._hand_out(owned, owned.committed(batch.last_seq, Now(0, 0)))

    patch(ShardLoop, "_give_up_all", give_up_all)


# --- forwarding -----------------------------------------------------------------------------------------


@mutant
def a_call_of_unknown_outcome_is_sent_again(patch: Patch) -> None:
    """S13: a call that its peer does not answer is sent to the next owner, as if no replica had decided it."""
    patch(calls, "MOVED", forwarding.UNANSWERED)


@mutant
def a_write_of_unknown_outcome_is_moved(patch: Patch) -> None:
    """S13: each refusal of an owner reaches the forwarder as one that was not decided."""
    original = forwarding.as_moved
    patch(forwarding, "as_moved", lambda answer: original(structs.replace(answer, undecided=True)))


@mutant
def a_write_of_unknown_outcome_counts_as_undecided(patch: Patch) -> None:
    """S13: an owner that drops a shard says of all its calls that none was decided."""
    original = OwnedShard.drop

    def drop(self: Any, reason: str, code: Any = ErrorCode.COORDINATOR_NOT_AVAILABLE, **_said: bool) -> Any:
        return original(self, reason, code, undecided=True)

    patch(OwnedShard, "drop", drop)


@mutant
def decided_calls_are_sent_elsewhere(patch: Patch) -> None:
    """D1: at a hand-over, calls that are decided and not durable are answered as if they were not decided."""
    original = OwnedShard.drop

    def drop(self: Any, reason: str, code: Any = ErrorCode.COORDINATOR_NOT_AVAILABLE, **said: bool) -> Any:
        moves = "moves to another replica" in reason
        return original(self, reason, ErrorCode.NOT_COORDINATOR if moves else code, **said)

    patch(OwnedShard, "drop", drop)


@mutant
def retries_do_not_end(patch: Patch) -> None:
    """L6: a call waits for its shard to have an owner for as long as that takes."""
    patch(calls, "MOVE_MS", 1_000_000)


@mutant
def a_peer_may_take_for_ever(patch: Patch) -> None:
    """L6: a call waits for a peer for as long as that is silent."""
    patch(forwarding, "answer_timeout_ms", lambda _request: 1_000_000)


@mutant
def a_drain_leaves_calls_parked_at_peers(patch: Patch) -> None:
    """L6: a replica stops while calls of its clients wait at its peers."""
    patch(Forwarder, "drain", lambda self: None)


@mutant
def a_replica_that_drains_parks_calls_at_peers(patch: Patch) -> None:
    """L6: a call that comes after a replica has begun to stop is parked at a peer."""
    patch(Forwarding, "refusal_to_park", lambda self, request: None)


# --- shared liveness ------------------------------------------------------------------------------------


@mutant
def the_others_are_not_asked_before_an_expiry(patch: Patch) -> None:
    """L1: a member is expired although another replica has recorded its heartbeat in time."""
    patch(shard.Shard, "removes_members", lambda _self, _timer, _now_ms: False)


@mutant
def the_answer_of_the_others_is_ignored(patch: Patch) -> None:
    """L1: the others are asked, and the member is expired whatever they say."""
    original = OwnedShard.others_answered
    patch(OwnedShard, "others_answered", lambda self, timer, _seen, now: original(self, timer, None, now))


@mutant
def a_new_owner_ignores_what_was_left_of_sessions(patch: Patch) -> None:
    """L2: after each change of the owner, a silent member has a full session again."""
    patch(owned_shard, "_share_sessions", lambda shard, _seen, now, _: shard.share_sessions({}, 0, now.wall_ms).timers)


@mutant
def old_updates_are_believed(patch: Patch) -> None:
    """L1: while the store was away it received no heartbeats, and their absence counts against members."""

    def share_sessions(shard: Any, seen: Any, now: Any, _: int) -> Any:
        return shard.share_sessions(seen.seen_ms_ago, owned_shard.GRACE_MS, now.wall_ms).timers

    patch(owned_shard, "_share_sessions", share_sessions)


@mutant
def members_that_are_gone_are_answered_for(patch: Patch) -> None:
    """L1: the store never forgets a member, so a replica answers for one that is gone."""
    patch(SharedSessions, "forget", lambda self, shard_id, gone: None)


# --- assigning by the server ----------------------------------------------------------------------------


@mutant
def a_topic_change_while_a_job_runs_is_forgotten(patch: Patch) -> None:
    """L11: a topic grows while an assignment is computed, and its new partitions belong to no member."""
    original = assigning._Namespace.refresh_soon

    def refresh_soon(self: Any, now_ms: int) -> None:
        if not any(group.is_computing for group in self._groups.values()):
            original(self, now_ms)

    patch(assigning._Namespace, "refresh_soon", refresh_soon)


@mutant
def topics_that_are_unknown_are_not_listed_again(patch: Patch) -> None:
    """L11: the topics are unknown once, and the groups that wait for them are not assigned."""
    original = assigning._Namespace.take_page

    def take_page(self: Any, answer: Any, now_ms: int) -> None:
        original(self, answer, now_ms)
        if answer.reply.error is not ErrorCode.NONE:
            self._waiting.clear()

    patch(assigning._Namespace, "take_page", take_page)


@mutant
def changes_that_collect_are_never_assigned(patch: Patch) -> None:
    """L11: the time for which changes of topics collect begins again with each listing."""
    original = assigning._Namespace._is_due

    def is_due(self: Any, job: Any, topics: Any, now_ms: int) -> bool:
        self._groups[job.group_id].has_collected = False
        return original(self, job, topics, now_ms)

    patch(assigning._Namespace, "_is_due", is_due)


@mutant
def work_is_given_before_it_was_stopped(patch: Patch) -> None:
    """S7c: a worker is given a task in the round in which another one is told to stop it."""
    original = worker_type._worker

    def worker(member: Any, state: Any) -> Any:
        return replace(original(member, state), running=())

    patch(worker_type, "_worker", worker)


@mutant
def work_that_has_waited_is_given_to_no_worker(patch: Patch) -> None:
    """L7: the time is over for which the work of a departed worker waits, and no timer says so."""
    patch(assignment, "again_at_ms", lambda _group: None)


@mutant
def a_group_that_has_moved_is_still_assigned(patch: Patch) -> None:
    """L11: a replica goes on with the groups of a shard that it has dropped."""

    def jobs(self: Any, group_ids: Any) -> Any:
        found = ((self._groups[group_id].owned.shard, group_id) for group_id in group_ids)
        return [job for shard, group_id in found if (job := shard.assignment_job(self._name, group_id)) is not None]

    patch(assigning._Namespace, "_jobs", jobs)


@mutant
def a_generation_that_begins_while_a_job_runs_is_not_assigned(patch: Patch) -> None:
    """L7, L11: a job is overtaken by the next generation, which then waits for an assignment for ever."""
    original = assigning._Namespace.settle

    def settle(self: Any, do: Any, *, has_failed: bool, taken: bool) -> None:
        original(self, do, has_failed=has_failed, taken=True)
        self._waiting.pop(do.job.group_id, None)

    patch(assigning._Namespace, "settle", settle)


@mutant
def a_stable_group_whose_strategy_failed_is_not_tried_again(patch: Patch) -> None:
    """L7: new partitions have no member until the topics change once more."""
    original = assigning._Namespace.settle

    def settle(self: Any, do: Any, *, has_failed: bool, taken: bool) -> None:
        original(self, do, has_failed=False, taken=taken)

    patch(assigning._Namespace, "settle", settle)
