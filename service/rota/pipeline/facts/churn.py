"""How far one assignment is from the one before: what moved, and what had to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import sqrt
from operator import mul
from typing import Any, NamedTuple

from rota.assignors.forecast import least_moves, moves_between

AnyShares = Mapping[str, Sequence[Any]]
"""Member id to its share: names of units, or partitions."""


class Change(NamedTuple):
    """What lies between two assignments. `moves` is never below `least_moves`, nor below `forced_moves`."""

    moves: int
    """How many units one member held and another holds now. A unit without a former holder does not count."""
    forced_moves: int
    """How many of these were held by members that have gone."""
    revoked: int
    """How many units were taken from members that stay."""
    least_moves: int
    """The fewest moves to an assignment as even as this one: `rota.assignors.forecast.least_moves`."""


class Holding:
    """One assignment, with what comparing it takes: it is compared twice, as the new one and as the old one.

    A unit that several members hold counts with each of them.
    """

    __slots__ = ("exclusive", "held", "shares", "size", "units")

    def __init__(self, shares: AnyShares) -> None:
        self.shares = shares
        self.held = {member: frozenset(share) for member, share in shares.items()}
        self.units = frozenset(chain.from_iterable(shares.values()))
        self.size = sum(map(len, shares.values()))
        """How many units are held; each copy counts."""
        self.exclusive = self.size == len(self.units)
        """Each unit has one holder."""

    def change_from(self, before: Holding) -> Change:
        """Compare with the assignment before: one look at each member."""
        if not (self.exclusive and before.exclusive):
            return self._change_of_copies(before)
        gone = _NOTHING if self.units == before.units else before.units - self.units
        same, revoked, kept = 0, 0, []
        held_before = before.held
        for member, share in self.held.items():
            had = held_before.get(member, _NOTHING)
            both = len(had) if share == had else len(share & had)
            same += both
            revoked += len(had) - both
            kept.append(len(had - gone) if gone else len(had))
        # Each unit that is still there had one holder: one that stays, or one that has gone.
        still = len(before.units) - len(gone)
        return Change(still - same, still - sum(kept), revoked, still - self._most_kept(kept))

    def revoked_from(self, before: Holding) -> int:
        """How many units members that stay had in the assignment before, and not in this one."""
        held_before = before.held
        return sum(
            [len(had - share) for member, share in self.held.items() if (had := held_before.get(member, _NOTHING))]
        )

    def _change_of_copies(self, before: Holding) -> Change:
        """A copy that one member loses and another gets is a move."""
        moved = moves_between(before.held, self.held)
        return Change(
            len(moved),
            sum(move.source not in self.held for move in moved),
            sum(len(before.held.get(member, _NOTHING) - share) for member, share in self.held.items()),
            least_moves(before.held, self.held),
        )

    def _most_kept(self, kept: list[int]) -> int:
        """As in `least_moves` of the strategies, for the numbers at hand: this is in the way of every replayed step."""
        if not kept:
            return 0
        sizes = list(map(len, self.shares.values()))
        smallest, largest = min(sizes), max(sizes)
        too_few = sum([smallest - count for count in kept if count < smallest])
        return min(sum([count if count < largest else largest for count in kept]), self.size - too_few)

    @property
    def imbalance(self) -> int:
        """How many more units the largest share has than the smallest."""
        sizes = list(map(len, self.shares.values()))
        return max(sizes) - min(sizes) if sizes else 0

    @property
    def stddev(self) -> float:
        """The standard deviation of the sizes of the shares."""
        sizes = list(map(len, self.shares.values()))
        members = len(sizes)
        return sqrt(members * sum(map(mul, sizes, sizes)) - sum(sizes) ** 2) / members if members else 0.0


_NOTHING: frozenset[Any] = frozenset()
