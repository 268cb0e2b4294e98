"""The `consumer` protocol type for members: subscribe to topics, lead with a named assignor, read one's partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rota.assignors import MemberSubscription, TopicPartition, assign, assignor, strategy
from rota.client.callbacks import call
from rota.membership import Assigned, JoinedAsLeader
from rota.protocol.messages import DescribedMember, JoinedMember, OffsetToCommit, Protocol
from rota.types.consumer import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

__all__ = ["PROTOCOL_TYPE", "PartitionCounts", "Partitions", "TopicRole"]

Partitions: TypeAlias = tuple[TopicPartition, ...]

PartitionCounts: TypeAlias = (
    "Mapping[str, int] | Callable[[Sequence[str]], Mapping[str, int] | Awaitable[Mapping[str, int]]]"
)
"""How many partitions each topic has, or a function (plain or async) that the leader asks for these topics."""

INLINE_SIZE = 2_000
"""Partitions and members up to which a thread would cost more than it spares the event loop."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """What this member, leading, gave to whom in a generation, and by which counts."""

    generation: JoinedAsLeader
    counts: Mapping[str, int]
    shares: Mapping[str, Sequence[TopicPartition]]

    def encoded(self) -> dict[str, bytes]:
        return {member_id: encode_assignment(Assignment(tuple(share))) for member_id, share in self.shares.items()}


@dataclass
class TopicRole:
    """Members share the partitions of topics. `topics` may change: members say so when they join next.

    Members hold on to their partitions while they join only if all strategies that they list are cooperative, so that
    a group moves from `range` to `cooperative-sticky` in two rolling restarts, as Kafka's does.
    """

    strategies: tuple[str, ...]
    topics: tuple[str, ...]
    counts: PartitionCounts
    rack_id: str | None = None
    dealt: Dealt | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for name in self.strategies:
            assignor(name)

    @property
    def is_cooperative(self) -> bool:
        return all(strategy(name).cooperative for name in self.strategies)

    def protocols(self, held: Partitions | None, generation_id: int) -> tuple[Protocol, ...]:
        """`UnknownAssignor` if there is no such strategy."""
        plain = encode_subscription(Subscription(self.topics, rack_id=self.rack_id))
        owned = tuple(partition for partition in held or () if partition.topic in self.topics)
        mindful = Subscription(self.topics, None, owned, generation_id if held is not None else -1, self.rack_id)
        return tuple(
            Protocol(name, encode_subscription(mindful) if strategy(name).remembers else plain)
            for name in self.strategies
        )

    async def assign(self, generation: JoinedAsLeader) -> dict[str, bytes]:
        """Everybody's assignment. A member whose metadata cannot be read fails the generation for all.

        What takes longer is done in a thread: the event loop has heartbeats to send meanwhile.
        """
        subscriptions = [_read_subscription(member) for member in generation.members]
        counts = await self.count(sorted({topic for each in subscriptions for topic in each.topics}))
        if sum(counts.values()) + len(subscriptions) <= INLINE_SIZE:
            self.dealt, encoded = _deal(generation, counts, subscriptions)
        else:
            self.dealt, encoded = await asyncio.to_thread(_deal, generation, counts, subscriptions)
        return encoded

    async def count(self, topics: Sequence[str]) -> Mapping[str, int]:
        """How many partitions these topics have now."""
        counts = await call(self.counts, topics) if callable(self.counts) else self.counts
        return {topic: counts[topic] for topic in topics if topic in counts}

    def read(self, assigned: Assigned) -> Partitions:
        return tuple(sorted(decode_assignment(assigned.assignment).partitions))

    def without(self, share: Partitions, other: Partitions) -> Partitions:
        taken = frozenset(other)
        return tuple(partition for partition in share if partition not in taken)

    def concerned(self, held: Partitions | None, offsets: Sequence[OffsetToCommit]) -> Partitions:  # noqa: ARG002
        return tuple(TopicPartition(each.topic, each.partition) for each in offsets)

    def unwanted(self, held: Partitions) -> Partitions:
        return tuple(partition for partition in held if partition.topic not in self.topics)


def _deal(
    generation: JoinedAsLeader, counts: Mapping[str, int], subscriptions: Sequence[MemberSubscription]
) -> tuple[Dealt, dict[str, bytes]]:
    dealt = Dealt(generation, counts, assign(generation.protocol_name, counts, subscriptions))
    return dealt, dealt.encoded()


def deal_again(dealt: Dealt, counts: Mapping[str, int]) -> Dealt | None:
    """What is dealt by new counts, if it takes nothing from anybody: only then members need not stop work for it."""
    subscriptions = [
        replace(_read_subscription(member), owned_partitions=dealt.shares.get(member.member_id, ()))
        for member in dealt.generation.members
    ]
    shares = assign(dealt.generation.protocol_name, counts, subscriptions)
    keeps_all = all(set(share) <= set(shares.get(member_id, ())) for member_id, share in dealt.shares.items())
    return Dealt(dealt.generation, counts, shares) if keeps_all else None


def read_group(members: Sequence[DescribedMember]) -> tuple[list[str], set[TopicPartition]]:
    """The topics that these members subscribe to, and the partitions that they were given."""
    topics = {topic for member in members for topic in decode_subscription(member.metadata).topics}
    given = {place for member in members for place in decode_assignment(member.assignment).partitions}
    return sorted(topics), given


def _read_subscription(member: JoinedMember) -> MemberSubscription:
    return decode_subscription(member.metadata).of_member(member.member_id, member.group_instance_id)
