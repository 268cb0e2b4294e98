"""What a strategy would make of a group, round by round, and how far one assignment is from another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeAlias

from rota.core.assignors.model import GroupSubscription, MemberSubscription, TopicPartition
from rota.core.assignors.numbering import Claims, Numbering
from rota.core.assignors.registry import assign, assign_group, strategy
from rota.core.assignors.sticky import assign_evenly

AnyShares: TypeAlias = Mapping[str, Collection[TopicPartition]]
"""Member id to the partitions that it holds."""

MOST_ROUNDS = 8
"""A cooperative strategy needs two. One of the user's own may never settle."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The assignment once the group has settled, after so many join phases."""

    shares: Mapping[str, Sequence[TopicPartition]]
    rounds: int
    revoked: Mapping[str, frozenset[TopicPartition]]
    """By member the partitions that it has to give up on the way: for good, or until the next round."""


def forecast(name: str, group: GroupSubscription, claims_nothing: Collection[str] = ()) -> Forecast:
    """Assign until no member has to give anything up.

    That is one round, or two under a cooperative strategy (KIP-429): a member that must revoke rejoins when it has.
    Members in `claims_nothing` gave all up before they joined, though the strategy is cooperative. Raises what the
    strategy raises.
    """
    cooperative = strategy(name).cooperative
    revoked: dict[str, frozenset[TopicPartition]] = {member.member_id: frozenset() for member in group.members}
    rounds = 0
    while True:
        members = [
            replace(each, owned_partitions=(), generation=None) if each.member_id in claims_nothing else each
            for each in group.members
        ]
        group = replace(group, members=members)
        shares = assign_group(name, group).shares
        rounds += 1
        lost = {
            each.member_id: frozenset(each.owned_partitions) - set(shares[each.member_id]) for each in group.members
        }
        for member_id, partitions in lost.items():
            revoked[member_id] |= partitions
        if not cooperative or not any(lost.values()) or rounds == MOST_ROUNDS:
            return Forecast(shares, rounds, revoked)
        # The members join again: each claims its assignment of this generation.
        members = [
            replace(each, owned_partitions=shares[each.member_id], generation=group.generation_id)
            for each in group.members
        ]
        group = replace(group, members=members, generation_id=group.generation_id + 1)


class Move(NamedTuple):
    """A partition that changes hands."""

    partition: TopicPartition
    source: str
    target: str


def moves_between(before: AnyShares, after: AnyShares) -> list[Move]:
    """The partitions that one member loses and another gets, in order. A partition without a former member is no move.

    Where a partition has copies, each that is lost is paired with one that is added.
    """
    losers, gainers = _holders_beyond(before, after), _holders_beyond(after, before)
    return [
        Move(partition, source, target)
        for partition in sorted(losers.keys() & gainers.keys())
        for source, target in zip(losers[partition], gainers[partition], strict=False)
    ]


def least_moves(before: AnyShares, after: AnyShares) -> int:
    """The fewest moves to an assignment with a largest share not above that of `after`, and a smallest not below.

    Members keep their partitions up to the largest share; those below the smallest must be given something. It is exact
    where every member may hold every partition, and a lower bound otherwise.
    """
    if not after:
        return 0
    held, owned = (Counter(chain.from_iterable(shares.values())) for shares in (before, after))
    sizes = [len(share) for share in after.values()]
    smallest, largest = min(sizes), max(sizes)
    kept = [len([each for each in before.get(member_id, ()) if each in owned]) for member_id in after]
    most_kept = min(
        sum(min(number, largest) for number in kept),
        sum(sizes) - sum(max(smallest - number, 0) for number in kept),
    )
    return sum((held & owned).values()) - most_kept


def imbalance(shares: AnyShares) -> int:
    """The partitions of the fullest member less those of the emptiest."""
    sizes = [len(share) for share in shares.values()]
    return max(sizes, default=0) - min(sizes, default=0)


def _holders_beyond(shares: AnyShares, other: AnyShares) -> dict[TopicPartition, list[str]]:
    """By partition the members that hold it in `shares` and not in `other`, in order."""
    holders: dict[TopicPartition, list[str]] = {}
    for member_id in sorted(shares):
        in_both = frozenset(other.get(member_id, ()))
        for partition in shares[member_id]:
            if partition not in in_both:
                holders.setdefault(partition, []).append(member_id)
    return holders


# --- members that all subscribe to the same topics ------------------------------------------------

# The assignment where all members subscribe to all topics and no racks are known, in numbers instead of names.
#
# It is that of `assign`, for a caller that asks thousands of times, such as the replay of a history: no subscription is
# made for a member, and no name for a partition.


STICKY, COOPERATIVE_STICKY = "sticky", "cooperative-sticky"

Numbers: TypeAlias = frozenset[int]
"""The share of a member."""


class Partitions:
    """All partitions of some topics, by consecutive numbers: topics in alphabetical order, as in `Numbering`."""

    __slots__ = ("all", "counts", "numbering")

    def __init__(self, counts: Mapping[str, int]) -> None:
        """`counts` is how many partitions each topic has."""
        self.counts = counts
        self.numbering = Numbering.of_topics(counts, counts)
        self.all = frozenset(range(self.numbering.total))

    def names(self) -> list[TopicPartition]:
        """The name of each number."""
        return self.numbering.topic_partitions()

    def numbers(self) -> dict[TopicPartition, int]:
        """The number of each name."""
        return {name: number for number, name in enumerate(self.names())}


@lru_cache(maxsize=64)
def shares_by_count(name: str, partitions: Partitions, members: int) -> list[Numbers]:
    """The shares of so many members under a strategy that does not ask what they held, in the order of their turns.

    That order is `model.static_members_first`.
    """
    width = len(str(members))
    asked = [MemberSubscription(f"{turn:0{width}}", topics=tuple(partitions.counts)) for turn in range(members)]
    shares, numbers = assign(name, partitions.counts, asked), partitions.numbers()
    return [frozenset(map(numbers.__getitem__, shares[each.member_id])) for each in asked]


def keep_evenly(
    partitions: Partitions, member_ids: Sequence[str], owned: Mapping[str, Collection[int]]
) -> dict[str, Numbers]:
    """The target of the sticky strategies; `member_ids` in alphabetical order, `owned` with one owner a partition.

    The cooperative one withholds what another of these members owns.
    """
    said = [owned.get(member_id, ()) for member_id in member_ids]
    shares = assign_evenly(partitions.numbering, member_ids, Claims([], {}, said=said))
    return dict(zip(member_ids, map(frozenset, shares), strict=True))
