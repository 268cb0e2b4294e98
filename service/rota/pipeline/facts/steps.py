"""Steps of a group: the assignments that follow from one change, in one round or, where it is cooperative, in several.

A cooperative strategy withholds a unit until its holder has given it up (KIP-429): one assignment takes it away, and
the next one hands it on. Between the two the unit is in motion: no member holds it, yet it is not new when it comes
back. It still belongs to its last holder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import chain
from math import sqrt
from operator import and_, mul
from typing import Any, NamedTuple

from rota.core.assignors import UnknownAssignor, strategy
from rota.core.assignors.forecast import least_moves, moves_between
from rota.pipeline.facts.units import Shares

MOST_ROUNDS = 3
"""A unit that so many assignments in a row left without a holder is gone: its topic was deleted, say."""


INCREMENTAL = "incremental"


class Round(NamedTuple):
    """One assignment, seen from where each unit was last."""

    number: int
    """1, or the number of the round in its step."""
    before: Holding
    """Units in motion count with their last holder."""
    after: Holding
    change: Change
    in_motion: frozenset[str]
    """The units that wait for a next round."""


class Holders:
    """The holder of each unit of a group, or its last one. `state` is plain JSON, changed in place, to be carried."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state: dict[str, Any] = nothing() if state is None else state
        self._last: Holding | None = None
        """The last assignment, if nothing has changed since."""

    def assign(self, shares: Shares, protocol_name: str) -> Round:
        """Take an assignment in. `shares` has each member, also one that gets nothing."""
        state, moving = self.state, self.state["moving"]
        before, after = self._before(), Holding(shares)
        change = after.change_from(before)
        goes_on = bool(moving) and state["members"] == sorted(shares) and after.units <= before.units
        revoked = change.revoked - sum(
            holder in shares and unit not in after.held[holder] for unit, (holder, _) in moving.items()
        )
        waiting = before.units - after.units if is_cooperative(protocol_name) is not False else frozenset()
        number = state["round"] + 1 if goes_on else 1
        handed_on = not after.units.isdisjoint(moving)
        state.update(
            shares={member: list(units) for member, units in shares.items() if units},
            moving=self._moving(before, waiting) if waiting and (revoked or handed_on or not goes_on) else {},
            members=sorted(shares),
            round=number,
        )
        self._last = after if not state["moving"] else None
        return Round(number, before, after, change._replace(revoked=revoked), frozenset(state["moving"]))

    def rename(self, old_id: str, new_id: str) -> None:
        """A static member came back under another id, and keeps its share."""
        state = self.state
        state.update(
            shares={(new_id if m == old_id else m): units for m, units in state["shares"].items()},
            moving={unit: [new_id if m == old_id else m, n] for unit, (m, n) in state["moving"].items()},
            members=sorted(new_id if m == old_id else m for m in state["members"]),
        )
        self._last = None

    def held_by(self, member_id: str) -> int:
        """How many units the member has."""
        return len(self.state["shares"].get(member_id, ()))

    def clear(self) -> None:
        self.state.update(nothing())
        self._last = None

    def _before(self) -> Holding:
        if self._last is not None:
            return self._last
        shares = {member: list(units) for member, units in self.state["shares"].items()}
        for unit, (holder, _) in self.state["moving"].items():
            shares.setdefault(holder, []).append(unit)
        return Holding(shares)

    def _moving(self, before: Holding, waiting: frozenset[str]) -> dict[str, list[Any]]:
        known = self.state["moving"]
        found = {}
        for holder, share in before.shares.items():
            for unit in share:
                if unit in waiting and (age := known.get(unit, (holder, 0))[1] + 1) <= MOST_ROUNDS:
                    found[unit] = [holder, age]
        return found


def is_cooperative(protocol_name: str) -> bool | None:
    """Whether members keep what they hold while they join; None for a strategy that this process does not know.

    Work of connectors is shared incrementally, by the server as well as by a leader (KIP-415). The server assigns by no
    other cooperative strategy, so other names that begin with `server:` need no look.
    """
    if protocol_name.removeprefix("server:") == INCREMENTAL:
        return True
    if protocol_name.startswith("server:"):
        return False
    try:
        return strategy(protocol_name).cooperative
    except UnknownAssignor:
        return None


def nothing() -> dict[str, Any]:
    """The state of a group without any share, now or before."""
    return {"shares": {}, "moving": {}, "members": [], "round": 0}


# --- how far one assignment is from the one before ------------------------------------------------------------

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
    """The fewest moves to an assignment as even as this one: `rota.core.assignors.forecast.least_moves`."""


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
        """Return the same shares, with another id for one member."""
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
        """Compute `least_moves` of the strategies from counts alone, because every replayed step needs it."""
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
