"""Runs of many seeds report what they found before they end."""

import pytest

from tests.simulation import many
from tests.simulation.sim import Tally


def odd_seeds_fail(seeds: range) -> Tally:
    """Sums in which each odd seed violates a rule."""
    return Tally(seeds=len(seeds), failures={seed: ["a rule"] for seed in seeds if seed % 2})


def test_failed_seeds_are_reported_as_they_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(many, "_SECONDS_BETWEEN_REPORTS", 0.0)

    total = many.side_by_side(odd_seeds_fail, Tally(), range(10, 14), jobs=1, chunk=2)

    assert capsys.readouterr().err.splitlines() == [
        "2 of 4 seeds from 10 on were played; seeds with violations: 11",
        "4 of 4 seeds from 10 on were played; seeds with violations: 11, 13",
    ]
    assert sorted(total.failures) == [11, 13]
