"""Worlds with a store that goes back to an earlier state: no generation and no epoch comes a second time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rota.core.group import join
from rota.core.group import shard as shards
from rota.core.membership.standing import Standing
from rota.core.replica.going_back import StoreMemory
from rota.core.replica.leases import Leases
from rota.core.replica.ports import Floor
from rota.server.runtime.loop import ShardLoop
from rota.server.runtime.ownership import Ownership
from rota.testing.memory import MemoryTables
from tests.simulation.setbacks import run_setback_seed
from tests.simulation.sim import SETBACKS, Choice, failures_of, run_seeds

CHOICE = Choice(SETBACKS)
SEEDS = 16
MANY = 250
RULES = ("D1", "G1", "G2", "G3", "G4", "L7", "S15")
SITUATIONS = ("the store went back", "a replica finds that the store went back", "a generation was raised")

Plant = Callable[[pytest.MonkeyPatch], None]


def _check(seeds: range) -> None:
    tally = run_seeds(seeds, CHOICE)

    assert not tally.failures, failures_of(tally, CHOICE)
    assert [situation for situation in SITUATIONS if not tally.sometimes[situation]] == []


def test_no_token_comes_again_after_the_store_went_back() -> None:
    _check(range(SEEDS))


@pytest.mark.slow
def test_no_token_comes_again_in_many_worlds() -> None:
    _check(range(SEEDS, SEEDS + MANY))


def nothing_is_compared(patch: pytest.MonkeyPatch) -> None:
    """The replica remembers nothing of the shards, so no answer differs from what it knows."""
    patch.setattr(StoreMemory, "_note_setback", lambda _self, _setback: None)


def floors_are_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTables, "raise_floors", lambda _self, _floors: None)


def generations_below_the_floor_are_kept(patch: pytest.MonkeyPatch) -> None:
    def note_floor(self: Any, _result: Any, floor: int, _lost: Any) -> None:
        self.generation_floor = floor

    patch.setattr(shards.Shard, "raise_generations", note_floor)


def new_groups_begin_below_the_floor(patch: pytest.MonkeyPatch) -> None:
    original = join.pass_generations
    patch.setattr(
        join,
        "pass_generations",
        lambda result, group, request, _: original(result, group, request, 0),
    )


def _members_forget(patch: pytest.MonkeyPatch) -> None:
    """No member names the generation that it held, which would hide what the replicas do wrong."""
    patch.setattr(Standing, "hold", lambda _self, _generation_id: None)


def a_foreign_timeline_raises_nothing(patch: pytest.MonkeyPatch) -> None:
    _members_forget(patch)
    patch.setattr(StoreMemory, "is_unsure", lambda _self, _claim, _now_ms: False)


def epochs_repeat(patch: pytest.MonkeyPatch) -> None:
    original = MemoryTables.raise_floors

    def raise_generations_only(self: Any, floors: Mapping[int, Floor]) -> None:
        original(self, {shard_id: floor._replace(epoch=0) for shard_id, floor in floors.items()})

    patch.setattr(MemoryTables, "raise_floors", raise_generations_only)
    patch.setattr(StoreMemory, "known_epochs", lambda _self: {})


def shards_are_served_on(patch: pytest.MonkeyPatch) -> None:
    """The shard is not given up, though its memory is ahead of the store."""
    original = Leases._look_back

    def look_back(self: Any, now: Any) -> Any:
        owned, self.owned = self.owned, {}
        try:
            return (yield from original(self, now))
        finally:
            self.owned.update(owned)

    patch.setattr(Leases, "_look_back", look_back)


def the_shell_writes_no_floors(patch: pytest.MonkeyPatch) -> None:
    async def raise_floors(_self: Any, _floors: Any) -> None:
        """The step is skipped."""

    patch.setattr(Ownership, "_raise_floors", raise_floors)


def the_shell_gives_no_shard_up(patch: pytest.MonkeyPatch) -> None:
    """The shell does not give a shard up, though its memory is ahead of the store."""
    original = ShardLoop.give_up

    def give_up(self: Any, owned: Any, reason: str) -> None:
        if "went back" not in reason:
            original(self, owned, reason)

    patch.setattr(ShardLoop, "give_up", give_up)


FOUND_BY: dict[Plant, int] = {
    nothing_is_compared: 0,
    floors_are_not_written: 2,
    generations_below_the_floor_are_kept: 40,
    new_groups_begin_below_the_floor: 2,
    a_foreign_timeline_raises_nothing: 2,
    epochs_repeat: 0,
    shards_are_served_on: 73,
    the_shell_writes_no_floors: 2,
    the_shell_gives_no_shard_up: 9,
}
"""A seed that finds each planted bug; where a change has moved it, one of the first `WITHIN` does."""
WITHIN = 200


def breaks_the_rules(seed: int) -> bool:
    return any(found.startswith(RULES) for found in run_setback_seed(seed)[1])


@pytest.mark.parametrize("plant", FOUND_BY, ids=lambda plant: plant.__name__)
def test_a_bug_in_the_reaction_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    assert any(breaks_the_rules(seed) for seed in [FOUND_BY[plant], *range(WITHIN)])
