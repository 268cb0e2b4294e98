"""`redundant`: each partition on several members at once, for hot standbys and reads that must not wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.assignors.model import MemberSubscription, PartitionRacks, Shares
from rota.assignors.numbering import NOBODY, Numbering
from rota.assignors.placement import Thing, place, shares_of
from rota.assignors.subscribers import candidates_of_topics


def redundant(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,  # noqa: ARG001 (copies, not racks)
    *,
    n: int = 2,
) -> Shares:
    """Each partition on `n` different subscribers, on all of them where there are fewer. Balanced and sticky."""
    if n < 1:
        raise ValueError("a partition needs at least one member: n must be 1 or more")
    ordered = sorted(members, key=lambda member: member.member_id)
    numbering = Numbering.of(partitions_per_topic, ordered)
    of_topics, candidates = candidates_of_topics(numbering, ordered)
    former = _former_holders(numbering, ordered)
    subscribed = [frozenset(ranks) for ranks in candidates]
    things: list[Thing] = []
    numbers_of_things: list[int] = []
    for topic, numbers in numbering.numbers.items():
        index = of_topics[topic]
        copies = min(n, len(candidates[index]))
        for number in numbers:
            owners = [rank for rank in former[number] if rank in subscribed[index]][:copies]
            owners += [NOBODY] * (copies - len(owners))
            things += [Thing(index, owner=owner, apart=number) for owner in owners]
            numbers_of_things += [number] * copies
    shares = shares_of(place(things, candidates, [1.0] * len(ordered)), len(ordered))
    return numbering.named(ordered, [[numbers_of_things[index] for index in share] for share in shares])


def _former_holders(numbering: Numbering, members: Sequence[MemberSubscription]) -> list[list[int]]:
    """All claimants of a partition, those of the latest generation first."""
    former: list[list[int]] = [[] for _ in range(numbering.total)]
    for rank in sorted(range(len(members)), key=lambda rank: (-members[rank].claim_generation, rank)):
        for topic, partition in dict.fromkeys(members[rank].owned_partitions):
            run = numbering.numbers.get(topic, range(0))
            if 0 <= partition < len(run):
                former[run[partition]].append(rank)
    return former
