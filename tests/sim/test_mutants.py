"""Every planted bug is found within few seeds: a checker that misses one of them would miss its like in earnest."""

from __future__ import annotations

import pytest

from rota.testing.sim import replay_command, run_seeds
from tests.sim.mutants import MUTANTS

SEEDS = 500
FOUND_BY = {
    "a_lease_that_ran_out_is_renewed": 10,
    "an_overdue_shard_is_kept": 196,
    "a_new_owner_ignores_what_was_left_of_sessions": 152,
    "a_replica_that_drains_parks_calls_at_peers": 126,
    "candidate_is_named_as_leader": 18,
    "heartbeat_in_join_phase_does_not_renew": 42,
    "members_that_are_gone_are_answered_for": 1880,
    "no_epoch_check": 50,
    "old_updates_are_believed": 190,
    "only_one_shard_is_given_up": 80,
    "resync_drops_a_static_return": 33,
    "stale_renewal_reinstalls": 48,
    "static_replacement_in_completing": 20,
    "the_answer_of_the_others_is_ignored": 968,
    "the_others_are_not_asked_before_an_expiry": 968,
}
"""A seed that finds what the first seeds do not: it is played before them."""


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_found(name: str) -> None:
    with MUTANTS[name]():
        tally = run_seeds([FOUND_BY.get(name, 0), *range(SEEDS)], stop_after=1)

    assert tally.failures, f"{name} survived {SEEDS} seeds: {replay_command(0, mutant=name)}"


def test_without_a_mutant_the_same_seeds_are_quiet() -> None:
    with MUTANTS["no_epoch_check"]():
        pass

    assert not run_seeds(range(8)).failures
