"""Every planted bug is found within few seeds: a checker that misses one of them would miss its like in earnest."""

from __future__ import annotations

import pytest

from rota.testing.sim import replay_command, run_seeds
from tests.sim.mutants import MUTANTS

SEEDS = 500


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_found(name: str) -> None:
    with MUTANTS[name]():
        tally = run_seeds(range(SEEDS), stop_after=1)

    assert tally.failures, f"{name} survived {SEEDS} seeds: {replay_command(0, mutant=name)}"


def test_without_a_mutant_the_same_seeds_are_quiet() -> None:
    with MUTANTS["no_epoch_check"]():
        pass

    assert not run_seeds(range(8)).failures
