"""Every planted bug is found within few seeds: a checker that misses one of them would miss its like in earnest."""

from __future__ import annotations

import re

import pytest

from rota.testing.sim import replay_command, run_seeds
from tests.runtimes.plants import OPEN_PLANTS, PLANTS
from tests.sim.directed import DIRECTED
from tests.sim.findings import FINDINGS
from tests.sim.mutants import MUTANTS
from tests.sim.registry import ABOUT

SEEDS = 500
PLANTED = {name: plant.planted for name, plant in (PLANTS | OPEN_PLANTS).items()} | MUTANTS
FOUND_BY = {
    "a_frozen_group_preempts_its_leader": 362,
    "a_generation_that_begins_while_a_job_runs_is_not_assigned": 148,
    "a_group_that_has_moved_is_still_assigned": 8,
    "a_leader_that_was_asked_to_step_down_leads_again": 17,
    "a_lease_is_over_by_a_clock_that_was_set": 17,
    "a_lease_that_ran_out_is_renewed": 10,
    "a_newcomer_joins_a_frozen_group": 13,
    "a_replica_that_drains_parks_calls_at_peers": 60,
    "a_sweep_deletes_groups_that_hold_progress": 82,
    "a_topic_change_while_a_job_runs_is_forgotten": 88,
    "candidate_is_named_as_leader": 2,
    "changes_of_topics_do_not_wait": 13,
    "commit_while_the_assignment_is_awaited": 41,
    "departure_while_the_assignment_is_awaited_is_not_settled": 29,
    "full_group_waits_for_a_removed_member": 42,
    "heartbeat_in_join_phase_does_not_renew": 2,
    "heartbeat_of_an_older_generation_is_accepted": 25,
    "lease_is_not_watched": 2,
    "leave_does_not_end_the_join_phase": 5,
    "newcomer_commits": 24,
    "no_epoch_check": 0,
    "offsets_of_an_empty_group_expire_by_their_own_age": 95,
    "only_one_shard_is_given_up": 84,
    "permissions_are_not_counted": 108,
    "pruning_takes_a_day_too_many": 17,
    "resync_drops_a_static_return": 105,
    "retries_do_not_end": 6,
    "room_for_one_member_too_many": 37,
    "session_timer_not_rearmed": 17,
    "sessions_end_early": 21,
    "stale_renewal_reinstalls": 18,
    "static_members_go_at_the_rebalance_timeout": 10,
    "static_replacement_in_completing": 20,
    "sync_ignores_generation": 24,
    "the_earliest_candidate_leads": 2,
    "tombstone_forgotten": 1,
    "unknown_outcome_is_failure": 4,
    "topics_that_are_unknown_are_not_listed_again": 8,
    "void_pending_id_does_not_end_the_join_phase": 6,
    "work_is_given_before_it_was_stopped": 48,
    "work_that_has_waited_is_given_to_no_worker": 68,
}
"""A seed for each planted bug that the first few do not find: it is played before them, to save time. A change of the
worlds may move it: then any of the first seeds does."""

NOT_BY_SEEDS = {
    "a_fence_check_is_answered_by_the_lease_alone",  # Few seeds step the clock between a claim and a check.
    "a_freeze_outlives_its_time_at_a_new_owner",  # Simulated leaders soon look again for unassigned partitions.
    "a_term_is_counted_from_the_election",  # A member must be cut off between the election and its next heartbeat.
    "a_shard_is_served_after_another_has_appended",  # Few seeds pause a replica just there.
    "a_heartbeat_is_answered_from_memory",  # The simulated servers hand every heartbeat in by `submit`.
    "held_back_changes_are_forgotten",  # The same.
    "skipped_assignment_counts",  # No simulated leader assigns after it was asked not to.
}
"""The simulator does not find these: a test of `DIRECTED` does."""
RARE = {
    "a_join_of_a_member_taken_along_renews_no_session",
    "a_stable_group_whose_strategy_failed_is_not_tried_again",
    "a_new_owner_ignores_what_was_left_of_sessions",
    "an_overdue_shard_is_kept",
    "members_that_are_gone_are_answered_for",
    "old_updates_are_believed",
    "progress_of_a_topic_that_no_member_reads_expires_at_once",
    "the_answer_of_the_others_is_ignored",
    "the_others_are_not_asked_before_an_expiry",
    "the_retention_of_a_commit_is_ignored",
    "what_is_taken_in_is_written_again",
}
"""One seed in hundreds finds these. A test of `DIRECTED` finds them always."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - NOT_BY_SEEDS - RARE))
def test_mutant_is_found(name: str) -> None:
    named = [FOUND_BY[name]] if name in FOUND_BY else []
    with MUTANTS[name]():
        tally = run_seeds([*named, *range(SEEDS)], stop_after=1)

    assert tally.failures, f"{name} survived {SEEDS} seeds: {replay_command(0, mutant=name)}"
    broken = {text.partition(" ")[0].rstrip(":") for texts in tally.failures.values() for text in texts}
    assert broken & {*re.split(r",\s*", ABOUT[name].rules)}, f"{name} breaks {sorted(broken)}"


@pytest.mark.parametrize("name", DIRECTED)
def test_mutant_is_found_by_a_directed_test(name: str) -> None:
    directed = DIRECTED[name]
    directed.run()

    with PLANTED[name](), pytest.raises(AssertionError):
        directed.run()


def test_a_planted_bug_that_seeds_miss_has_a_directed_test() -> None:
    assert RARE | NOT_BY_SEEDS | OPEN_PLANTS.keys() <= DIRECTED.keys()


def test_every_bug_of_the_reviews_is_planted() -> None:
    ids = {f"A{number}" for number in range(1, 13)} | {f"R{number}" for number in range(1, 10)} | {"F5", "F7"}

    assert {name for name in FINDINGS if name.startswith("faults")} == {f"faults {each}" for each in ids}
    assert len([name for name in FINDINGS if name.startswith("aesthetics D2")]) == 13
    assert {name for finding in FINDINGS.values() for name in finding.planted_as} <= PLANTED.keys()


def test_without_a_mutant_the_same_seeds_are_quiet() -> None:
    with MUTANTS["no_epoch_check"]():
        pass

    assert not run_seeds(range(8)).failures
