"""Partitions as consecutive integers, which is what the sticky assignors count and compare a million times.

With it go the previous owners, the subscribers and the racks of the partitions by number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import add, itemgetter, lt
from typing import cast

from rota.core.assignors.model import (
    GroupSubscription,
    MemberSubscription,
    PartitionRacks,
    Shares,
    TopicPartition,
    topic_partitions,
)

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Numbering:
    """Topics in alphabetical order, the partitions of each in a row: `numbers[topic]` is the run of a topic."""

    numbers: Mapping[str, range]
    total: int

    @staticmethod
    def of(group: GroupSubscription) -> tuple[list[MemberSubscription], Numbering]:
        """Order the members by id, and number what can be assigned at all: topics with partitions and a subscriber."""
        members = sorted(group.members, key=lambda member: member.member_id)
        topics = set[str]().union(*[member.topics for member in members])
        return members, Numbering.of_topics(group.partitions_per_topic, topics)

    @staticmethod
    def of_topics(partitions_per_topic: Mapping[str, int], topics: Collection[str]) -> Numbering:
        """Number all partitions of these topics, those that exist and have partitions."""
        numbers, total = {}, 0
        for topic in sorted(topics):
            count = partitions_per_topic.get(topic, 0)
            if count > 0:
                numbers[topic] = range(total, total + count)
                total += count
        return Numbering(numbers, total)

    def partition_numbers(self) -> list[int]:
        """For each number the partition's own number within its topic."""
        return list(chain.from_iterable(range(len(run)) for run in self.numbers.values()))

    def topic_partitions(self) -> list[TopicPartition]:
        """The topic and partition of each number."""
        return list(chain.from_iterable(topic_partitions(topic, len(run)) for topic, run in self.numbers.items()))

    def named(
        self,
        members: Sequence[MemberSubscription],
        shares: Sequence[Sequence[int]],
        known: Sequence[TopicPartition | None] = (),
    ) -> Shares:
        """Numbers as topic partitions, by member id; `shares` are in the order of `members`.

        Names that are `known`, by number, are used again: of a million it is felt.
        """
        names = self._completed(known) if any(known) else self.topic_partitions()
        return {member.member_id: _picked(names, sorted(share)) for member, share in zip(members, shares, strict=True)}

    def _completed(self, known: Sequence[TopicPartition | None]) -> list[TopicPartition]:
        starts = [(run.start, topic) for topic, run in self.numbers.items()]
        names = list(known)
        for number in [number for number, name in enumerate(known) if name is None]:
            start, topic = starts[bisect_right(starts, number, key=_start) - 1]
            names[number] = TopicPartition(topic, number - start)
        return cast("list[TopicPartition]", names)


def _picked(names: Sequence[TopicPartition], numbers: Sequence[int]) -> list[TopicPartition]:
    """Twice as fast as one by one, but only for two or more `itemgetter` makes a tuple."""
    return list(itemgetter(*numbers)(names)) if len(numbers) > 1 else [names[number] for number in numbers]


def _start(topic: tuple[int, str]) -> int:
    return topic[0]


# --- previous owners ------------------------------------------------------------------------------

# The effective previous owners: of the members' claims only the one of the highest generation counts.


@dataclass(frozen=True, slots=True)
class Claims:
    """Previous owners by rank (the position of a member in the order of the member ids).

    `owners[number]` is the effective previous owner or `NOBODY`. `contested` holds only the partitions that several
    members claim, with all claimants; if two of them share the highest generation, there is no owner.
    """

    owners: list[int]
    contested: Mapping[int, tuple[int, ...]]
    names: Sequence[TopicPartition | None] = ()
    """By number its name in the claims: a million names need not be made again. None if no member claims it."""
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
        """The partitions that no other member must revoke first: the member owned them, or no other claims them."""
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
        highest = max(members[rank].claim_generation for rank in claimants)
        winners = [rank for rank in claimants if members[rank].claim_generation == highest]
        owners[number] = winners[0] if len(winners) == 1 else NOBODY
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


# --- subscribers ----------------------------------------------------------------------------------

# The subscribers of each topic, by rank.


def subscribers_of_topics(numbering: Numbering, members: Sequence[MemberSubscription]) -> dict[str, list[int]]:
    """The ranks of each topic's subscribers, ascending."""
    subscribers: dict[str, list[int]] = {topic: [] for topic in numbering.numbers}
    for rank, member in enumerate(members):
        for topic in dict.fromkeys(member.topics):
            if topic in subscribers:
                subscribers[topic].append(rank)
    return subscribers


def candidates_of_topics(
    numbering: Numbering, members: Sequence[MemberSubscription]
) -> tuple[dict[str, int], list[tuple[int, ...]]]:
    """The different sets of subscribers, and for each topic the index of its own."""
    indexes: dict[tuple[int, ...], int] = {}
    subscribers = subscribers_of_topics(numbering, members)
    of_topics = {topic: indexes.setdefault(tuple(found), len(indexes)) for topic, found in subscribers.items()}
    return of_topics, list(indexes)


# --- racks ----------------------------------------------------------------------------------------

# Racks of members and partitions (KIP-881), for the assignors that try to keep reads within one.


def racks_matter(member_racks: Iterable[str | None], partition_racks: Collection[frozenset[str]]) -> bool:
    """Racks help only if some member's rack has replicas at all, and not every partition is in every rack."""
    everywhere = frozenset[str]().union(*partition_racks)
    reachable = any(rack in everywhere for rack in member_racks if rack)
    return reachable and any(racks != everywhere for racks in partition_racks)


def racks_of_topic(topic: str, count: int, partition_racks: PartitionRacks | None) -> list[frozenset[str]]:
    """The racks of each partition; those without given racks are in no rack."""
    named = [frozenset(racks) for racks in (partition_racks or {}).get(topic, ())[:count]]
    return named + [frozenset()] * (count - len(named))


@dataclass(frozen=True, slots=True)
class Racks:
    """The rack of each member by rank (None if it has none) and the racks of each partition by number."""

    of_members: Sequence[str | None]
    of_partitions: Sequence[frozenset[str]]

    @staticmethod
    def of(
        numbering: Numbering, members: Sequence[MemberSubscription], partition_racks: PartitionRacks | None
    ) -> Racks | None:
        """None if the racks make no difference."""
        of_members = [member.rack or None for member in members]
        if not partition_racks or not any(of_members):
            return None
        of_partitions: list[frozenset[str]] = []
        for topic, numbers in numbering.numbers.items():
            of_partitions += racks_of_topic(topic, len(numbers), partition_racks)
        return Racks(of_members, of_partitions) if racks_matter(of_members, of_partitions) else None

    def mismatch(self, rank: int, number: int) -> bool:
        """Whether the partition has no replica in the member's rack; a member without a rack is at home everywhere."""
        rack = self.of_members[rank]
        return rack is not None and rack not in self.of_partitions[number]

    def match(self, rank: int, number: int) -> bool:
        """Whether the member's rack is known and has a replica of the partition."""
        return self.of_members[rank] in self.of_partitions[number]

    def members_near(self, number: int) -> int:
        """How many members the partition could go to within their racks."""
        return sum(rack in self.of_partitions[number] for rack in self.of_members)

    def mismatches(self, shares: Sequence[Sequence[int]]) -> int:
        """How many partitions the shares (by rank) put out of reach of their member's rack."""
        return sum(self.mismatch(rank, number) for rank, share in enumerate(shares) for number in share)


# --- partitions that a cooperative strategy withholds ---------------------------------------------

# What a cooperative strategy assigns to no member yet, because another must give it up first (KIP-429).


def withheld(group: GroupSubscription, shares: Mapping[str, Sequence[TopicPartition]]) -> Shares:
    """The shares without the partitions that another member holds: it rejoins without them, and they are free then."""
    ordered, numbering = Numbering.of(group)
    claims = read_claims(numbering, ordered)
    numbered = [
        [numbering.numbers[topic][partition] for topic, partition in shares[member.member_id]] for member in ordered
    ]
    return numbering.named(ordered, [claims.free_for(rank, numbers) for rank, numbers in enumerate(numbered)])
