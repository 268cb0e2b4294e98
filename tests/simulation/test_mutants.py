"""Every planted bug is found within few seeds: a checker that misses one of them would miss its like in earnest."""

from __future__ import annotations

import re

import pytest

from tests.simulation.directed import DIRECTED
from tests.simulation.findings import FINDINGS
from tests.simulation.mutants import MUTANTS
from tests.simulation.registry import ABOUT
from tests.simulation.shrink import rule_of
from tests.simulation.sim import GROUPS, REPLICAS, Choice, run_seeds

SEEDS = 500
PROGRAM_RULES = ("L7", "two-holders")
"""What a program notices of a rule that is broken."""
FOUND_BY = {
    "a_sweep_deletes_groups_that_hold_progress": 30,
    "an_overdue_shard_is_kept": 51,
    "heartbeat_in_join_phase_does_not_renew": 39,
    "offsets_of_an_empty_group_expire_by_their_own_age": 121,
    "permissions_are_not_counted": 41,
    "replies_after_the_lease": 47,
    "stale_renewal_reinstalls": 35,
    "tombstone_forgotten": 13,
}
"""A seed for each planted bug that the first few do not find: it is played before them, to save time. A change of the
worlds may move it: then any of the first seeds does."""

BY_PROGRAMS = {
    "a_candidate_need_not_wait": 55,
    "a_generation_that_begins_while_a_job_runs_is_not_assigned": 71,
    "a_leader_at_work_is_displaced": 5,
    "a_leader_is_never_asked_to_hand_over": 5,
    "candidate_is_named_as_leader": 4,
    "candidates_wait_for_each_other_once_their_leader_has_gone": 4,
    "changes_of_topics_do_not_wait": 11,
    "changes_that_collect_are_never_assigned": 68,
    "the_earliest_candidate_leads": 5,
    "work_is_given_before_it_was_stopped": 66,
    "work_that_has_waited_is_given_to_no_worker": 48,
}
"""Bugs that only worlds of users' programs find, and a seed that does: of elections, and of what the server assigns."""

NOT_BY_SEEDS = {
    "a_topic_change_while_a_job_runs_is_forgotten",  # The SDK's leader soon looks at the topics itself.
    "a_fence_check_is_answered_by_the_lease_alone",  # Few seeds step the clock between a claim and a check.
    "a_freeze_outlives_its_time_at_a_new_owner",  # Simulated leaders soon look again for unassigned partitions.
    "a_group_that_has_moved_is_still_assigned",  # The runtime computes nothing for a shard that is dropped.
    "a_lease_is_over_by_a_clock_that_was_set",  # An owner that is asked whether it holds its shards says so.
    "a_term_is_counted_from_the_election",  # A member must be cut off between the election and its next heartbeat.
    "a_shard_is_served_after_another_has_appended",  # Few seeds pause a replica just there.
    "held_back_changes_are_forgotten",  # Simulated leaders soon look again for unassigned partitions.
    "retries_do_not_end",  # A client hangs up, and tries another replica, before it has waited for longer than it may.
    "skipped_assignment_counts",  # No simulated leader assigns after it was asked not to.
    "topics_that_are_unknown_are_not_listed_again",  # A listing waits until the shard of the topics has an owner.
}
"""The simulator does not find these: a test of `DIRECTED` does."""
RARE = {
    "a_lease_that_ran_out_is_renewed",
    "only_one_shard_is_given_up",
    "a_cancelled_call_stays_parked",
    "a_closed_shard_still_decides",
    "a_frozen_group_preempts_its_leader",
    "a_join_of_a_member_taken_along_renews_no_session",
    "a_replica_that_drains_parks_calls_at_peers",
    "a_stable_group_whose_strategy_failed_is_not_tried_again",
    "a_new_owner_ignores_what_was_left_of_sessions",
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
    seeds, world = (BY_PROGRAMS, GROUPS) if name in BY_PROGRAMS else (FOUND_BY, REPLICAS)
    named = [seeds[name]] if name in seeds else []
    tally = run_seeds([*named, *range(SEEDS)], Choice(world, mutant=name), stop_after=1)

    assert tally.failures, f"{name} survived {SEEDS} seeds"
    broken = {rule_of(text) for texts in tally.failures.values() for text in texts}
    expected = {"invariant", *re.split(r",\s*", ABOUT[name].rules), *(PROGRAM_RULES if name in BY_PROGRAMS else ())}
    assert broken & expected, f"{name} breaks {sorted(broken)}"


@pytest.mark.parametrize("name", DIRECTED)
def test_mutant_is_found_by_a_directed_test(name: str) -> None:
    directed = DIRECTED[name]
    directed.run()

    with MUTANTS[name](), pytest.raises(AssertionError):
        directed.run()


def test_a_planted_bug_that_seeds_miss_has_a_directed_test() -> None:
    assert DIRECTED.keys() >= RARE | NOT_BY_SEEDS


def test_every_bug_of_the_reviews_is_planted() -> None:
    ids = {f"A{number}" for number in range(1, 13)} | {f"R{number}" for number in range(1, 10)} | {"F5", "F7"}

    assert {name for name in FINDINGS if name.startswith("faults")} == {f"faults {each}" for each in ids}
    assert len([name for name in FINDINGS if name.startswith("aesthetics D2")]) == 13
    assert {name for finding in FINDINGS.values() for name in finding.planted_as} <= MUTANTS.keys()


def test_without_a_mutant_the_same_seeds_are_quiet() -> None:
    with MUTANTS["no_epoch_check"]():
        pass

    assert not run_seeds(range(8)).failures
