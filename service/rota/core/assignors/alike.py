"""The assignment where all members subscribe to all topics and no racks are known, in numbers instead of names.

It is that of `assign`, for a caller that asks thousands of times, such as the replay of a history: no subscription is
made for a member, and no name for a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from rota.core.assignors.claims import Claims
from rota.core.assignors.even import assign_evenly
from rota.core.assignors.model import MemberSubscription, TopicPartition
from rota.core.assignors.numbering import Numbering
from rota.core.assignors.registry import assign

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
