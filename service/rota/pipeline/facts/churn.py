"""How much an assignment moved, and how much it would have had to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from typing import Any

AnyShares = Mapping[str, Sequence[Any]]
"""Member id to what it holds: names of units, or partitions."""


@dataclass(frozen=True, slots=True)
class Churn:
    """What one assignment did to the one before. The fields are the columns of `assignments`."""

    members: int
    units: int
    moves: int
    forced_moves: int
    least_moves: int
    revoked: int
    added: int
    unassigned: int
    imbalance: int
    stddev: float


class Holding:
    """One assignment, with what comparing it takes: it is compared twice, as what comes after and as what was before.

    A unit that several members hold counts with each of them.
    """

    __slots__ = ("pairs", "shares", "units")

    def __init__(self, shares: AnyShares) -> None:
        self.shares = shares
        self.units = frozenset(chain.from_iterable(shares.values()))
        self.pairs = {(unit, member) for member, share in shares.items() for unit in share}

    def moved_from(self, before: Holding) -> list[Any]:
        """The units that somebody held and now somebody else does."""
        return [unit for unit, _ in self.pairs - before.pairs if unit in before.units]

    def revoked_from(self, before: Holding) -> int:
        """How many units were taken from members who stay."""
        return len([member for _, member in before.pairs - self.pairs if member in self.shares])

    def least_moves_from(self, before: Holding) -> int:
        """The fewest units that change their holder on the way to an even assignment of these units to these members.

        Everybody keeps what it has, up to an even share; the shares that are one larger go to those who have most. It
        is a lower bound where every member may hold every unit (not so where members subscribe to different topics)
        and each unit has one holder.
        """
        if not self.shares:
            return 0
        kept = sorted([len(self.units.intersection(before.shares.get(m, ()))) for m in self.shares], reverse=True)
        small, larger = divmod(len(self.units), len(self.shares))
        stays = sum([min(count, small + 1) for count in kept[:larger]] + [min(count, small) for count in kept[larger:]])
        return len(before.units & self.units) - stays

    @property
    def imbalance(self) -> int:
        """How many more units the largest share has than the smallest."""
        sizes = list(map(len, self.shares.values()))
        return max(sizes, default=0) - min(sizes, default=0)


def churn(before: Holding, after: Holding) -> Churn:
    """Compare two assignments."""
    moved = after.moved_from(before)
    left = {unit for member, share in before.shares.items() if member not in after.shares for unit in share}
    sizes = list(map(len, after.shares.values()))
    return Churn(
        members=len(after.shares),
        units=sum(sizes),
        moves=len(moved),
        forced_moves=len([unit for unit in moved if unit in left]),
        least_moves=after.least_moves_from(before),
        revoked=after.revoked_from(before),
        added=len(after.units - before.units),
        unassigned=len(before.units - after.units),
        imbalance=after.imbalance,
        stddev=_stddev(sizes),
    )


def _stddev(sizes: list[int]) -> float:
    if not sizes:
        return 0.0
    mean = sum(sizes) / len(sizes)
    return sqrt(sum((size - mean) ** 2 for size in sizes) / len(sizes))
