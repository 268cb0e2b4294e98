"""`range` and `roundrobin`: the strategies of Kafka that do not look at what members held."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from rota.core.assignors.model import (
    GroupSubscription,
    MemberSubscription,
    Shares,
    static_members_first,
    topic_partitions,
)
from rota.core.assignors.numbering import racks_matter, racks_of_topic

# --- range ----------------------------------------------------------------------------------------

# `range`: each topic cut into one run per subscriber, so that partition n of several topics goes to the same member.
#
# Where racks are known (KIP-881) a first pass gives members partitions of their own rack; the sizes of the shares stay
# what they would have been.


_Subscribers: TypeAlias = tuple[tuple[str, str | None], ...]
"""The members that subscribe to a topic in their order, each with its rack."""


def range_assignor(group: GroupSubscription) -> Shares:
    """Runs of consecutive partitions; the first members get one more where it does not divide."""
    ordered = static_members_first(group.members)
    subscribers: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for member in ordered:
        for name in dict.fromkeys(member.topics):
            subscribers[name].append((member.member_id, member.rack or None))
    topics = [
        _Topic(name, count, tuple(subscribers[name]), racks_of_topic(name, count, group.partition_racks))
        for name in sorted(subscribers)
        if (count := group.partitions_per_topic.get(name, 0)) > 0
    ]
    if any(topic.rack_aware for topic in topics):
        _assign_within_racks(topics)
    shares: Shares = {member.member_id: [] for member in ordered}
    for topic in topics:
        topic.assign_rest()
        partitions = topic_partitions(topic.name, topic.count)
        for member_id, numbers in topic.shares.items():
            shares[member_id] += map(partitions.__getitem__, sorted(numbers))
    return shares


class _Topic:
    """One topic while it is being cut: its assigned part, and how many more each subscriber may get."""

    def __init__(self, name: str, count: int, subscribers: _Subscribers, racks: list[frozenset[str]]) -> None:
        self.name = name
        self.count = count
        self.subscribers = subscribers
        self.shares: dict[str, list[int]] = {member_id: [] for member_id, _ in subscribers}
        self._taken = bytearray(count)
        self._fair, self._extras = divmod(count, len(subscribers))
        self._rack_of = dict(subscribers)
        self._racks = racks
        self.rack_aware = racks_matter(self._rack_of.values(), racks)

    def in_rack(self, member_id: str, number: int) -> bool:
        """Members without a rack are at home everywhere."""
        rack = self._rack_of[member_id]
        return rack is None or rack in self._racks[number]

    def room(self, member_id: str) -> int:
        """How many more the member may get; while extras last, every member is a candidate for one."""
        return max(0, self._fair + (self._extras > 0) - len(self.shares[member_id]))

    def give(self, member_id: str, numbers: Sequence[int]) -> None:
        """Hand partitions to a member that has room for them."""
        if not numbers:
            return
        share = self.shares[member_id]
        share += numbers
        if len(share) > self._fair:
            self._extras -= 1
        for number in numbers:
            self._taken[number] = 1

    def assign_in_racks(self) -> None:
        """Give each subscriber in turn the first free partitions of its rack, as far as it has room."""
        for member_id, _ in self.subscribers:
            near = [number for number in self._free() if self.in_rack(member_id, number)]
            self.give(member_id, near[: self.room(member_id)])

    def assign_rest(self) -> None:
        """Give each subscriber in turn the next free partitions, as far as it has room: all are given then."""
        free = self._free()
        start = 0
        for share in self.shares.values():
            if len(share) <= self._fair:
                end = start + self._fair + (self._extras > 0) - len(share)
                share.extend(free[start:end])
                self._extras -= len(share) > self._fair
                start = end

    def _free(self) -> list[int]:
        return [number for number, taken in enumerate(self._taken) if not taken]


def _assign_within_racks(topics: Sequence[_Topic]) -> None:
    """Topics with the same subscribers and size are cut alike, which keeps joins between them local."""
    alike: dict[tuple[_Subscribers, int], list[_Topic]] = defaultdict(list)
    for topic in topics:
        alike[topic.subscribers, topic.count].append(topic)
    for (subscribers, _), group in alike.items():
        # Without a single rack among the subscribers every partition would "match", and the runs would be lost.
        if not any(rack for _, rack in subscribers):
            continue
        if len(group) > 1:
            _assign_co_partitioned(group)
        elif group[0].rack_aware:
            group[0].assign_in_racks()


def _assign_co_partitioned(group: Sequence[_Topic]) -> None:
    """Partition n of all topics of the group goes to the first member with room that is in the rack of all of them."""
    for number in range(group[0].count):
        for member_id, _ in group[0].subscribers:
            if all(topic.room(member_id) and topic.in_rack(member_id, number) for topic in group):
                for topic in group:
                    topic.give(member_id, [number])
                break


# --- roundrobin -----------------------------------------------------------------------------------

# `roundrobin`: all partitions of all topics in a row, assigned to the members in turn.


def roundrobin(group: GroupSubscription) -> Shares:
    """Assign topic by topic. A turn skips members that do not subscribe, and the next topic goes on with it."""
    ordered = static_members_first(group.members)
    shares: Shares = {member.member_id: [] for member in ordered}
    lists = list(shares.values())
    turn = 0
    for topic, subscribers in sorted(_subscribers(ordered).items()):
        partitions = topic_partitions(topic, group.partitions_per_topic.get(topic, 0))
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
