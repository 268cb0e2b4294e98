"""From a world that violates a rule to a small one that violates the same rule: delta debugging.

To leave something out changes all later draws of the seed, so each smaller world is another one, and is played. It
is kept if it violates the rule with a shorter trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tests.simulation.nemesis import place_name
from tests.simulation.without import PROBABILITIES, Without

if TYPE_CHECKING:
    from tests.simulation.world import World

Play = Callable[[Without], "tuple[World, list[str]]"]
Item = TypeVar("Item")

MOST_PLAYS = 400
_STEP_MS = 250


def rule_of(violation: str) -> str:
    """The rule that a violation names first: S15, L7, crash."""
    return violation.split(" ", 1)[0].rstrip(":")


def size_of(world: World) -> int:
    """The length of the trace: calls and lines of the journal."""
    return len(world.history.calls) + sum(len(lines) for lines in world.history.journal.values())


def faults_of(world: World) -> int:
    """How many acts of the nemesis there were."""
    return sum(not act.is_left_out for act in world.history.acts)


@dataclass(slots=True)
class Shrunk:
    """The smallest world that was found, and the world that it was made of."""

    first: World
    world: World
    rule: str
    found: list[str]
    plays: int = 0

    def __str__(self) -> str:
        return (
            f"{self.found[0]}\nshrunk by {self.plays} plays: {faults_of(self.world)} acts of {faults_of(self.first)}, "
            f"a trace of {size_of(self.world)} of {size_of(self.first)} calls and lines"
        )


def shrink(play: Play, without: Without, most_plays: int = MOST_PLAYS) -> Shrunk | None:
    """The smallest world that `play` finds to violate the rule; None where the first one violates none."""
    world, found = play(without)
    return _Shrinking(play, world, found, most_plays).run() if found else None


class _Shrinking:
    def __init__(self, play: Play, world: World, found: list[str], most_plays: int) -> None:
        self._play = play
        self._most_plays = most_plays
        self._best = Shrunk(world, world, rule_of(found[0]), found)

    def run(self) -> Shrunk:
        """Kinds and places before single acts, which are numbered in the world without those; again while it helps."""
        size = 0
        while size != (size := size_of(self._best.world)) and self._may_play():
            self._end_sooner()
            self._leave_out(self._names(), lambda without, names: without.and_names(names))
            self._leave_out(self._acts(), lambda without, acts: without.and_acts(acts))
        return self._best

    def _may_play(self) -> bool:
        return self._best.plays < self._most_plays

    def _try(self, without: Without) -> bool:
        """Is the world without this smaller, and violates the rule?"""
        best = self._best
        best.plays += 1
        world, found = self._play(without)
        same = [text for text in found if rule_of(text) == best.rule]
        if not same or size_of(world) > size_of(best.world):
            return False
        best.world, best.found = world, same
        return True

    def _end_sooner(self) -> None:
        """Halve the steps: the faults end as soon as they may."""
        end_ms = self._best.world.profile.safety_ms
        step_ms = end_ms // 2
        while step_ms >= _STEP_MS and self._may_play():
            without = self._best.world.without
            shorter = Without(without.names, without.acts, end_ms - step_ms)
            if end_ms > step_ms and self._try(shorter):
                end_ms -= step_ms
            else:
                step_ms //= 2

    def _leave_out(self, items: Sequence[Item], put: Callable[[Without, Iterable[Item]], Without]) -> None:
        """All at once, then by halves, down to one by one."""
        length = len(items)
        while length:
            for start in range(0, len(items), length):
                if self._may_play():
                    self._try(put(self._best.world.without, items[start : start + length]))
            length //= 2

    def _names(self) -> list[str]:
        """Kinds, places and probabilities that are not left out yet."""
        world = self._best.world
        kinds = {act.kind for act in world.history.acts if not act.is_left_out}
        places = (place_name(group, slot) for group, slot in world.nemesis.slots)
        return sorted({*kinds, *places, *PROBABILITIES} - world.without.names)

    def _acts(self) -> list[int]:
        return [number for number, act in enumerate(self._best.world.history.acts) if not act.is_left_out]
