"""A short run of each fuzzer, which finds nothing, and the defects that it must find."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz import http1, http2, journal
from tests.fuzz.campaign import run
from tests.fuzz.mutations import mutated, mutated_document
from tests.fuzz.plants import PLANTS
from tests.fuzz.targets import TARGETS

SEED, CASES = 20_261_123, 1_500


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing(name: str) -> None:
    report = run(TARGETS[name], SEED, cases=CASES)

    assert report.findings == []
    assert report.cases == CASES
    assert report.worst_cpu_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_found(name: str) -> None:
    plant = PLANTS[name]

    with plant.planted():
        report = run(TARGETS[plant.target], SEED, cases=plant.cases)

    assert any(plant.says in finding for finding in report.findings), str(report)


def test_every_target_has_a_planted_defect() -> None:
    assert {plant.target for plant in PLANTS.values()} == TARGETS.keys()


@pytest.mark.parametrize("number", range(5))
def test_a_seed_makes_the_same_cases_again(number: int) -> None:
    def made() -> list[object]:
        random = Random(f"a seed:{number}")
        document = mutated_document(random, {"a": [1, {"b": None}], "c": "d"})
        return [
            http1.a_request(random),
            list(http2._frames(random)),
            str(journal._changed(random, journal.lines())),
            mutated(random, b"bytes"),
            str(document),
        ]

    assert made() == made()
