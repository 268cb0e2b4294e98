"""Seeds of whole groups: nothing is violated, and enough happens for that to mean something."""

from __future__ import annotations

import os

import pytest

from rota.testing.groups.tally import replay_command, run_seeds

CHUNK = 100
SEEDS = int(os.environ.get("ROTA_GROUP_SEEDS", "2000"))
FIRST = int(os.environ.get("ROTA_GROUP_FIRST", "0"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_no_seed_violates_anything(first: int) -> None:
    tally = run_seeds(range(first, first + CHUNK))

    assert not tally.failures, "\n".join(
        f"seed {seed}: {found[0]}\n  {replay_command(seed)}" for seed, found in sorted(tally.failures.items())
    )
    assert tally.rebalances >= 4 * CHUNK, "worlds in which nothing happens prove nothing"
    assert tally.faults >= 7 * CHUNK
