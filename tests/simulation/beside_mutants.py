"""Planted bugs beside the members' work: pruning, users' transactions, forced rebalances, clocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rota.core.group import assignment, offsets, rebalance, shard, succession, sync
from rota.core.group.state import STABLE
from rota.core.replica.known_owners import KnownOwners
from rota.protocol.errors import ErrorCode
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage import pruning
from rota.testing import memory
from tests.simulation import journal_readers
from tests.simulation.registry import Patch, mutant

# --- pruning ------------------------------------------------------------------------------------------


@mutant
def pruning_does_not_wait_for_readers(patch: Patch) -> None:
    """S19: lines are gone that a reader has yet to read."""
    patch(pruning, "read_by_all", lambda _readers, _shard_id, last: last)


@mutant
def pruning_waits_for_the_fastest_reader(patch: Patch) -> None:
    """S19: of two readers, the slower one misses lines."""

    def read_by_all(readers: Iterable[Any], shard_id: int, last: int) -> int:
        return max((each.read(shard_id) for each in readers), default=last)

    patch(pruning, "read_by_all", read_by_all)


@mutant
def pruning_takes_a_day_too_many(patch: Patch) -> None:
    """S19: lines of the days that are to be kept are gone."""
    original = pruning.horizon_ms

    def horizon_ms(store_now_ms: int, keep_days: int, day_ms: int = pruning.DAY_MS) -> int:
        return original(store_now_ms, keep_days - 1, day_ms)

    patch(journal_readers, "horizon_ms", horizon_ms)


@mutant
def pruning_takes_progress_along(patch: Patch) -> None:
    """S14: with the lines that committed them, offsets are gone from the rows."""
    original = memory._Shard.prune

    def prune(self: Any, up_to: int) -> None:
        original(self, up_to)
        self.offsets.clear()

    patch(memory._Shard, "prune", prune)


@mutant
def a_sweep_deletes_groups_that_hold_progress(patch: Patch) -> None:
    """S10: an Empty group is deleted with offsets that are within their retention."""
    original = offsets.expired_offsets
    patch(shard, "expired_offsets", lambda *arguments: (original(*arguments)[0], True))


@mutant
def progress_of_a_topic_that_no_member_reads_expires_at_once(patch: Patch) -> None:
    """S10: while the group is Stable, offsets expire whatever their age."""
    original = offsets.expired_offsets

    def expired_offsets(group: Any, now_ms: int, limits: Any) -> Any:
        stable = group.state is STABLE
        return original(group, now_ms, replace(limits, offsets_retention_ms=-(2**40)) if stable else limits)

    patch(shard, "expired_offsets", expired_offsets)


# --- the store's clock ----------------------------------------------------------------------------------


@mutant
def a_lease_is_over_by_a_clock_that_was_set(patch: Patch) -> None:
    """S15 (F6): a shard is claimed as soon as the store's clock says so, while its owner goes on to answer."""
    patch(KnownOwners, "_compare_clocks", lambda _self, _read: None)


@mutant
def a_lease_is_counted_by_the_clock_of_the_store(patch: Patch) -> None:
    """S15: an owner that sees the store's clock go back believes that its lease lasts as much longer."""
    original = KnownOwners.update

    def update(self: Any, owners: Any, sent_ms: int, answered_ms: int | None = None, *more: Any) -> None:
        original(self, owners, sent_ms, answered_ms, *more)
        for owner in self.owners.values():
            mine = self.mine.get(owner.shard_id) if owner.replica_id == self.replica_id else None
            if mine is not None and mine.epoch == owner.epoch and answered_ms is not None:
                mine.lease_until_ms = max(mine.lease_until_ms, answered_ms + owner.lease_left_ms)

    patch(KnownOwners, "update", update)
    patch(LocalCoordinator, "__init__", _with_shards_known(LocalCoordinator.__init__))


def _with_shards_known(original: Any) -> Any:
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.directory.mine = self.loop.leases.owned

    return init


@mutant
def a_fence_check_is_answered_by_the_lease_alone(patch: Patch) -> None:
    """S15 (F6): a former owner, whose lease goes on because a clock was set, says that a fence holds."""
    patch(LocalCoordinator, "_needs_owner", lambda self, request: False)


# --- users' transactions ----------------------------------------------------------------------------------


@mutant
def progress_is_shown_before_it_is_taken_in(patch: Patch) -> None:
    """S10: a fetch shows less than a user's transaction has committed before."""
    patch(LocalCoordinator, "_needs_side_commits", lambda self, request: False)


@mutant
def what_is_taken_in_is_written_again(patch: Patch) -> None:
    """S10: the owner's write overwrites a later commit of a user's transaction."""
    original = offsets._record_taken_in

    def record_taken_in(result: Any, group: Any, member_id: str, rows: Any) -> None:
        original(result, group, member_id, rows)
        group.dirty_offsets.update(dict.fromkeys((row.topic, row.partition) for row in rows))

    patch(offsets, "_record_taken_in", record_taken_in)


@mutant
def a_users_transaction_commits_in_any_generation(patch: Patch) -> None:
    """S9: the fence in the database is not checked."""
    patch(memory.MemoryTables, "check_fence", lambda *_arguments: ErrorCode.NONE)


# --- forced rebalances ------------------------------------------------------------------------------------


@mutant
def a_leader_that_was_asked_to_step_down_leads_again(patch: Patch) -> None:
    """S2: a forced rebalance has the same leader as before."""
    original = succession.choose_leader

    def choose_leader(group: Any, protocol_name: str) -> str | None:
        group.passed_over = None
        return original(group, protocol_name)

    patch(rebalance, "choose_leader", choose_leader)


# --- phases that wait for longer than they must ---------------------------------------------------------


@mutant
def the_initial_delay_is_prolonged_to_the_rebalance_timeout(patch: Patch) -> None:
    """L3, L5: a group that has just got its first members waits for its whole rebalance timeout."""
    original = rebalance._extend_initial_delay

    def extend(result: Any, group: Any) -> None:
        result.limits = replace(result.limits, initial_rebalance_delay_ms=group.join_remaining_ms)
        original(result, group)

    patch(rebalance, "_extend_initial_delay", extend)


@mutant
def the_assignment_waits_for_the_last_member(patch: Patch) -> None:
    """L3: the leader has synced, but no member gets its share before all have synced."""
    store, answer = assignment.record_assignment, sync.answer_syncs

    def store_late(result: Any, group: Any, *given: Any, **options: Any) -> None:
        if options["resync"] or all(member.sync_call is not None for member in group.members.values()):
            store(result, group, *given, **options)

    patch(sync, "record_assignment", store_late)
    patch(sync, "answer_syncs", lambda result, group: answer(result, group) if group.state is STABLE else None)
