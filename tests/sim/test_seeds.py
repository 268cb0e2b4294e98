"""Seeds of simulated worlds: nothing is violated, the rare situations are met, and the same seed is the same world."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rota.testing.coverage import Arguments, unknown
from rota.testing.profiles import PROFILES
from rota.testing.sim import Tally, replay_command, run_seed, run_seeds
from tests.support.trace_hash import trace_hash

CHUNK = 256
SEEDS = int(os.environ.get("ROTA_SIM_SEEDS", "256"))
FIRST = int(os.environ.get("ROTA_SIM_FIRST", "0"))
REGRESSIONS = Path(__file__).parent / "regression_seeds.txt"

SITUATIONS = (Path(__file__).parent / "situations.txt").read_text().splitlines()
"""Every chunk must have met each of these at least once: otherwise it has not tested it."""


COVERED = (0, 256)
"""The chunk of seeds that `unreached.txt` is about."""
UNREACHED = Arguments((Path(__file__).parent / "unreached.txt").read_text())
LOOKED_THROUGH = 512
"""Seeds to look through for outcomes that the chunk does not reach: a change of the worlds moves the rare ones."""


def _published(tally: Tally) -> str:
    return "\n".join(
        f"seed {seed}: {found[0]}\n  {replay_command(seed)}" for seed, found in sorted(tally.failures.items())
    )


def _reached_from(tally: Tally) -> set[tuple[str, str, str]]:
    """The outcomes of the first chunk, and those of later ones for as long as one is missing."""
    reached, end = set(tally.reached), CHUNK
    while end < LOOKED_THROUGH and any("not reached" in fault for fault in UNREACHED.faults(reached)):
        more = run_seeds(range(end, end + CHUNK))
        assert not more.failures, _published(more)
        reached |= more.reached.keys()
        end += CHUNK
    return reached


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_no_seed_violates_anything(first: int) -> None:
    tally = run_seeds(range(first, first + CHUNK))

    assert not tally.failures, _published(tally)
    assert tally.rebalances >= 5 * CHUNK, "worlds in which nothing happens prove nothing"
    assert [situation for situation in SITUATIONS if not tally.sometimes[situation]] == []
    if (first, CHUNK) == COVERED:
        assert "\n".join(UNREACHED.faults(_reached_from(tally))) == "", (
            f"see: python -m rota.testing.sim --seeds {LOOKED_THROUGH} --coverage"
        )


def test_an_outcome_neither_reached_nor_listed_is_noticed() -> None:
    reached = {("Stable", "FetchOffsets", "NONE"), ("Stable", "Heartbeat", "INVALID_GROUP_ID")}

    faults = list(UNREACHED.faults(reached))

    assert "not reached, and no reason is given: Stable | JoinGroup | NONE" in faults
    assert not any("Stable | FetchOffsets | NONE" in fault for fault in faults)
    assert any("INVALID_GROUP_ID' but reached" in fault.replace(",", "") for fault in faults)
    assert unknown([("Stable", "Heartbeat", "GROUP_MAX_SIZE_REACHED")]) != []


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_same_seed_twice_is_the_same_world(seed: int) -> None:
    once, _ = run_seed(seed)
    again, _ = run_seed(seed)

    assert trace_hash(once.history) == trace_hash(again.history)


def test_another_seed_is_another_world() -> None:
    hashes = {trace_hash(run_seed(seed)[0].history) for seed in (0, 8, 16)}

    assert len(hashes) == 3


def _regressions() -> list[tuple[int, str]]:
    rows = [line.split("#")[0].split() for line in REGRESSIONS.read_text().splitlines()]
    return [(int(row[0]), row[1]) for row in rows if row]


@pytest.mark.parametrize(("seed", "profile"), _regressions())
def test_a_seed_that_once_found_a_bug_is_quiet(seed: int, profile: str) -> None:
    _, found = run_seed(seed, PROFILES[profile])

    assert found == []
