"""Every planted bug is found within few seeds: a checker that misses one of them would miss its like in earnest."""

from __future__ import annotations

import pytest

from rota.testing.sim import replay_command, run_seeds
from tests.sim.mutants import MUTANTS

SEEDS = 500
FOUND_BY = {
    "a_lease_that_ran_out_is_renewed": 73,
    "an_overdue_shard_is_kept": 73,
    "candidate_is_named_as_leader": 18,
    "heartbeat_in_join_phase_does_not_renew": 42,
    "no_epoch_check": 50,
    "only_one_shard_is_given_up": 80,
    "resync_drops_a_static_return": 33,
    "stale_renewal_reinstalls": 48,
    "static_replacement_in_completing": 20,
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
