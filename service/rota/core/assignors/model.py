"""The vocabulary that all assignors share: partitions, subscriptions and the shares they become."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, TypeAlias

UNKNOWN_GENERATION = -1


class TopicPartition(NamedTuple):
    """One partition. A tuple, no dataclass: groups hold a million of them, and they sort and hash natively."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class UserData:
    """Bytes that only a strategy of the user's own understands, and the version of their encoding.

    The version is -1 if the member did not name one, as Kafka's clients do not.
    """

    data: bytes
    version: int = 0


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What an assignor knows of a member.

    `owned_partitions` are what the member says it holds and `generation` when it got them; None (no prior data) ranks
    with -1 (unknown), below every real generation. `rack` matters only where the racks of the partitions are given,
    `capacity` (how much it carries, against others) only to `weighted`, `user_data` only to strategies of the user's
    own.
    """

    member_id: str
    group_instance_id: str | None = None
    topics: Collection[str] = ()
    owned_partitions: Collection[TopicPartition] = ()
    generation: int | None = None
    rack: str | None = None
    capacity: float = 1.0
    user_data: UserData | None = None
    active_partitions: Collection[TopicPartition] = ()
    """The owned ones of which this member has the active copy; only of strategies with copies."""

    def __post_init__(self) -> None:
        if not 0 < self.capacity < float("inf"):
            raise ValueError(f"a capacity must be above 0, not {self.capacity}")

    @property
    def claim_generation(self) -> int:
        """The generation that the claims to `owned_partitions` are worth."""
        return UNKNOWN_GENERATION if self.generation is None else self.generation


Shares: TypeAlias = dict[str, list[TopicPartition]]
"""Member id to the partitions it gets; every member has an entry, empty ones too."""

PartitionRacks: TypeAlias = Mapping[str, Sequence[Collection[str]]]
"""Topic to the racks of each of its partitions, in the order of the partitions."""


PartitionWeights: TypeAlias = Mapping[str, Sequence[float]]
"""Topic to the weight of each of its partitions, in the order of the partitions."""


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """All that a strategy is given: the members of one generation, and the topics that they subscribe to."""

    partitions_per_topic: Mapping[str, int]
    members: Sequence[MemberSubscription]
    partition_racks: PartitionRacks = field(default_factory=dict)
    partition_weights: PartitionWeights = field(default_factory=dict)
    generation_id: int = UNKNOWN_GENERATION


def topic_partitions(topic: str, count: int) -> list[TopicPartition]:
    """All partitions of a topic. The named tuple's own constructor is Python; a million calls of it would be felt."""
    return list(map(tuple.__new__, repeat(TopicPartition), zip(repeat(topic), range(count), strict=False)))


def static_members_first(members: Sequence[MemberSubscription]) -> list[MemberSubscription]:
    """The order of `range` and `roundrobin`: static members by instance id, then the others by member id.

    So a static member that restarts under a new member id gets its old share back.
    """
    return sorted(members, key=lambda m: (m.group_instance_id is None, m.group_instance_id or "", m.member_id))
