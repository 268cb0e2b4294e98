"""The same seed is the same run, in this process and in another."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.simulation.groups.world import run_program_seed
from tests.simulation.trace import trace

DIGESTS = "from tests.simulation.groups.test_replays import digest; print(*(digest(seed) for seed in range(8)))"


def digest(seed: int) -> str:
    return hashlib.sha256("\n".join(trace(run_program_seed(seed)[0].history)).encode()).hexdigest()


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 55, 79])
def test_the_same_seed_twice_is_the_same_run(seed: int) -> None:
    assert digest(seed) == digest(seed)


def test_another_seed_is_another_run() -> None:
    assert len({digest(seed) for seed in (0, 1, 2)}) == 3


@pytest.mark.thorough
def test_the_order_of_sets_decides_nothing() -> None:
    digests = {_digests_of_a_process(hash_seed) for hash_seed in ("1", "2")}

    assert len(digests) == 1


def _digests_of_a_process(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", DIGESTS], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout
