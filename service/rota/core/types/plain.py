"""Subscriptions and assignments as JSON, for members that only speak HTTP and know nothing of Kafka's bytes.

A subscription is `{"topics": ["orders", "audit-*"], "rack": "r1", "capacity": 2, "owned": {"orders": [0, 1]}}`, where
a name that ends in `*` stands for all topics that begin so. `"topic_regex": "audit-[0-9]+"` stands for all topics with
a name whose whole name it matches; one of it and `topics` must be there. `"topics_except": ["audit-*", "logs"]` leaves
topics out that these would mean. With
`"topics_debounce_ms": 5000` changes of topics collect for so long before they lead to a generation.
An assignment is `{"topics": {"orders": [0, 1]}}`. A strategy with copies adds `"active": {"orders": [1]}`: the
partitions of which this member has the active copy; a member that lists `owned` repeats them. Both may have
`"user_data": {"version": 1, "data": "<base64>"}`, for strategies of the user's own. Kafka's bytes never begin with a
brace, so the first byte distinguishes the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.core.assignors.model import MemberSubscription, TopicPartition, UserData
from rota.core.types.json_object import by_topic, decode_object, names_in, partitions_in, positive_number
from rota.core.types.topic_regex import topic_regex as check_regex
from rota.core.types.user_data import own_user_data, topics_debounce_in, user_data_values
from rota.core.types.wire_format import MalformedMetadata


@dataclass(frozen=True, slots=True)
class PlainSubscription:
    said: MemberSubscription
    """Without the member's id, and with patterns as they are."""
    topics_debounce_ms: int
    topic_regex: str | None
    topics_except: tuple[str, ...]


def is_plain(data: bytes) -> bool:
    return data.startswith(b"{")


def decode_plain_subscription(data: bytes) -> PlainSubscription:
    """Raises `MalformedMetadata` for other formats than the module's."""
    values = decode_object(data)
    regex = values.get("topic_regex")
    if regex is not None:
        check_regex(regex)
    topics = names_in(values, "topics", None if regex is None else ())
    rack, generation_id = values.get("rack"), values.get("generation_id", -1)
    capacity = positive_number(values.get("capacity", 1.0))
    if not (rack is None or isinstance(rack, str)):
        raise MalformedMetadata('"rack" must be a name')
    if capacity is None:
        raise MalformedMetadata('"capacity" must be a number above 0')
    if isinstance(generation_id, bool) or not isinstance(generation_id, int):
        raise MalformedMetadata('"generation_id" must be an integer')
    return PlainSubscription(
        MemberSubscription(
            "",
            None,
            tuple(dict.fromkeys(topics)),
            partitions_in(values.get("owned", {})),
            generation_id,
            rack or None,
            capacity,
            _user_data(values),
            partitions_in(values.get("active", {})),
        ),
        topics_debounce_in(values),
        regex,
        names_in(values, "topics_except"),
    )


def encode_plain_assignment(
    partitions: Sequence[TopicPartition],
    user_data: UserData | None = None,
    active: Sequence[TopicPartition] | None = None,
) -> bytes:
    values: dict[str, Any] = {"topics": by_topic(partitions)}
    if active is not None:
        values["active"] = by_topic(active)
    if user_data is not None:
        values["user_data"] = user_data_values(user_data)
    return json.dumps(values, separators=(",", ":")).encode()


def with_partitions(assignment: bytes, partitions: Sequence[TopicPartition]) -> bytes:
    """The assignment with other partitions; whatever else it says stays."""
    values = {**decode_object(assignment), "topics": by_topic(partitions)}
    return json.dumps(values, separators=(",", ":")).encode()


def decode_plain_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    return partitions_in(decode_object(data).get("topics", {}))


def _user_data(values: Mapping[str, Any]) -> UserData | None:
    user_data = values.get("user_data", {})
    if not isinstance(user_data, dict):
        raise MalformedMetadata('"user_data" must be an object')
    return own_user_data(user_data)
