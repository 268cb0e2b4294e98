"""Seeds of whole groups: nothing is violated, and enough happens for that to mean something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.sim import GROUPS, Choice, failures_of, run_seeds

CHUNK = 100
CHOICE = Choice(GROUPS)
OPEN = Path(__file__).with_name("open_seeds.txt")
"""Seeds that still violate a rule, each with a note on its cause: the list may only become shorter."""
SEEDS = int(os.environ.get("ROTA_GROUP_SEEDS", "200"))
FIRST = int(os.environ.get("ROTA_GROUP_FIRST", "0"))


def known_open() -> set[int]:
    lines = [line for line in OPEN.read_text().splitlines() if line and not line.startswith("#")]
    return {int(line.split()[0]) for line in lines}


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_no_seed_violates_anything(first: int) -> None:
    tally = run_seeds(range(first, first + CHUNK), CHOICE)

    known = known_open() & set(range(first, first + CHUNK))
    assert tally.failures.keys() == known, failures_of(tally, CHOICE)
    assert tally.rebalances >= 4 * CHUNK, "worlds in which nothing happens prove nothing"
    assert tally.counts["faults"] >= 7 * CHUNK
