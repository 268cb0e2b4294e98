"""A short run of each fuzzer, which finds nothing, and the defects that it must find."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz import http1, http2, journal
from tests.fuzz.__main__ import main
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


def test_a_finding_is_repeated_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with PLANTS["a_damaged_line_that_ends_the_fold"].planted():
        first = run(TARGETS["journal"], SEED, cases=20).findings[0]
        command = first.partition(": ")[0]
        assert main([*command.split()[3:], "--cases", "1"]) == 1

    assert first.splitlines()[-1] in capsys.readouterr().out


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
