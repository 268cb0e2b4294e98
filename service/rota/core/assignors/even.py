"""The sticky assignment where all members subscribe to the same topics: quotas are known in advance, one pass does it.

Every member gets the floor or the ceiling of the average. Members keep their partitions up to their quota; free ones
are then assigned round-robin to members below theirs, within their racks first if these are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from rota.core.assignors.claims import Claims
from rota.core.assignors.numbering import Numbering
from rota.core.assignors.racks import Racks
from rota.core.assignors.tie_order import tie_order


def assign_evenly(
    numbering: Numbering, member_ids: Sequence[str], claims: Claims, racks: Racks | None = None
) -> list[list[int]]:
    """The partition numbers of each member, by rank. `member_ids` are in alphabetical order."""
    distribution = _Distribution(numbering, member_ids)
    distribution.keep_owned(claims)
    free = distribution.free()
    distribution.seat_unfilled()
    if racks is not None:
        free = distribution.give_within_racks(sorted(free, key=racks.members_near), racks)
    distribution.give_round_robin(free)
    return distribution.shares


class _Distribution:
    """The shares while they fill up.

    `below` are the members under the floor; `at_floor` those that may still get one more, in the order in which they
    do; `extras` is how many members are yet to have the ceiling.
    """

    def __init__(self, numbering: Numbering, member_ids: Sequence[str]) -> None:
        self._numbering = numbering
        self._member_ids = member_ids
        self.shares: list[list[int]] = [[] for _ in member_ids]
        self.floor, self.extras = divmod(numbering.total, len(member_ids))
        self.below: list[int] = []
        self.at_floor: list[int] = []

    def keep_owned(self, claims: Claims) -> None:
        """Let each member keep its partitions, up to its quota: the ceiling while there are extras, then the floor."""
        self.shares = claims.by_owner(len(self._member_ids))
        floor = self.floor
        above = [rank for rank, share in enumerate(self.shares) if len(share) > floor]
        if 0 < self.extras < len(above):
            # Only some of them may have the ceiling.
            entitled = set(above)
            above = [rank for rank in tie_order(self._member_ids) if rank in entitled]
        within_topic: Sequence[int] = ()
        for rank in above:
            quota = floor + (self.extras > 0)
            self.extras -= quota - floor
            share = self.shares[rank]
            if len(share) > quota:
                # The lowest numbers within their topics stay, so that a member keeps some of each topic.
                within_topic = within_topic or self._numbering.partition_numbers()
                share.sort(key=within_topic.__getitem__)
                del share[quota:]

    def free(self) -> list[int]:
        """The partitions without an owner, ascending."""
        if not any(self.shares):
            return list(range(self._numbering.total))
        is_free = bytearray(b"\x01") * self._numbering.total
        for share in self.shares:
            for number in share:
                is_free[number] = 0
        return list(compress(range(self._numbering.total), is_free))

    def seat_unfilled(self) -> None:
        """Find the members below the floor and at it."""
        self.below = [rank for rank, share in enumerate(self.shares) if len(share) < self.floor]
        self.at_floor = [rank for rank, share in enumerate(self.shares) if len(share) == self.floor]

    def give_within_racks(self, free: Sequence[int], racks: Racks) -> list[int]:
        """Assign partitions that fit a member's rack and quota, members below the floor first; returns the others."""
        left: list[int] = []
        turn = 0
        for number in free:
            seat = _seat_near(number, self.below, turn, racks)
            if seat is not None:
                turn = self._give_below(number, seat)
                continue
            seat = _seat_near(number, self.at_floor, 0, racks) if self.extras else None
            if seat is None:
                left.append(number)
            else:
                self.shares[self.at_floor.pop(seat)].append(number)
                self.extras -= 1
        return left

    def _give_below(self, number: int, seat: int) -> int:
        """Assign to the member in that seat of `below`; returns the next seat."""
        rank = self.below[seat]
        self.shares[rank].append(number)
        if len(self.shares[rank]) < self.floor:
            seat += 1
        else:
            del self.below[seat]
            self.at_floor.append(rank)
        return seat % len(self.below) if self.below else 0

    def give_round_robin(self, free: Sequence[int]) -> None:
        """Assign the rest: in rounds to the members below the floor until none is, then the extras."""
        start = 0
        while self.below:
            # As many rounds at once as all of them take part in: a member gets every so manieth.
            width = len(self.below)
            end = start + width * (self.floor - max([len(self.shares[rank]) for rank in self.below]))
            for seat, rank in enumerate(self.below):
                self.shares[rank] += free[start + seat : end : width]
            start = end
            self.at_floor += [rank for rank in self.below if len(self.shares[rank]) == self.floor]
            self.below = [rank for rank in self.below if len(self.shares[rank]) < self.floor]
        for rank, number in zip(self.at_floor[: self.extras], free[start:], strict=True):
            self.shares[rank].append(number)


def _seat_near(number: int, ranks: Sequence[int], turn: int, racks: Racks) -> int | None:
    """The first seat, from `turn` on and around, with a member in a rack of the partition."""
    for step in range(len(ranks)):
        seat = (turn + step) % len(ranks)
        if racks.match(ranks[seat], number):
            return seat
    return None
