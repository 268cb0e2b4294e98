"""`roundrobin`: all partitions of all topics in a row, assigned to the members in turn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from rota.core.assignors.model import MemberSubscription, PartitionRacks, Shares, static_members_first, topic_partitions


def roundrobin(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,  # noqa: ARG001 (Kafka's roundrobin knows no racks either)
) -> Shares:
    """Assign topic by topic. A turn skips members that do not subscribe, and the next topic goes on with it."""
    ordered = static_members_first(members)
    shares: Shares = {member.member_id: [] for member in ordered}
    lists = list(shares.values())
    turn = 0
    for topic, subscribers in sorted(_subscribers(ordered).items()):
        partitions = topic_partitions(topic, partitions_per_topic.get(topic, 0))
        if not partitions:
            continue
        # The next member in the circle of all members is also next in the smaller circle of this topic's subscribers.
        start = bisect_left(subscribers, turn)
        circle = [lists[seat] for seat in subscribers[start:] + subscribers[:start]]
        size = len(circle)
        for offset, share in enumerate(circle):
            share.extend(partitions[offset::size])
        turn = subscribers[(start + len(partitions) - 1) % size] + 1
    return shares


def _subscribers(ordered: Sequence[MemberSubscription]) -> dict[str, list[int]]:
    """Topic to the seats (positions in the circle) of its subscribers, ascending."""
    subscribers: dict[str, list[int]] = {}
    for seat, member in enumerate(ordered):
        for topic in dict.fromkeys(member.topics):
            subscribers.setdefault(topic, []).append(seat)
    return subscribers
