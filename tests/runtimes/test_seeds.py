"""Seeds of worlds with replicas of the production runtime: nothing is violated, and the rare situations are met."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rota.testing.runtimes.tally import replay_command, run_seed, run_seeds
from rota.testing.sim import Tally

CHUNK = 50
SEEDS = int(os.environ.get("ROTA_RUNTIME_SEEDS", "100"))
FIRST = int(os.environ.get("ROTA_RUNTIME_FIRST", "0"))
REGRESSIONS = Path(__file__).with_name("regression_seeds.txt")

SITUATIONS = Path(__file__).with_name("situations.txt").read_text().splitlines()
"""What the seeds of `make test` must have met together: rules that are never put to the test prove nothing."""


def _failures(tally: Tally) -> str:
    return "\n".join(f"seed {seed}: {found[0]}\n  {replay_command(seed)}" for seed, found in tally.failures.items())


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_no_seed_violates_anything(first: int) -> None:
    tally = run_seeds(range(first, first + CHUNK))

    assert not tally.failures, _failures(tally)
    assert tally.rebalances >= 3 * CHUNK, "worlds in which nothing happens prove nothing"
    assert _not_met(tally, first + CHUNK) == []


def _not_met(tally: Tally, end: int) -> list[str]:
    """Situations that neither the chunk nor the next one meets: a change of the worlds moves the rare ones."""
    missing = [situation for situation in SITUATIONS if not tally.sometimes[situation]]
    later = run_seeds(range(end, end + CHUNK)).sometimes if missing else {}
    return [situation for situation in missing if not later.get(situation)]


def _regressions() -> list[int]:
    lines = [line.split("#")[0].strip() for line in REGRESSIONS.read_text().splitlines()]
    return [int(line) for line in lines if line]


@pytest.mark.parametrize("seed", _regressions())
def test_a_seed_that_once_found_a_bug_is_quiet(seed: int) -> None:
    assert run_seed(seed)[1] == []
