"""Runs of the simulator are behaviours of the model, and a bug in the simulated service shows as the rule it breaks."""

from __future__ import annotations

import pytest

from tests.model.trace import played, replay, written


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"kind": "gone", "member": "m"}, '[kind |-> "gone", member |-> "m"]'),
        ({"m": frozenset({"t-1", "t-0"})}, '("m" :> {"t-0", "t-1"})'),
        ({}, "(<<>>)"),
        ((1, True), "<<1, TRUE>>"),
    ],
)
def test_values_are_written_in_tla(value: object, text: str) -> None:
    assert written(value) == text


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_simulated_world_is_a_behaviour_of_the_model(seed: int) -> None:
    world = played(seed)

    for group in world.groups:
        verdict = replay(world, group)
        assert verdict.violated == "", verdict.output
        assert verdict.depth > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "seed", "rule"),
    [
        ("generation_not_bumped", 0, "S1"),
        ("tombstone_forgotten", 13, "S1"),
        ("anybody_may_assign", 0, "S5"),
        ("sync_ignores_generation", 30, "S5"),
        ("commit_ignores_generation", 5, "S9"),
        ("reacquire_keeps_epoch", 0, "S11"),
        ("no_sequence_check", 0, "S12"),
        ("reply_before_commit", 0, "D1"),
        ("unknown_outcome_is_failure", 0, "D3"),
    ],
)
def test_bug_in_the_simulated_service_breaks_its_rule(mutant: str, seed: int, rule: str) -> None:
    world = played(seed, mutant=mutant)

    verdicts = [replay(world, group, rule) for group in world.groups]

    assert rule in [verdict.violated for verdict in verdicts], [verdict.output for verdict in verdicts]
