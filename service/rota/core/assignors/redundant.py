"""`redundant`: each partition on several members at once, for hot standbys and reads that must not wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.core.assignors.model import MemberSubscription, PartitionRacks, Shares
from rota.core.assignors.numbering import NOBODY, Numbering
from rota.core.assignors.placement import Thing, place, shares_of
from rota.core.assignors.subscribers import candidates_of_topics


def redundant(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,  # noqa: ARG001 (copies, not racks)
    *,
    n: int = 2,
) -> Shares:
    """Each partition on `n` different subscribers, on all of them where there are fewer. Balanced and sticky."""
    copies = _Copies(partitions_per_topic, members, n)
    return copies.numbering.named(copies.members, copies.target)


def cooperative_redundant(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,  # noqa: ARG001 (copies, not racks)
    *,
    n: int = 2,
) -> Shares:
    """`redundant`, reached in steps that leave each partition at least one of its holders, and never more than `n`.

    A holder that is not to keep its copy sees it missing, revokes it and rejoins, unless no other holder stays: then it
    keeps the copy until another member has one. A new holder gets its copy once less than `n` members hold the
    partition. A group whose copies wait for members that revoke nothing is at rest only by its count of copies: its
    leader has to assign once more.
    """
    copies = _Copies(partitions_per_topic, members, n)
    shares: list[list[int]] = [[] for _ in copies.members]
    wanted = copies.ranks_by_number()
    for number, holders in enumerate(copies.former):
        staying = [rank for rank in holders if rank in wanted[number]]
        if not staying:
            staying = [rank for rank in holders if copies.is_subscribed(rank, number)][:1]
        joining = sorted(wanted[number].difference(holders))[: max(0, n - len(holders))]
        for rank in staying + joining:
            shares[rank].append(number)
    return copies.numbering.named(copies.members, shares)


class _Copies:
    """The copies of each partition: their present holders, and those of a balanced assignment. By rank and number."""

    def __init__(self, partitions_per_topic: Mapping[str, int], members: Sequence[MemberSubscription], n: int) -> None:
        if n < 1:
            raise ValueError("a partition needs at least one member: n must be 1 or more")
        self.members = sorted(members, key=lambda member: member.member_id)
        self.numbering = Numbering.of(partitions_per_topic, self.members)
        of_topics, candidates = candidates_of_topics(self.numbering, self.members)
        self.former = _former_holders(self.numbering, self.members)
        self._subscribed: list[frozenset[int]] = [frozenset()] * self.numbering.total
        things: list[Thing] = []
        numbers_of_things: list[int] = []
        for topic, numbers in self.numbering.numbers.items():
            index = of_topics[topic]
            subscribed = frozenset(candidates[index])
            copies = min(n, len(subscribed))
            for number in numbers:
                self._subscribed[number] = subscribed
                owners = [rank for rank in self.former[number] if rank in subscribed][:copies]
                owners += [NOBODY] * (copies - len(owners))
                things += [Thing(index, owner=owner, apart=number) for owner in owners]
                numbers_of_things += [number] * copies
        placed = shares_of(place(things, candidates, [1.0] * len(self.members)), len(self.members))
        self.target = [[numbers_of_things[index] for index in share] for share in placed]

    def is_subscribed(self, rank: int, number: int) -> bool:
        return rank in self._subscribed[number]

    def ranks_by_number(self) -> list[set[int]]:
        """The holders of each partition in the balanced assignment."""
        ranks: list[set[int]] = [set() for _ in range(self.numbering.total)]
        for rank, numbers in enumerate(self.target):
            for number in numbers:
                ranks[number].add(rank)
        return ranks


def _former_holders(numbering: Numbering, members: Sequence[MemberSubscription]) -> list[list[int]]:
    """All claimants of a partition, those of the latest generation first."""
    former: list[list[int]] = [[] for _ in range(numbering.total)]
    for rank in sorted(range(len(members)), key=lambda rank: (-members[rank].claim_generation, rank)):
        for topic, partition in dict.fromkeys(members[rank].owned_partitions):
            run = numbering.numbers.get(topic, range(0))
            if 0 <= partition < len(run):
                former[run[partition]].append(rank)
    return former
