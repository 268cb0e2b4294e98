"""Assigning partitions on the server: `server:<strategy>` for members of `consumer` groups, whatever they speak.

Each member is answered in the form of its own metadata, Kafka's bytes or JSON, so that both may be in one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rota.core.assignors import (
    GroupSubscription,
    MemberSubscription,
    TopicPartition,
    UnknownAssignor,
    UserData,
    active_copies,
    assign_group,
    has_copies,
    strategy,
)
from rota.core.types import consumer, plain
from rota.core.types.json_object import by_topic
from rota.core.types.plugin import Generation, JoinedWith, ProtocolType, Readable, ServerSide, Units
from rota.core.types.topic_facts import (
    TopicFacts,
    describe_changes,
    partition_counts,
    partition_racks,
    partition_weights,
)
from rota.core.types.user_data import active_in, encode_user_data, topics_debounce_of, user_data_in, user_data_values
from rota.core.types.wanted_topics import PATTERN_END, WantedTopics, topic_matcher
from rota.core.types.wire_format import MalformedMetadata

PREFIX: Final = "server:"
_MARKS: Final = (b"*", b"\\", b'"topic_regex"')
"""Metadata with none of these has the names of its topics as they are: no pattern, and no character that is escaped."""


def assigns(protocol_name: str) -> bool:
    """Whether the name is `server:` and a strategy.

    Not a cooperative one: a member that is assigned here need not know that it must join once more for partitions that
    were withheld.
    """
    name = protocol_name.removeprefix(PREFIX)
    try:
        return name != protocol_name and not strategy(name).cooperative
    except UnknownAssignor:
        return False


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics that a member names; None if it names them by patterns."""
    wanted = _wanted(metadata)
    return None if wanted.has_patterns else frozenset(filter(topic_matcher([wanted]), wanted.names))


def subscribes(metadata: bytes, topic: str) -> bool:
    """Whether a member subscribes to a topic, by name or pattern."""
    if topic.encode() not in metadata and not any(mark in metadata for mark in _MARKS):
        return False  # Decoding each member of each group would take long.
    return topic_matcher([_wanted(metadata)])(topic)


def assign_partitions(generation: Generation, topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
    """The shares of all members by the strategy in the protocol's name, of the topics in the registry.

    A member's former assignment counts as owned, unless its metadata lists its owned partitions.
    """
    group = group_subscription(generation, topics)
    assigned = assign_group(generation.protocol_name.removeprefix(PREFIX), group)
    return {
        member.member_id: _encoded(
            member,
            assigned.shares[member.member_id],
            assigned.user_data.get(member.member_id),
            assigned.active.get(member.member_id),
        )
        for member in generation.members
    }


def group_subscription(generation: Generation, topics: Mapping[str, TopicFacts]) -> GroupSubscription:
    """A generation as strategies want it, patterns resolved; `MalformedMetadata` where a member's cannot be read."""
    resolved = _Resolved(topics)
    return GroupSubscription(
        partition_counts(topics),
        [_subscription(member, generation, resolved) for member in generation.members],
        partition_racks(topics),
        partition_weights(topics),
        generation.generation_id,
    )


def wants_topic(generation: Generation) -> Callable[[str], bool]:
    """Whether a topic is one that a member subscribes to, by name or pattern."""
    return topic_matcher([_wanted(member.metadata) for member in generation.members])


def takes_away(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Whether a member loses a partition."""
    return any(
        not set(_former(share)[0]) <= set(_former(after.get(member_id, b""))[0]) for member_id, share in before.items()
    )


def promote(generation: Generation) -> dict[str, bytes] | None:
    """The shares as they are, in which standbys have the roles of the members that are gone; None without copies."""
    name = generation.protocol_name.removeprefix(PREFIX)
    if not has_copies(name) or strategy(name).own is not None:  # An own one says more than partitions.
        return None
    group = group_subscription(generation, {})
    shares = {member.member_id: tuple(member.owned_partitions) for member in group.members}
    active = active_copies(group.members, shares)
    return {
        member.member_id: _encoded(member, shares[member.member_id], None, active[member.member_id])
        for member in generation.members
    }


def describe_topics(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """How many partitions of each topic are assigned, where that changes: `docs 64 → 96`."""
    return describe_changes(_assigned_topics(before), _assigned_topics(after))


def topics_debounce_ms(generation: Generation) -> int:
    """For how long changes of topics collect: as long as the member says that names the longest time."""
    return max((_debounce_ms(member.metadata) for member in generation.members), default=0)


def read_metadata(metadata: bytes) -> Readable:
    if plain.is_plain(metadata):
        said = plain.decode_plain_subscription(metadata)
        of_member = said.said
        values: dict[str, Any] = {
            "topics": list(of_member.topics),
            "rack": of_member.rack,
            "capacity": of_member.capacity,
        }
        if said.topic_regex is not None:
            values["topic_regex"] = said.topic_regex
        if said.topics_except:
            values["topics_except"] = list(said.topics_except)
        return values | ({"topics_debounce_ms": said.topics_debounce_ms} if said.topics_debounce_ms else {})
    decoded = consumer.decode_subscription(metadata)
    member = decoded.of_member("")
    owned = by_topic(tuple(member.owned_partitions))
    values = {"topics": list(decoded.topics), "rack": decoded.rack_id, "owned": owned}
    if member.generation is not None and member.generation >= 0:
        values["generation_id"] = member.generation
    if member.capacity != 1:
        values["capacity"] = member.capacity
    if debounce_ms := topics_debounce_of(decoded.user_data):
        values["topics_debounce_ms"] = debounce_ms
    return values if member.user_data is None else {**values, "user_data": user_data_values(member.user_data)}


def read_assignment(assignment: bytes) -> Readable:
    values: dict[str, Any] = {"topics": by_topic(assigned_partitions(assignment))}
    if (active := active_partitions(assignment)) is not None:
        values["active"] = by_topic(active)
    if plain.is_plain(assignment) or not assignment:
        return values
    user_data = user_data_in(consumer.decode_assignment(assignment).user_data)
    return values if user_data is None else {**values, "user_data": user_data_values(user_data)}


def _assigned_topics(shares: Mapping[str, bytes]) -> dict[str, TopicFacts]:
    numbers = Counter(place.topic for share in shares.values() for place in assigned_partitions(share))
    return {topic: TopicFacts(count) for topic, count in numbers.items()}


def _debounce_ms(metadata: bytes) -> int:
    if plain.is_plain(metadata):
        return plain.decode_plain_subscription(metadata).topics_debounce_ms
    return topics_debounce_of(consumer.decode_subscription(metadata).user_data)


def _wanted(metadata: bytes) -> WantedTopics:
    if plain.is_plain(metadata):
        said = plain.decode_plain_subscription(metadata)
        return WantedTopics(frozenset(said.said.topics), said.topic_regex, frozenset(said.topics_except))
    return WantedTopics(frozenset(consumer.decode_subscription(metadata).topics), None)


class _Resolved:
    """The topics that patterns stand for, each pattern matched once however many members have it."""

    def __init__(self, topics: Mapping[str, TopicFacts]) -> None:
        self._topics = topics
        self._found: dict[WantedTopics, tuple[str, ...]] = {}

    def names(self, topics: Iterable[str], regex: str | None, excepted: Collection[str]) -> list[str]:
        """In the order in which a member names them, each once."""
        named = (name for topic in topics for name in self._named(topic))
        names = dict.fromkeys((*named, *(() if regex is None else self._among(WantedTopics(frozenset(), regex)))))
        left_out = frozenset(self._among(WantedTopics(frozenset(excepted))) if excepted else ())
        return [name for name in names if name not in left_out]

    def _named(self, topic: str) -> Sequence[str]:
        return self._among(WantedTopics(frozenset((topic,)), None)) if topic.endswith(PATTERN_END) else (topic,)

    def _among(self, wanted: WantedTopics) -> tuple[str, ...]:
        if wanted not in self._found:
            self._found[wanted] = tuple(sorted(filter(topic_matcher([wanted]), self._topics)))
        return self._found[wanted]


def _subscription(member: JoinedWith, generation: Generation, resolved: _Resolved) -> MemberSubscription:
    said, regex, excepted = _said(member)
    said = replace(said, topics=resolved.names(said.topics, regex, excepted))
    if not generation.is_stable and (said.owned_partitions or not member.former):
        return said
    owned, active = _former(member.former)
    return replace(said, owned_partitions=owned, active_partitions=active, generation=generation.generation_id - 1)


def _said(member: JoinedWith) -> tuple[MemberSubscription, str | None, tuple[str, ...]]:
    """The subscription with patterns as they are, the regular expression, and the excepted topics."""
    if not plain.is_plain(member.metadata):
        said = consumer.decode_subscription(member.metadata)
        return said.of_member(member.member_id, member.group_instance_id), None, ()
    subscription = plain.decode_plain_subscription(member.metadata)
    of_member = replace(subscription.said, member_id=member.member_id, group_instance_id=member.group_instance_id)
    return of_member, subscription.topic_regex, subscription.topics_except


def _former(assignment: bytes) -> tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]]:
    """Owned and active partitions. What another strategy left there may be anything: then nothing was owned."""
    try:
        return assigned_partitions(assignment), active_partitions(assignment) or ()
    except MalformedMetadata:
        return (), ()


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in an assignment, Kafka's bytes or JSON; `MalformedMetadata` for other bytes."""
    if plain.is_plain(assignment):
        return plain.decode_plain_assignment(assignment)
    return consumer.decode_assignment(assignment).partitions


def active_partitions(assignment: bytes) -> tuple[TopicPartition, ...] | None:
    """The partitions of which this member has the active copy; None where the strategy assigns no copies."""
    is_json = plain.is_plain(assignment)
    return active_in(assignment if is_json else consumer.decode_assignment(assignment).user_data)


def _encoded(
    member: JoinedWith,
    share: Sequence[TopicPartition],
    user_data: UserData | None,
    active: Sequence[TopicPartition] | None,
) -> bytes:
    if plain.is_plain(member.metadata):
        return plain.encode_plain_assignment(share, user_data, active)
    return consumer.encode_assignment(consumer.Assignment(tuple(share), encode_user_data(user_data, active=active)))


def unit_of(place: TopicPartition) -> str:
    """The name of a partition as a unit of work, such as `docs/3`."""
    return f"{place.topic}/{place.partition}"


def units_of(assignment: bytes) -> list[str]:
    """The names of the assigned partitions."""
    return [unit_of(place) for place in assigned_partitions(assignment)]


def without_units(assignment: bytes, units: frozenset[str]) -> bytes:
    """The assignment less these partitions, in the form that it has."""
    kept = tuple(place for place in assigned_partitions(assignment) if unit_of(place) not in units)
    if plain.is_plain(assignment):
        return plain.with_partitions(assignment, kept)
    return consumer.encode_assignment(replace(consumer.decode_assignment(assignment), partitions=kept))


CONSUMER: Final = ProtocolType(
    consumer.PROTOCOL_TYPE,
    read_metadata,
    read_assignment,
    topics_of,
    ServerSide(
        assigns,
        assign_partitions,
        _wanted,
        wants_topic,
        takes_away,
        describe_topics=describe_topics,
        topics_debounce_ms=topics_debounce_ms,
        promote=promote,
    ),
    subscribes,
    Units(units_of, without_units),
)
