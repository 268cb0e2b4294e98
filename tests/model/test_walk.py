"""Everything that two clients can do to a group in a few steps: nothing breaks, and nothing gets stuck."""

from __future__ import annotations

import pytest

from tests.model.walk import explore, without_a_way_to_peace
from tests.sim.mutants import MUTANTS

DIES_IN_THE_WALK = (
    "answered_twice",
    "assignment_not_persisted",
    "commit_ignores_generation",
    "generation_completes_without_waiting",
    "generation_not_bumped",
    "generation_not_persisted",
    "leave_not_durable",
    "pending_id_ignored",
    "static_replacement_in_completing",
    "sync_ignores_generation",
    "tombstone_forgotten",
)


@pytest.mark.thorough
def test_everything_that_can_happen_in_seven_steps_is_right() -> None:
    walk = explore(depth=7)

    assert len(walk.states) > 1_500
    assert walk.peaceful, "the walk never got to where both clients are in one Stable generation"
    assert without_a_way_to_peace(walk) == []


@pytest.mark.slow
def test_everything_that_can_happen_in_eleven_steps_is_right() -> None:
    walk = explore(depth=11)

    assert len(walk.states) > 12_000
    assert without_a_way_to_peace(walk) == []


@pytest.mark.parametrize("name", DIES_IN_THE_WALK)
def test_planted_bug_dies(name: str) -> None:
    with MUTANTS[name](), pytest.raises(AssertionError, match="after"):
        explore(depth=7)
