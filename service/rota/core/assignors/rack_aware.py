"""`rack-aware`: a partition goes to a member in one of its racks if there is any, whatever that costs in balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.core.assignors.claims import read_claims
from rota.core.assignors.model import MemberSubscription, PartitionRacks, Shares
from rota.core.assignors.numbering import Numbering
from rota.core.assignors.placement import Thing, place, shares_of
from rota.core.assignors.racks import racks_of_topic
from rota.core.assignors.subscribers import candidates_of_topics


def rack_aware(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
) -> Shares:
    """Locality first, then balance, then stickiness. `range` and the sticky strategies put the balance first.

    Partitions that have no rack, or none with a subscriber in it, may go to any subscriber.
    """
    ordered = sorted(members, key=lambda member: member.member_id)
    numbering = Numbering.of(partitions_per_topic, ordered)
    owners = read_claims(numbering, ordered).owners
    of_topics, subscribers = candidates_of_topics(numbering, ordered)
    near: dict[tuple[int, ...], int] = {}
    chosen: dict[tuple[int, frozenset[str]], int] = {}
    things: list[Thing] = []
    for topic, numbers in numbering.numbers.items():
        index = of_topics[topic]
        for number, racks in zip(numbers, racks_of_topic(topic, len(numbers), partition_racks), strict=True):
            if (index, racks) not in chosen:
                within = tuple(rank for rank in subscribers[index] if ordered[rank].rack in racks)
                chosen[index, racks] = near.setdefault(within or subscribers[index], len(near))
            things.append(Thing(chosen[index, racks], owner=owners[number]))
    holders = place(things, list(near), [1.0] * len(ordered))
    return numbering.named(ordered, shares_of(holders, len(ordered)))
