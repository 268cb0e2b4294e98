"""The production runtime over a store that goes back to an earlier state: no generation and no epoch comes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rota.runtime.loop import ShardLoop
from rota.runtime.ownership import Ownership
from rota.testing.runtimes.setbacks import run_setback_seed
from rota.testing.runtimes.tally import replay_command, run_seeds
from rota.testing.sim import Tally

SEEDS = 16
MANY = 120
RULES = ("D1", "G1", "G2", "G3", "G4", "L7", "S15")
SITUATIONS = ("the store went back", "a replica finds that the store went back", "a generation was raised")

Plant = Callable[[pytest.MonkeyPatch], None]


def _failures(tally: Tally) -> str:
    failures = sorted(tally.failures.items())
    return "\n".join(f"{found[0]}\n  {replay_command(seed, setbacks=True)}" for seed, found in failures)


def _check(seeds: range) -> None:
    tally = run_seeds(seeds, setbacks=True)

    assert not tally.failures, _failures(tally)
    assert [situation for situation in SITUATIONS if not tally.sometimes[situation]] == []


def test_no_token_comes_again_after_the_store_went_back() -> None:
    _check(range(SEEDS))


@pytest.mark.slow
def test_no_token_comes_again_in_many_worlds() -> None:
    _check(range(SEEDS, SEEDS + MANY))


def floors_are_not_written(patch: pytest.MonkeyPatch) -> None:
    async def raise_floors(_self: Any, _floors: Any) -> None:
        """The step is skipped."""

    patch.setattr(Ownership, "_raise_floors", raise_floors)


def shards_are_served_on(patch: pytest.MonkeyPatch) -> None:
    """The shell does not give a shard up, though its memory is ahead of the store."""
    original = ShardLoop.give_up

    def give_up(self: Any, owned: Any, reason: str) -> None:
        if "went back" not in reason:
            original(self, owned, reason)

    patch.setattr(ShardLoop, "give_up", give_up)


FOUND_BY: dict[Plant, int] = {
    floors_are_not_written: 41,
    shards_are_served_on: 56,
}
"""A seed that finds each bug planted in the shell; where a change has moved it, one of the first `WITHIN` does."""
WITHIN = 200


def breaks_the_rules(seed: int) -> bool:
    return any(found.startswith(RULES) for found in run_setback_seed(seed)[1])


@pytest.mark.thorough
@pytest.mark.parametrize("plant", FOUND_BY, ids=lambda plant: plant.__name__)
def test_a_bug_in_the_shell_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    assert any(breaks_the_rules(seed) for seed in [FOUND_BY[plant], *range(WITHIN)])
