"""Groups as Hypothesis draws them, small enough that everything odd happens often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st

from rota.core.assignors import MemberSubscription, PartitionRacks, Shares, TopicPartition, assign

deterministic = settings(derandomize=True, deadline=None)
"""The same examples in every run, however slow the machine is."""

TOPICS = ("a", "b", "c", "d")
RACKS = (None, "r1", "r2")


@dataclass(frozen=True)
class Group:
    """What one call of an assignor is about."""

    partitions_per_topic: Mapping[str, int]
    members: Sequence[MemberSubscription]
    partition_racks: PartitionRacks | None = None

    def assign(self, name: str) -> Shares:
        return assign(name, self.partitions_per_topic, self.members, self.partition_racks)

    def holding(self, shares: Shares, generation: int) -> Group:
        """The same members, each with its last assignment."""
        members = [
            replace(member, owned_partitions=tuple(shares[member.member_id]), generation=generation)
            for member in self.members
        ]
        return replace(self, members=members)

    def without(self, member_id: str) -> Group:
        return replace(self, members=[member for member in self.members if member.member_id != member_id])

    def joined_by(self, member: MemberSubscription) -> Group:
        return replace(self, members=[*self.members, member])


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), min_size=1)
subsets = st.lists(st.sampled_from(TOPICS), max_size=5).map(tuple)
# Numbers up to 11: some claims are to partitions that are gone.
claims = st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 11)), max_size=6).map(tuple)
generations = st.none() | st.integers(-1, 4)
member_ids = st.lists(st.integers(0, 30).map("consumer{}".format), min_size=1, max_size=7, unique=True)


@st.composite
def groups(draw: st.DrawFn, equal: bool = False, fresh: bool = False) -> Group:
    """Any group; `equal` ones subscribe to the same topics, `fresh` ones claim nothing yet."""
    same = draw(subsets)
    members = [
        MemberSubscription(
            member_id,
            group_instance_id=draw(st.none() | st.just(f"instance-{member_id}")),
            topics=same if equal else draw(subsets),
            owned_partitions=() if fresh else draw(claims),
            generation=None if fresh else draw(generations),
        )
        for member_id in draw(member_ids)
    ]
    return Group(draw(counts), members)


BYTES_OF_MEMBER, MOST_MEMBERS = 12, 6
small_groups_bytes = st.binary(min_size=5 + 6 * 12, max_size=5 + 6 * 12)
"""One draw where `groups` makes dozens: ten thousand examples in seconds, and zeros still shrink to small groups."""


def small_group(data: bytes, equal: bool = False) -> Group:
    """The group that these bytes stand for."""
    members = []
    for index in range(1 + data[0] % MOST_MEMBERS):
        start = 5 + index * BYTES_OF_MEMBER
        subscription, generation, *owned = data[start : start + BYTES_OF_MEMBER]
        topics = _topics_in(data[5] if equal else subscription)
        claims = tuple(TopicPartition(TOPICS[byte // 8 % 4], byte // 32) for byte in owned if byte % 8)
        members.append(MemberSubscription(f"m{index}", None, topics, claims, generation % 5 - 1))
    return Group({topic: data[1 + index] % 10 for index, topic in enumerate(TOPICS)}, members)


def _topics_in(bits: int) -> tuple[str, ...]:
    return tuple(topic for index, topic in enumerate(TOPICS) if bits >> index & 1)
