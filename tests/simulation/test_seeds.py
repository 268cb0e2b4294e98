"""Seeds of simulated worlds: nothing is violated, the rare situations are met, and the same seed is the same world."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.sim import Tally, failures_of, run_seed, run_seeds
from tests.support.trace_hash import trace_hash

CHUNK = 256
SEEDS = int(os.environ.get("ROTA_SIM_SEEDS", "256"))
FIRST = int(os.environ.get("ROTA_SIM_FIRST", "0"))
REGRESSIONS = Path(__file__).parent / "regression_seeds.txt"

SITUATIONS = (Path(__file__).parent / "situations.txt").read_text().splitlines()
"""Every chunk must have met each of these at least once: otherwise it has not tested it."""

DIGESTS = """
from tests.support.trace_hash import trace_hash
from tests.simulation.sim import run_seed
print(*(trace_hash(run_seed(seed)[0].history) for seed in range(6)))
"""


def _not_met(tally: Tally, end: int) -> list[str]:
    """Situations that neither the chunk nor the next one meets: a change of the worlds moves the rare ones."""
    missing = [situation for situation in SITUATIONS if not tally.sometimes[situation]]
    later = run_seeds(range(end, end + CHUNK)).sometimes if missing else {}
    return [situation for situation in missing if not later.get(situation)]


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_no_seed_violates_anything(first: int) -> None:
    tally = run_seeds(range(first, first + CHUNK))

    assert not tally.failures, failures_of(tally)
    assert tally.rebalances >= 5 * CHUNK, "worlds in which nothing happens prove nothing"
    assert _not_met(tally, first + CHUNK) == []


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_same_seed_twice_is_the_same_world(seed: int) -> None:
    once, _ = run_seed(seed)
    again, _ = run_seed(seed)

    assert trace_hash(once.history) == trace_hash(again.history)


def test_another_seed_is_another_world() -> None:
    hashes = {trace_hash(run_seed(seed)[0].history) for seed in (0, 8, 16)}

    assert len(hashes) == 3


@pytest.mark.thorough
def test_the_order_of_sets_decides_nothing() -> None:
    digests = {_digests_of_a_process(hash_seed) for hash_seed in ("1", "2")}

    assert len(digests) == 1


def _digests_of_a_process(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", DIGESTS], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout


def test_seeds_that_once_found_a_bug_are_quiet() -> None:
    seeds = [int(seed) for line in REGRESSIONS.read_text().splitlines() if (seed := line.split("#")[0].strip())]

    assert {seed: found for seed in seeds if (found := run_seed(seed)[1])} == {}
