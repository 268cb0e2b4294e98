"""Worlds that were never played before, for as long as one says."""

from __future__ import annotations

import os
import random
from time import monotonic

import pytest

from tests.faults.verdict import LOST
from tests.simulation.sim import Tally, failures_of, run_seeds
from tests.support.torture import Row, add_row, rounds

SEEDS_OF_A_ROUND = 200


@pytest.mark.torture
def test_no_world_breaks_a_promise() -> None:
    first = int(os.environ.get("ROTA_SEED") or random.SystemRandom().randrange(2**32))
    started, tally = monotonic(), Tally()
    for number in rounds(None, share=0.3):
        begin = first + number * SEEDS_OF_A_ROUND
        tally.add(run_seeds(range(begin, begin + SEEDS_OF_A_ROUND)))
        if tally.failures:
            break

    violations = [each for found in tally.failures.values() for each in found]
    row = Row(
        "simulated worlds",
        minutes=(monotonic() - started) / 60,
        rounds=tally.seeds,
        faults=tally.sometimes.total(),
        generations=tally.rebalances,
        acknowledged=tally.counts["calls"],
        unanswered=0,
        lost=sum(each.split(" ", 1)[0] in LOST for each in violations),
        violations=len(violations),
        seed=first,
    )
    add_row(row)
    assert not tally.failures, failures_of(tally)
