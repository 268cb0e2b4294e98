"""How much an assignment moved, and how much it would have had to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from operator import mul
from typing import Any, NamedTuple

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


class Change(NamedTuple):
    """What lies between two assignments."""

    moved: list[Any]
    """The units that somebody held and now somebody else does."""
    forced_moves: int
    """How many of these were held by members who are not there any more."""
    revoked: int
    """How many units were taken from members who stay."""
    least_moves: int
    """The fewest units that change their holder on the way to an even assignment of these units to these members.

    Everybody keeps what it has, up to an even share; the shares that are one larger go to those who have most. It is a
    lower bound where every member may hold every unit (not so where members subscribe to different topics) and each
    unit has one holder.
    """


class Holding:
    """One assignment, with what comparing it takes: it is compared twice, as what comes after and as what was before.

    A unit that several members hold counts with each of them.
    """

    __slots__ = ("held", "shares", "units")

    def __init__(self, shares: AnyShares) -> None:
        self.shares = shares
        self.held = {member: frozenset(share) for member, share in shares.items()}
        self.units = frozenset(chain.from_iterable(shares.values()))

    def change_from(self, before: Holding) -> Change:
        """Compare with the assignment before: one look at each member."""
        new, gone = self.units - before.units, before.units - self.units
        moved: list[Any] = []
        revoked, kept = 0, []
        orphaned = _NOTHING.union(*[had for member, had in before.held.items() if member not in self.held])
        for member, share in self.held.items():
            had = before.held.get(member, _NOTHING)
            kept.append(len(had - gone))
            if share != had:
                moved += share - had - new
                revoked += len(had - share)
        return Change(
            moved,
            sum(map(orphaned.__contains__, moved)),
            revoked,
            len(before.units) - len(gone) - _most_that_stay(kept, len(self.units)),
        )

    @property
    def size(self) -> int:
        """How many units are held."""
        return sum(map(len, self.shares.values()))

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


def _most_that_stay(kept: list[int], units: int) -> int:
    """How many of what members have they may keep where all these units are to be shared evenly."""
    if not kept:
        return 0
    small, larger = divmod(units, len(kept))
    with_more = len([count for count in kept if count > small])
    return sum([min(count, small) for count in kept]) + min(larger, with_more)


def churn(before: Holding, after: Holding) -> Churn:
    """Compare two assignments."""
    moved, forced_moves, revoked, least_moves = after.change_from(before)
    return Churn(
        members=len(after.shares),
        units=after.size,
        moves=len(moved),
        forced_moves=forced_moves,
        least_moves=least_moves,
        revoked=revoked,
        added=len(after.units - before.units),
        unassigned=len(before.units - after.units),
        imbalance=after.imbalance,
        stddev=after.stddev,
    )
