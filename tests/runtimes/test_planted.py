"""Every defect that is planted in the production runtime is found: a net that lets one through would lose its like."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.testing.runtimes.tally import run_seed
from tests.runtimes.plants import PLANTS, Plant
from tests.sim.directed import DIRECTED

WITHIN = 600
"""Seeds to look through where those that a row names play out otherwise by now."""
PAIR = ("reply_before_commit", "lease_is_not_watched")
PAIR_WITHIN = 50


def _rules(seed: int) -> set[str]:
    return {text.split()[0].rstrip(":") for text in run_seed(seed)[1]}


def _candidates(plant: Plant, within: int) -> Iterator[int]:
    yield from plant.seeds
    yield from (seed for seed in range(within) if seed not in plant.seeds)


def _seed_that_finds(plant: Plant, within: int = WITHIN) -> int | None:
    with plant.planted():
        return next((seed for seed in _candidates(plant, within) if not _rules(seed).isdisjoint(plant.rules)), None)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in DIRECTED else ()) for name in PLANTS]
)
def test_a_planted_defect_is_found_by_a_seed_without_violations(name: str) -> None:
    seed = _seed_that_finds(PLANTS[name])

    assert seed is not None, f"none of {WITHIN} seeds reports one of {PLANTS[name].rules}"
    assert _rules(seed) == set()


@pytest.mark.parametrize("name", PAIR)
def test_the_pair_hidden_by_simulated_replicas_is_found(name: str) -> None:
    assert all(seed < PAIR_WITHIN for seed in PLANTS[name].seeds)
    assert _seed_that_finds(PLANTS[name], PAIR_WITHIN) in range(PAIR_WITHIN)
