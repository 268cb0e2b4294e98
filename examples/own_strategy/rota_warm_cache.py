"""A strategy of the user's own: partitions go to the members that have their data in a cache.

A member lists its cached partitions in its subscription's user data, the JSON `{"cached": {"orders": [0, 2]}}` in
version 1. In the assignment's user data it reads which other member has the data of a partition that is new to it, as
`{"copy_from": {"orders": {"3": "<member id>"}}}`. Version 0 had no `copy_from`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from rota.core.assignors import (
    GroupAssignment,
    GroupSubscription,
    MemberSubscription,
    OwnAssignment,
    PartitionStrategy,
    TopicPartition,
    UserData,
)

VERSION = 1


class WarmCache(PartitionStrategy):
    """As even as can be; within that, a partition goes to a member that has it cached."""

    name = "warm-cache"

    def __init__(self) -> None:
        self.cached: set[TopicPartition] = set()
        """What this process has in its cache: the program fills it."""
        self.copy_from: dict[TopicPartition, str] = {}
        """For each partition that this member was assigned without having it cached: the member that has it."""

    def subscription_user_data(self, topics: Collection[str], held: Collection[TopicPartition]) -> UserData:
        cached = sorted({*self.cached, *held})
        return encoded({"cached": by_topic([place for place in cached if place.topic in topics])})

    def assign(self, group: GroupSubscription) -> GroupAssignment:
        members = sorted(group.members, key=lambda member: member.member_id)
        cached = {member.member_id: cached_by(member) for member in members}
        shares: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        cold = []
        for place in places_of(group):
            interested = [member for member in members if place.topic in member.topics]
            at_most = -(-sum(group.partitions_per_topic.values()) // len(members))
            warm = [each for each in interested if place in cached[each.member_id]]
            room = [each for each in warm if len(shares[each.member_id]) < at_most]
            if room:
                shares[fewest(room, shares)].append(place)
            elif interested:
                cold.append((place, interested))
        for place, interested in cold:
            shares[fewest(interested, shares)].append(place)
        return GroupAssignment(shares, {name: advice(name, share, cached) for name, share in shares.items()})

    def on_assignment(self, assignment: OwnAssignment) -> None:
        values = decoded(assignment.user_data).get("copy_from", {})
        self.copy_from = {
            TopicPartition(topic, int(number)): source
            for topic, sources in values.items()
            for number, source in sources.items()
        }


def fewest(members: list[MemberSubscription], shares: Mapping[str, list[TopicPartition]]) -> str:
    return min((member.member_id for member in members), key=lambda name: (len(shares[name]), name))


def places_of(group: GroupSubscription) -> list[TopicPartition]:
    return [
        TopicPartition(topic, n) for topic, count in sorted(group.partitions_per_topic.items()) for n in range(count)
    ]


def cached_by(member: MemberSubscription) -> set[TopicPartition]:
    values = decoded(member.user_data).get("cached", {})
    return {TopicPartition(topic, number) for topic, numbers in values.items() for number in numbers}


def advice(name: str, share: list[TopicPartition], cached: Mapping[str, set[TopicPartition]]) -> UserData:
    """The sources of partitions that are new to this member."""
    copy_from: dict[str, dict[str, str]] = {}
    for place in share:
        sources = sorted(other for other, has in cached.items() if place in has)
        if sources and name not in sources:
            copy_from.setdefault(place.topic, {})[str(place.partition)] = sources[0]
    return encoded({"copy_from": copy_from})


def by_topic(places: Collection[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for place in places:
        numbers.setdefault(place.topic, []).append(place.partition)
    return numbers


def encoded(values: Mapping[str, object]) -> UserData:
    return UserData(json.dumps(values).encode(), VERSION)


def decoded(user_data: UserData | None) -> dict[str, dict[str, object]]:
    """Empty for a member of another version than those that this one knows: it counts as one without a cache."""
    if user_data is None or not 0 <= user_data.version <= VERSION:
        return {}
    values: dict[str, dict[str, object]] = json.loads(user_data.data)
    return values
