"""How far one assignment is from the one before: what moved, and what had to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import chain
from math import sqrt
from operator import and_, mul
from typing import Any, NamedTuple

from rota.assignors.forecast import least_moves, moves_between

AnyShares = Mapping[str, Collection[Any]]
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

    __slots__ = ("exclusive", "held", "shares", "size", "sizes", "units")

    def __init__(self, shares: AnyShares) -> None:
        self.shares = shares
        self.held: Mapping[str, frozenset[Any]] = {member: frozenset(share) for member, share in shares.items()}
        self.units = frozenset(chain.from_iterable(shares.values()))
        self.sizes = sorted(map(len, shares.values()))
        """How many units each member holds, ascending."""
        self.size = sum(self.sizes)
        """How many units are held; each copy counts."""
        self.exclusive = self.size == len(self.units)
        """Each unit has one holder."""

    @classmethod
    def of_all(cls, held: Mapping[str, frozenset[Any]], units: frozenset[Any]) -> Holding:
        """The assignment in which each of `units` has one holder: no set has to be made."""
        holding = cls.__new__(cls)
        holding.shares = holding.held = held
        holding.units, holding.size, holding.exclusive = units, len(units), True
        holding.sizes = sorted(map(len, held.values()))
        return holding

    def renamed(self, old_id: str, new_id: str) -> Holding:
        """The same where a member has another id; it keeps its share."""
        return Holding({(new_id if m == old_id else m): share for m, share in self.shares.items()})

    def change_from(self, before: Holding) -> Change:
        """Compare with the assignment before: one look at each member."""
        if not (self.exclusive and before.exclusive):
            return self._change_of_copies(before)
        held_before = before.held
        had = [held_before.get(member, _NOTHING) for member in self.held]
        same = sum(map(len, map(and_, self.held.values(), had)))
        kept = list(map(len, had))
        still, revoked = len(before.units), sum(kept) - same
        if self.units is not before.units and (gone := before.units - self.units):
            still, kept = still - len(gone), [len(each - gone) for each in had]
        # Each unit that is still there had one holder: one that stays, or one that has gone.
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
        smallest, largest = self.sizes[0], self.sizes[-1]
        too_few = 0 if min(kept) >= smallest else sum([smallest - count for count in kept if count < smallest])
        up_to_largest = sum(kept) if max(kept) <= largest else sum([min(count, largest) for count in kept])
        return min(up_to_largest, self.size - too_few)

    @property
    def imbalance(self) -> int:
        """How many more units the largest share has than the smallest."""
        return self.sizes[-1] - self.sizes[0] if self.sizes else 0

    @property
    def stddev(self) -> float:
        """The standard deviation of the sizes of the shares."""
        return _stddev(tuple(self.sizes))


# Even shares of as many members have the same sizes again and again.
@lru_cache(maxsize=256)
def _stddev(sizes: tuple[int, ...]) -> float:
    members = len(sizes)
    return sqrt(members * sum(map(mul, sizes, sizes)) - sum(sizes) ** 2) / members if members else 0.0


_NOTHING: frozenset[Any] = frozenset()
