"""Random commands of members, strangers and administrators against the core, those of the fuzzer `core`.

The driver checks the invariants, the journal, the rows and the answers after every step; an exception is a bug.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.core import CoreFuzzer


@pytest.mark.parametrize("first_seed", range(0, 600, 150))
def test_random_commands_never_break_the_core(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 150):
        CoreFuzzer().play(Random(seed))
