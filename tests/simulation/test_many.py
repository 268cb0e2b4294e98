"""Runs of many seeds report what they found before they end."""

import pytest

from tests.simulation import sim
from tests.simulation.sim import Choice, Tally


class OddSeedsFail(Choice):
    """Worlds of which each with an odd seed violates a rule."""

    def play(self, seed: int, tally: Tally) -> list[str]:
        return ["a rule"] * (seed % 2)


def test_failed_seeds_are_reported_as_they_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sim, "_SECONDS_BETWEEN_REPORTS", 0.0)

    total = sim.side_by_side(range(10, 14), OddSeedsFail(), jobs=1, chunk=2)

    assert capsys.readouterr().err.splitlines() == [
        "2 of 4 seeds from 10 on were played; seeds with violations: 11",
        "4 of 4 seeds from 10 on were played; seeds with violations: 11, 13",
    ]
    assert sorted(total.failures) == [11, 13]
