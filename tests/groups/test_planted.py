"""Every planted defect is found: a check that misses one of them would miss its like in earnest."""

from __future__ import annotations

import pytest

from rota.testing.groups import run_seed
from tests.groups.plants import PLANTS

CASES = [(name, seed) for name, plant in PLANTS.items() for seed in plant.seeds]


def _rules(seed: int) -> set[str]:
    return {text.partition(":")[0] for text in run_seed(seed).violations}


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_a_planted_defect_is_found(name: str, seed: int) -> None:
    plant = PLANTS[name]
    with plant.planted():
        found = _rules(seed)

    assert plant.rule in found


@pytest.mark.parametrize("seed", sorted({seed for _, seed in CASES}))
def test_without_a_plant_the_same_seed_is_in_order(seed: int) -> None:
    assert run_seed(seed).violations == []


def test_every_plant_has_a_seed_that_finds_it() -> None:
    assert [name for name, plant in PLANTS.items() if not plant.seeds] == []
