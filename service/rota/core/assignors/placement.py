"""Things of different weight, placed on members of different capacity: keep, fill up, then move what lightens most.

The engine of the strategies in which partitions are not all alike. A member's *level* is its load over its capacity. A
thing moves only where its new holder then stands lower than the old one did, so the levels, sorted from the highest,
fall with every move, and the passes come to an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from rota.core.assignors.numbering import NOBODY

Ranks: TypeAlias = tuple[int, ...]
_Heap: TypeAlias = list[tuple[float, int]]

_TOLERANCE = 1e-9
"""Sums of floats that should be equal differ by less, of the larger one."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A unit that is placed on one member, of the set of candidates with this index.

    Things with the same `apart` (which is not negative) are never placed on one member.
    """

    candidates: int
    weight: float = 1.0
    owner: int = NOBODY
    apart: int = -1


def place(
    things: Sequence[Thing], candidates: Sequence[Ranks], capacities: Sequence[float], max_moves: int | None = None
) -> list[int]:
    """The rank that holds each thing, `NOBODY` where it has no candidate left.

    `candidates` are the sets that things speak of, `capacities` those of the members.

    At most `max_moves` things are taken from an owner that could keep them, however unbalanced that leaves the rest.
    """
    placement = _Placement(things, candidates, capacities, max_moves)
    placement.keep_owned()
    placement.give_free()
    placement.balance()
    return placement.holders


class _Placement:
    """The holders while things are placed."""

    def __init__(
        self,
        things: Sequence[Thing],
        candidates: Sequence[Ranks],
        capacities: Sequence[float],
        max_moves: int | None,
    ) -> None:
        self._things = things
        self._candidates = candidates
        self._capacities = capacities
        self._moves_left = len(things) if max_moves is None else max_moves
        self._apart: dict[int, set[int]] = {}
        self._shares: list[dict[int, None]] = [{} for _ in capacities]
        self.holders = [NOBODY] * len(things)
        self.loads = [0.0] * len(capacities)

    def keep_owned(self) -> None:
        """Let every member keep the things that it may still have."""
        allowed = [frozenset(ranks) for ranks in self._candidates]
        for index, thing in enumerate(self._things):
            if thing.owner in allowed[thing.candidates] and self._may_hold(thing, thing.owner):
                self._put(index, thing.owner)

    def give_free(self) -> None:
        """The heaviest first, each to the candidate that stands lowest."""
        free = [index for index, holder in enumerate(self.holders) if holder == NOBODY]
        sizes = [len(ranks) for ranks in self._candidates]
        free.sort(key=lambda index: (sizes[self._things[index].candidates], -self._things[index].weight))
        heaps = [self._heaps(ranks) for ranks in self._candidates]
        for index in free:
            self._give(index, heaps[self._things[index].candidates])

    def balance(self) -> None:
        """Move things as long as that lowers a high load, and the budget allows it."""
        moved = True
        while moved:
            moved = False
            for rank in sorted(range(len(self.loads)), key=lambda rank: (-self._level(rank), rank)):
                while self._lighten(rank):
                    moved = True

    def _heaps(self, candidates: Sequence[int]) -> list[_Heap]:
        heaps = [[(self._level(rank), rank) for rank in alike] for alike in self._by_capacity(candidates)]
        for heap in heaps:
            heapify(heap)
        return heaps

    def _give(self, index: int, heaps: Sequence[_Heap]) -> None:
        """Put a thing where that makes the lowest level. Each heap holds candidates of one capacity."""
        thing = self._things[index]
        firsts = [self._first_in(heap, thing) for heap in heaps]
        ranks = [rank for rank in firsts if rank != NOBODY]
        if ranks:
            rank = min(ranks, key=lambda rank: (self._level_with(rank, thing), rank))
            self._put(index, rank)

    def _first_in(self, heap: _Heap, thing: Thing) -> int:
        """The lowest that may hold the thing. Levels only rise here: an entry that surfaces is brought up to date."""
        passed: _Heap = []
        found = NOBODY
        while heap and found == NOBODY:
            level, rank = heap[0]
            if level != self._level(rank):
                heapreplace(heap, (self._level(rank), rank))
            elif self._may_hold(thing, rank):
                found = rank
            else:
                passed.append(heappop(heap))
        for entry in passed:
            heappush(heap, entry)
        return found

    def _lighten(self, source: int) -> bool:
        """Make the best move away from a member; whether there was one."""
        before = self._level(source)
        lower: dict[int, list[list[int]]] = {}
        best: tuple[bool, float, int, int] | None = None
        for index in self._shares[source]:
            thing = self._things[index]
            owned = thing.owner == source
            if (owned and not self._moves_left) or not thing.weight:
                continue
            if thing.candidates not in lower:
                lower[thing.candidates] = self._lower_than(before, self._candidates[thing.candidates])
            firsts = (next((r for r in alike if self._may_hold(thing, r)), NOBODY) for alike in lower[thing.candidates])
            after, target = min(((self._level_with(r, thing), r) for r in firsts if r != NOBODY), default=(before, -1))
            if after < before * (1 - _TOLERANCE):
                highest = max(after, (self.loads[source] - thing.weight) / self._capacities[source])
                best = min(best or (True, before, index, target), (owned, highest, index, target))
        if best is None:
            return False
        self._move(best[2], source, best[3])
        return True

    def _lower_than(self, level: float, candidates: Sequence[int]) -> list[list[int]]:
        """The candidates below a level, those of the same capacity together, the lowest first."""
        return [
            [rank for _, rank in sorted((self._level(rank), rank) for rank in alike if self._level(rank) < level)]
            for alike in self._by_capacity(candidates)
        ]

    def _by_capacity(self, candidates: Sequence[int]) -> list[list[int]]:
        """Among members of one capacity the lowest is the best for any weight."""
        alike: dict[float, list[int]] = {}
        for rank in candidates:
            alike.setdefault(self._capacities[rank], []).append(rank)
        return list(alike.values())

    def _move(self, index: int, source: int, target: int) -> None:
        thing = self._things[index]
        self._moves_left += (thing.owner == target) - (thing.owner == source)
        del self._shares[source][index]
        self.loads[source] -= thing.weight
        if thing.apart >= 0:
            self._apart[thing.apart].discard(source)
        self._put(index, target)

    def _put(self, index: int, rank: int) -> None:
        thing = self._things[index]
        self.holders[index] = rank
        self._shares[rank][index] = None
        self.loads[rank] += thing.weight
        if thing.apart >= 0:
            self._apart.setdefault(thing.apart, set()).add(rank)

    def _may_hold(self, thing: Thing, rank: int) -> bool:
        return thing.apart < 0 or rank not in self._apart.get(thing.apart, ())

    def _level(self, rank: int) -> float:
        return self.loads[rank] / self._capacities[rank]

    def _level_with(self, rank: int, thing: Thing) -> float:
        return (self.loads[rank] + thing.weight) / self._capacities[rank]


def shares_of(holders: Sequence[int], members: int) -> list[list[int]]:
    """By rank the indexes of its things, ascending."""
    shares: list[list[int]] = [[] for _ in range(members)]
    for index, holder in enumerate(holders):
        if holder != NOBODY:
            shares[holder].append(index)
    return shares
