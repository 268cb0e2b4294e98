"""`weighted`: partitions weigh what the topic says, members carry what they can, and moves may have a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.core.assignors.claims import read_claims
from rota.core.assignors.model import MemberSubscription, PartitionRacks, PartitionWeights, Shares
from rota.core.assignors.numbering import Numbering
from rota.core.assignors.placement import Thing, place, shares_of
from rota.core.assignors.subscribers import candidates_of_topics


def weighted(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,  # noqa: ARG001 (weights, not racks)
    partition_weights: PartitionWeights | None = None,
    *,
    max_moves: int | None = None,
) -> Shares:
    """Level the members' loads over their capacities, keeping owned partitions where that is level enough.

    The default weight of a partition is 1. `max_moves` is the churn budget: how many partitions may be taken
    from an owner that is still there and subscribed, so that a group comes to balance in several small rebalances.
    Partitions without an owner are always assigned. Cooperative clients need no second round for them.
    """
    ordered = sorted(members, key=lambda member: member.member_id)
    numbering = Numbering.of(partitions_per_topic, ordered)
    of_topics, candidates = candidates_of_topics(numbering, ordered)
    owners = read_claims(numbering, ordered).owners
    weights = _weights(numbering, partition_weights or {})
    things = [
        Thing(of_topics[topic], weights[number], owners[number])
        for topic, numbers in numbering.numbers.items()
        for number in numbers
    ]
    holders = place(things, candidates, [member.capacity for member in ordered], max_moves)
    return numbering.named(ordered, shares_of(holders, len(ordered)))


def _weights(numbering: Numbering, given: PartitionWeights) -> list[float]:
    """By number. Where fewer are given than there are partitions (the topic grew), the others weigh 1."""
    weights: list[float] = []
    for topic, numbers in numbering.numbers.items():
        known = [float(weight) for weight in given.get(topic, ())][: len(numbers)]
        weights += known + [1.0] * (len(numbers) - len(known))
    if any(not 0 <= weight < float("inf") for weight in weights):
        raise ValueError("a partition's weight must be 0 or more")
    return weights
