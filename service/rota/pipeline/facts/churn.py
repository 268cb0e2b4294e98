"""How much an assignment moved, and how much it would have had to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

AnyShares = Mapping[str, Sequence[str]]


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


def churn(before: AnyShares, after: AnyShares) -> Churn:
    """Compare two assignments. A unit that several members hold counts with each of them."""
    holders: dict[str, list[str]] = {}
    for member, share in before.items():
        for unit in share:
            holders.setdefault(unit, []).append(member)
    now = {(unit, member) for member, share in after.items() for unit in share}
    moved = [unit for unit, member in now if unit in holders and member not in holders[unit]]
    sizes = [len(share) for share in after.values()]
    assigned = {unit for unit, _ in now}
    return Churn(
        members=len(after),
        units=sum(sizes),
        moves=len(moved),
        forced_moves=sum(any(holder not in after for holder in holders[unit]) for unit in moved),
        least_moves=least_moves(before, after),
        revoked=sum(
            member in after and (unit, member) not in now for member, share in before.items() for unit in share
        ),
        added=len(assigned - holders.keys()),
        unassigned=len(holders.keys() - assigned),
        imbalance=max(sizes, default=0) - min(sizes, default=0),
        stddev=_stddev(sizes),
    )


def least_moves(before: AnyShares, after: AnyShares) -> int:
    """The fewest units that change their holder on the way to an even assignment of `after`'s units to its members.

    Everybody keeps what it has, up to an even share; the shares that are one larger go to those who have most. It is a
    lower bound where every member may hold every unit (not so where members subscribe to different topics) and each
    unit has one holder.
    """
    units = {unit for share in after.values() for unit in share}
    held = {unit: member for member, share in before.items() for unit in share if unit in units}
    if not after:
        return 0
    kept = sorted((sum(unit in units for unit in before.get(member, ())) for member in after), reverse=True)
    small, larger = divmod(len(units), len(after))
    stays = sum(min(count, small + 1) for count in kept[:larger]) + sum(min(count, small) for count in kept[larger:])
    return len(held) - stays


def _stddev(sizes: list[int]) -> float:
    if not sizes:
        return 0.0
    mean = sum(sizes) / len(sizes)
    return sqrt(sum((size - mean) ** 2 for size in sizes) / len(sizes))
