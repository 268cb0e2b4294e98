"""Every planted defect is found: a check that misses one of them would miss its like in earnest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.groups.plants import PLANTS, Plant
from tests.simulation.groups.world import run_program_seed
from tests.simulation.shrink import rule_of

WITHIN = 400
"""Seeds to look through where those that a row names play out otherwise by now."""


def _rules(seed: int) -> set[str]:
    return {rule_of(text) for text in run_program_seed(seed)[1]}


def _candidates(plant: Plant) -> Iterator[int]:
    yield from plant.seeds
    yield from (seed for seed in range(WITHIN) if seed not in plant.seeds)


def _seed_that_finds(plant: Plant) -> int | None:
    with plant.planted():
        return next((seed for seed in _candidates(plant) if plant.rule in _rules(seed)), None)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_found_by_a_seed_without_violations(name: str) -> None:
    seed = _seed_that_finds(PLANTS[name])

    assert seed is not None, f"none of {WITHIN} seeds reports {PLANTS[name].rule}"
    assert PLANTS[name].rule not in _rules(seed)
