"""The effective previous owners: of the members' claims only the one of the highest generation counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import add, lt

from rota.core.assignors.model import MemberSubscription, TopicPartition
from rota.core.assignors.numbering import NOBODY, Numbering


@dataclass(frozen=True, slots=True)
class Claims:
    """Previous owners by rank (the position of a member in the order of the member ids).

    `owners[number]` is the effective previous owner or `NOBODY`. `contested` holds only the partitions that several
    members claim, with all claimants; if two of them share the highest generation, there is no owner.
    """

    owners: list[int]
    contested: Mapping[int, tuple[int, ...]]
    names: Sequence[TopicPartition | None] = ()
    """By number its name in the claims: a million names need not be made again. None where no member claims it."""
    said: Sequence[Collection[int]] = ()
    """By rank the claims, where they do not overlap and have no duplicates: there are no conflicts."""

    def by_owner(self, members: int) -> list[list[int]]:
        """What each of so many members owns, ascending."""
        if self.said:
            return list(map(sorted, self.said))
        shares: list[list[int]] = [[] for _ in range(members)]
        for number, owner in enumerate(self.owners):
            if owner != NOBODY:
                shares[owner].append(number)
        return shares

    def free_for(self, rank: int, numbers: Sequence[int]) -> list[int]:
        """Those that no other member must revoke first: the member owned them, or no other claims them."""
        owners, contested = self.owners, self.contested
        return [
            number
            for number in numbers
            if (owner := owners[number]) == rank or (owner == NOBODY and number not in contested)
        ]

    def after(self, shares: Sequence[Sequence[int]]) -> Claims:
        """The claims after every member got the part of its share that is free for it, and gave up the rest."""
        owners = [NOBODY] * len(self.owners)
        for rank, share in enumerate(shares):
            for number in self.free_for(rank, share):
                owners[number] = rank
        return Claims(owners, {})


def read_claims(numbering: Numbering, members: Sequence[MemberSubscription]) -> Claims:
    """Settle the claims of all members; those to partitions that are gone (a topic shrank) count for nothing."""
    owners = [NOBODY] * numbering.total
    names: list[TopicPartition | None] = [None] * numbering.total
    starts = {topic: run.start for topic, run in numbering.numbers.items()}
    sizes = {topic: len(run) for topic, run in numbering.numbers.items()}
    smallest = min(sizes.values(), default=0)
    said: list[list[int]] = []
    for rank, member in enumerate(members):
        claimed, numbers = _numbers(member.owned_partitions, starts, sizes, smallest)
        said.append(numbers)
        for number, name in zip(numbers, claimed, strict=True):
            owners[number] = rank
            names[number] = name
    if len(owners) - owners.count(NOBODY) == sum(map(len, said)):
        return Claims(owners, {}, names, said)
    contested = _contested(said)
    for number, claimants in contested.items():
        owners[number] = _effective_owner(claimants, members)
    return Claims(owners, contested, names)


def _numbers(
    owned: Collection[TopicPartition], starts: Mapping[str, int], sizes: Mapping[str, int], smallest: int
) -> tuple[Collection[TopicPartition], list[int]]:
    """What of `owned` there is, with its numbers. Done by whole columns, because it is done a million times."""
    if not owned:
        return (), []
    topics, partitions = zip(*owned, strict=True)
    fit = max(partitions) < smallest or all(map(lt, partitions, map(sizes.get, topics, repeat(0))))
    if fit and min(partitions) >= 0 and starts.keys() >= set(topics):
        return owned, list(map(add, map(starts.__getitem__, topics), partitions))
    there = [name for name in owned if 0 <= name[1] < sizes.get(name[0], 0)]
    return there, [starts[topic] + partition for topic, partition in there]


def _contested(said: Sequence[Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """Partitions that several members claim, with all claimants."""
    claimants: dict[int, tuple[int, ...]] = {
        number: () for number, times in Counter(chain.from_iterable(said)).items() if times > 1
    }
    for rank, numbers in enumerate(said):
        for number in claimants.keys() & numbers:
            claimants[number] += (rank,)
    return {number: ranks for number, ranks in claimants.items() if len(ranks) > 1}


def _effective_owner(claimants: Sequence[int], members: Sequence[MemberSubscription]) -> int:
    highest = max(members[rank].claim_generation for rank in claimants)
    winners = [rank for rank in claimants if members[rank].claim_generation == highest]
    return winners[0] if len(winners) == 1 else NOBODY
