"""`copartitioned`: partition n of all topics goes to one member, so that joins between topics stay in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rota.core.assignors.claims import read_claims
from rota.core.assignors.model import MemberSubscription, PartitionRacks, Shares
from rota.core.assignors.numbering import NOBODY, Numbering
from rota.core.assignors.placement import Thing, place, shares_of
from rota.core.assignors.subscribers import candidates_of_topics


def copartitioned(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,  # noqa: ARG001 (range uses racks, this one keeps topics together)
) -> Shares:
    """Partitions of the same number, of all topics with the same subscribers, are one thing and never part.

    Unlike `range` it balances the bundles (a number that only some topics have weighs less), and it is sticky: a
    bundle stays with the member that owns most of it.
    """
    ordered = sorted(members, key=lambda member: member.member_id)
    numbering = Numbering.of(partitions_per_topic, ordered)
    of_topics, candidates = candidates_of_topics(numbering, ordered)
    owners = read_claims(numbering, ordered).owners
    bundles = _bundles(numbering, of_topics)
    things = [Thing(index, len(numbers), _main_owner(numbers, owners)) for (index, _), numbers in bundles.items()]
    shares = shares_of(place(things, candidates, [1.0] * len(ordered)), len(ordered))
    runs = list(bundles.values())
    return numbering.named(ordered, [[number for index in share for number in runs[index]] for share in shares])


def _bundles(numbering: Numbering, of_topics: Mapping[str, int]) -> dict[tuple[int, int], list[int]]:
    """The bundles, by their subscribers (an index) and the number within the topic."""
    bundles: dict[tuple[int, int], list[int]] = {}
    for topic, numbers in numbering.numbers.items():
        for partition, number in enumerate(numbers):
            bundles.setdefault((of_topics[topic], partition), []).append(number)
    return bundles


def _main_owner(numbers: Sequence[int], owners: Sequence[int]) -> int:
    counts = Counter(owners[number] for number in numbers if owners[number] != NOBODY)
    return min(counts, key=lambda rank: (-counts[rank], rank), default=NOBODY)
