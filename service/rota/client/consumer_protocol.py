"""The `consumer` protocol type for members: subscribe to topics, lead with a named assignor, read one's partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rota.assignors import TopicPartition, assign, assignor
from rota.client.callbacks import call
from rota.protocol.messages import JoinedMember, Protocol
from rota.types.consumer import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

__all__ = ["PROTOCOL_TYPE", "PartitionCounts", "TopicLeader", "decode_partitions", "subscription_protocol"]

Partitions: TypeAlias = tuple[TopicPartition, ...]

PartitionCounts: TypeAlias = (
    "Mapping[str, int] | Callable[[Sequence[str]], Mapping[str, int] | Awaitable[Mapping[str, int]]]"
)
"""How many partitions each topic has, or a function (plain or async) that the leader asks for these topics."""


def subscription_protocol(strategy: str, topics: Sequence[str]) -> Protocol:
    """What a member of these topics lists when it joins; `UnknownAssignor` if there is no such strategy."""
    assignor(strategy)
    return Protocol(strategy, encode_subscription(Subscription(tuple(topics))))


def decode_partitions(assignment: bytes) -> Partitions:
    """The partitions in an assignment, by topic and number."""
    return tuple(sorted(decode_assignment(assignment).partitions))


@dataclass(frozen=True, slots=True)
class TopicLeader:
    """Assigns partitions by the strategy called `strategy` when its member leads."""

    strategy: str
    counts: PartitionCounts

    async def assign(self, members: Sequence[JoinedMember], _generation_id: int) -> dict[str, bytes]:
        """Everybody's assignment. A member whose metadata cannot be read fails the generation for all."""
        subscriptions = [
            decode_subscription(member.metadata).of_member(member.member_id, member.group_instance_id)
            for member in members
        ]
        topics = sorted({topic for subscription in subscriptions for topic in subscription.topics})
        counts = await call(self.counts, topics) if callable(self.counts) else self.counts
        shares = assign(self.strategy, counts, subscriptions)
        return {member_id: encode_assignment(Assignment(tuple(share))) for member_id, share in shares.items()}
