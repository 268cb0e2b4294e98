"""The `consumer` protocol type: what members subscribe to and what they are assigned, in Kafka's own bytes.

`ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`, versions 0 to 3. A newer version is read as far as this
one knows it, since versions only ever append fields; bytes that follow are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rota.core.assignors.model import UNKNOWN_GENERATION, MemberSubscription, TopicPartition
from rota.core.types import wire_format
from rota.core.types.user_data import active_in, capacity_in, user_data_in
from rota.core.types.wire_format import MalformedMetadata, Reader

__all__ = [
    "LATEST_VERSION",
    "PROTOCOL_TYPE",
    "Assignment",
    "MalformedMetadata",
    "Subscription",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

PROTOCOL_TYPE: Final = "consumer"
LATEST_VERSION: Final = 3

_OWNED_PARTITIONS_SINCE = 1
_GENERATION_ID_SINCE = 2
_RACK_ID_SINCE = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's metadata. `owned_partitions` were obtained in `generation_id`; -1 is unknown."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = UNKNOWN_GENERATION
    rack_id: str | None = None

    def of_member(self, member_id: str, group_instance_id: str | None = None) -> MemberSubscription:
        """The same as assignors want it. Members of before version 1 name their partitions in KIP-54's user data."""
        owned, generation_id = (self.owned_partitions, self.generation_id) if self.owned_partitions else self._claims()
        return MemberSubscription(
            member_id,
            group_instance_id,
            self.topics,
            owned,
            generation_id,
            self.rack_id,
            capacity_in(self.user_data),
            user_data_in(self.user_data),
            active_in(self.user_data) or (),
        )

    def _claims(self) -> tuple[tuple[TopicPartition, ...], int]:
        """What the user data claims, where it is of the form that KIP-54 gives it; else no partitions."""
        if not self.user_data:
            return (), self.generation_id
        try:
            reader = Reader(self.user_data)
            owned = _read_topic_partitions(reader)
            generation_id = UNKNOWN_GENERATION if reader.is_at_end else reader.int32()
        except MalformedMetadata:
            return (), self.generation_id
        return (owned, generation_id) if reader.is_at_end else ((), self.generation_id)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader gives to one member."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = LATEST_VERSION) -> bytes:
    """Fields that `version` does not have are left out.

    Topics and partitions are sorted, so that the same subscription is always the same bytes: a coordinator rebalances
    when they change.
    """
    fields = [_version(version), _topics(sorted(subscription.topics))]
    fields.append(wire_format.nullable_bytes(subscription.user_data))
    if version >= _OWNED_PARTITIONS_SINCE:
        fields.append(_topic_partitions(sorted(subscription.owned_partitions)))
    if version >= _GENERATION_ID_SINCE:
        fields.append(wire_format.int32(subscription.generation_id))
    if version >= _RACK_ID_SINCE:
        fields.append(wire_format.nullable_string(subscription.rack_id))
    return b"".join(fields)


def decode_subscription(data: bytes) -> Subscription:
    """Fields that the version of the bytes does not have get their defaults. An empty rack is no rack."""
    reader = Reader(data)
    version = _read_version(reader)
    topics = tuple(reader.string() for _ in range(reader.array_size(item_min_bytes=2)))
    user_data = reader.nullable_bytes()
    owned = _read_topic_partitions(reader) if version >= _OWNED_PARTITIONS_SINCE else ()
    generation_id = reader.int32() if version >= _GENERATION_ID_SINCE else UNKNOWN_GENERATION
    rack_id = reader.nullable_string() if version >= _RACK_ID_SINCE else None
    return Subscription(topics, user_data, owned, generation_id, rack_id or None)


def encode_assignment(assignment: Assignment, version: int = LATEST_VERSION) -> bytes:
    """All versions so far are the same but for their number. Partitions come out grouped by topic."""
    return b"".join(
        (
            _version(version),
            _topic_partitions(assignment.partitions),
            wire_format.nullable_bytes(assignment.user_data),
        )
    )


def decode_assignment(data: bytes) -> Assignment:
    """No bytes at all are no assignment: what the coordinator gives to a member that the leader left out."""
    if not data:
        return Assignment(())
    reader = Reader(data)
    _read_version(reader)
    return Assignment(_read_topic_partitions(reader), reader.nullable_bytes())


def _version(version: int) -> bytes:
    if not 0 <= version <= LATEST_VERSION:
        raise ValueError(f"version {version} is none of 0 to {LATEST_VERSION}")
    return wire_format.int16(version)


def _read_version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise MalformedMetadata(f"version {version} does not exist")
    return version


def _topics(topics: list[str]) -> bytes:
    return wire_format.int32(len(topics)) + b"".join(wire_format.string(topic) for topic in topics)


def _topic_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    groups = (wire_format.string(topic) + wire_format.int32_array(numbers) for topic, numbers in by_topic.items())
    return wire_format.int32(len(by_topic)) + b"".join(groups)


def _read_topic_partitions(reader: Reader) -> tuple[TopicPartition, ...]:
    partitions: list[TopicPartition] = []
    for _ in range(reader.array_size(item_min_bytes=6)):
        topic = reader.string()
        partitions += [TopicPartition(topic, number) for number in reader.int32_array()]
    return tuple(partitions)
