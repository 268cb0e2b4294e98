"""Planted bugs that few seeds find, or none, and tests of the same rule that find them whatever a seed draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rota.core.replica.forwarding import NoAnswer
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.client.virtual_time import LoopClock, in_virtual_time
from tests.runtime import test_commit_order, test_confirming, test_forwarding, test_shared_sessions, test_waiting
from tests.runtime.conftest import NOW
from tests.unit.group import test_elections_at_once, test_freezing, test_progress, test_side_door, test_static_members
from tests.unit.replica import (
    test_answers_at_once,
    test_assigning,
    test_known_owners,
    test_leases,
    test_owned_shard,
    test_strategies_that_raise,
)
from tests.unit.replica.assigning_stage import Replica


@dataclass(frozen=True, slots=True)
class Directed:
    """A test, and how to run it where it takes arguments."""

    test: Callable[..., object]
    run_with: Callable[[], object] | None = None

    @property
    def node(self) -> str:
        return f"{self.test.__module__.replace('.', '/')}.py::{self.test.__name__}"

    def run(self) -> None:
        (self.run_with or self.test)()


def _leave() -> None:
    test_shared_sessions.test_a_left_member_is_forgotten_once_that_is_durable(test_shared_sessions.Replica())


def _lose_an_answer() -> None:
    lost = NoAnswer("connection reset")
    test_forwarding.test_a_call_of_unknown_outcome_is_not_sent_again(lost)


def _fail_to_assign() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        test_strategies_that_raise.test_a_stable_group_is_assigned_after_a_failed_assignment(
            Replica(), test_strategies_that_raise.plugged_in(monkeypatch)
        )


@in_virtual_time
async def _hang_up() -> None:
    clock = LoopClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(1)
    async with LocalCoordinator(store, shard_count=1, limits=NOW, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        await test_waiting.test_a_client_that_hangs_up_keeps_its_members_session(coordinator)


@in_virtual_time
async def _take_the_shard() -> None:
    clock = LoopClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(1)
    async with LocalCoordinator(store, shard_count=1, limits=NOW, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        await test_confirming.test_a_fence_is_not_confirmed_where_another_owns_the_shard(coordinator, store.tables)


DIRECTED: dict[str, Directed] = {
    "a_call_of_unknown_outcome_is_sent_again": Directed(
        test_forwarding.test_a_call_of_unknown_outcome_is_not_sent_again, _lose_an_answer
    ),
    "a_cancelled_call_stays_parked": Directed(
        test_waiting.test_a_client_that_hangs_up_keeps_its_members_session, _hang_up
    ),
    "a_closed_shard_still_decides": Directed(test_owned_shard.test_a_closed_shard_answers_only_what_it_has_decided),
    "a_fence_check_is_answered_by_the_lease_alone": Directed(
        test_confirming.test_a_fence_is_not_confirmed_where_another_owns_the_shard, _take_the_shard
    ),
    "a_freeze_outlives_its_time_at_a_new_owner": Directed(
        test_freezing.test_a_new_owner_keeps_the_freeze_and_rejoins_at_its_end,
        lambda: test_freezing.test_a_new_owner_keeps_the_freeze_and_rejoins_at_its_end(served=False),
    ),
    "a_frozen_group_preempts_its_leader": Directed(test_freezing.test_a_better_candidate_waits),
    "a_group_that_has_moved_is_still_assigned": Directed(
        test_assigning.test_a_group_that_has_moved_is_forgotten,
        lambda: test_assigning.test_a_group_that_has_moved_is_forgotten(Replica()),
    ),
    "a_heartbeat_is_answered_from_memory": Directed(
        test_answers_at_once.test_a_heartbeat_is_left_to_submit_unless_all_is_durable
    ),
    "a_join_of_a_member_taken_along_renews_no_session": Directed(
        test_elections_at_once.test_a_join_renews_the_session_of_a_member_taken_along
    ),
    "a_lease_is_over_by_a_clock_that_was_set": Directed(
        test_known_owners.test_the_first_read_counts_as_if_the_clock_had_been_set
    ),
    "a_lease_that_ran_out_is_renewed": Directed(test_leases.test_a_lease_that_ran_out_before_its_renewal_is_given_up),
    "a_new_owner_ignores_what_was_left_of_sessions": Directed(
        test_owned_shard.test_a_member_has_a_session_from_the_last_publication
    ),
    "a_replica_that_drains_parks_calls_at_peers": Directed(
        test_forwarding.test_a_replica_that_drains_parks_no_call_at_a_peer
    ),
    "a_term_is_counted_from_the_election": Directed(
        test_elections_at_once.test_a_term_by_election_ends_before_its_session
    ),
    "a_stable_group_whose_strategy_failed_is_not_tried_again": Directed(
        test_strategies_that_raise.test_a_stable_group_is_assigned_after_a_failed_assignment, _fail_to_assign
    ),
    "an_overdue_shard_is_kept": Directed(test_leases.test_leases_that_are_over_are_given_up_without_the_store),
    "a_shard_is_served_after_another_has_appended": Directed(
        test_leases.test_a_shard_that_another_has_appended_to_is_not_served
    ),
    "claimed_lease_counts_from_the_answer": Directed(
        test_leases.test_a_claimed_lease_counts_from_before_the_claim_was_sent
    ),
    "decided_calls_are_sent_elsewhere": Directed(test_owned_shard.test_a_decided_call_is_not_sent_to_the_next_owner),
    "held_back_changes_are_forgotten": Directed(test_freezing.test_a_leader_joining_for_topics_rebalances_at_the_end),
    "lease_counts_from_the_answer": Directed(test_leases.test_a_renewed_lease_counts_from_before_the_renewal_was_sent),
    "members_that_are_gone_are_answered_for": Directed(
        test_shared_sessions.test_a_left_member_is_forgotten_once_that_is_durable, _leave
    ),
    "offsets_of_an_empty_group_expire_by_their_own_age": Directed(
        test_progress.test_progress_of_an_emptied_group_counts_from_its_end
    ),
    "progress_of_a_topic_that_no_member_reads_expires_at_once": Directed(
        test_progress.test_progress_of_a_topic_that_is_not_read_expires_alone
    ),
    "old_updates_are_believed": Directed(test_owned_shard.test_a_member_keeps_what_the_last_owner_was_silent_for),
    "only_one_shard_is_given_up": Directed(test_commit_order.test_an_append_of_unknown_outcome_costs_every_shard_in_it),
    "retries_do_not_end": Directed(test_forwarding.test_retries_end_after_a_while_with_the_last_answer),
    "skipped_assignment_counts": Directed(test_static_members.test_returning_leader_has_to_skip_assigning),
    "stale_renewal_reinstalls": Directed(test_leases.test_a_shard_dropped_during_its_renewal_stays_dropped),
    "the_answer_of_the_others_is_ignored": Directed(
        test_owned_shard.test_a_member_that_another_replica_has_seen_in_time_lives_on
    ),
    "a_topic_change_while_a_job_runs_is_forgotten": Directed(
        test_assigning.test_a_change_while_a_job_runs_is_assigned_after_it,
        lambda: test_assigning.test_a_change_while_a_job_runs_is_assigned_after_it(Replica()),
    ),
    "topics_that_are_unknown_are_not_listed_again": Directed(
        test_assigning.test_topics_that_are_unknown_are_listed_again,
        lambda: test_assigning.test_topics_that_are_unknown_are_listed_again(Replica()),
    ),
    "the_retention_of_a_commit_is_ignored": Directed(test_progress.test_an_offset_expires_at_its_commits_retention),
    "the_others_are_not_asked_before_an_expiry": Directed(
        test_owned_shard.test_other_replicas_are_asked_before_a_member_expires
    ),
    "what_is_taken_in_is_written_again": Directed(
        test_side_door.test_the_row_in_the_store_is_adopted_and_not_written_again
    ),
}
"""By the name of the planted bug."""
