"""The `consumer` protocol type: what members subscribe to and what they are assigned, in Kafka's bytes or in JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rota.core.assignors import (
    GroupSubscription,
    UnknownAssignor,
    active_copies,
    assign_group,
    has_copies,
    strategy,
)
from rota.core.assignors.model import UNKNOWN_GENERATION, MemberSubscription, TopicPartition, UserData
from rota.core.types import wire_format
from rota.core.types.plugin import Generation, JoinedWith, ProtocolType, Readable, ServerSide, Units
from rota.core.types.topics import (
    PATTERN_END,
    TopicFacts,
    WantedTopics,
    describe_changes,
    partition_counts,
    partition_racks,
    partition_weights,
    topic_matcher,
)
from rota.core.types.topics import topic_regex as check_regex
from rota.core.types.wire_format import (
    MalformedMetadata,
    Reader,
    active_in,
    by_topic,
    capacity_in,
    decode_object,
    encode_object,
    encode_user_data,
    names_in,
    own_user_data,
    partitions_in,
    positive_number,
    topics_debounce_in,
    topics_debounce_of,
    user_data_in,
    user_data_values,
)

# --- Kafka's bytes --------------------------------------------------------------------------------

# `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`, versions 0 to 3. A newer version is read as far as
# this one knows it, since versions only ever append fields; bytes that follow are left alone.


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


# --- JSON -----------------------------------------------------------------------------------------

# Subscriptions and assignments as JSON, for members that only speak HTTP and know nothing of Kafka's bytes.
#
# A subscription is `{"topics": ["orders", "audit-*"], "rack": "r1", "capacity": 2, "owned": {"orders": [0, 1]}}`, where
# a name that ends in `*` stands for all topics that begin so. `"topic_regex": "audit-[0-9]+"` stands for all topics
# with a name whose whole name it matches; one of it and `topics` must be there. `"topics_except": ["audit-*", "logs"]`
# leaves topics out that these would mean. With `"topics_debounce_ms": 5000` changes of topics collect for so long
# before they lead to a generation. An assignment is `{"topics": {"orders": [0, 1]}}`. A strategy with copies adds
# `"active": {"orders": [1]}`: the partitions of which this member has the active copy; a member that lists `owned`
# repeats them. Both may have `"user_data": {"version": 1, "data": "<base64>"}`, for strategies of the user's own.
# Kafka's bytes never begin with a brace, so the first byte distinguishes the two.


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
    return encode_object(values)


def with_partitions(assignment: bytes, partitions: Sequence[TopicPartition]) -> bytes:
    """The assignment with other partitions; whatever else it says stays."""
    values = {**decode_object(assignment), "topics": by_topic(partitions)}
    return encode_object(values)


def decode_plain_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    return partitions_in(decode_object(data).get("topics", {}))


def _user_data(values: Mapping[str, Any]) -> UserData | None:
    user_data = values.get("user_data", {})
    if not isinstance(user_data, dict):
        raise MalformedMetadata('"user_data" must be an object')
    return own_user_data(user_data)


# --- assignment by the coordinator ----------------------------------------------------------------

# Assigning partitions on the server: `server:<strategy>` for members of `consumer` groups, whatever they speak.
#
# Each member is answered in the form of its own metadata, Kafka's bytes or JSON, so that both may be in one group.


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
    if is_plain(metadata):
        said = decode_plain_subscription(metadata)
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
    decoded = decode_subscription(metadata)
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
    if is_plain(assignment) or not assignment:
        return values
    user_data = user_data_in(decode_assignment(assignment).user_data)
    return values if user_data is None else {**values, "user_data": user_data_values(user_data)}


def _assigned_topics(shares: Mapping[str, bytes]) -> dict[str, TopicFacts]:
    numbers = Counter(place.topic for share in shares.values() for place in assigned_partitions(share))
    return {topic: TopicFacts(count) for topic, count in numbers.items()}


def _debounce_ms(metadata: bytes) -> int:
    if is_plain(metadata):
        return decode_plain_subscription(metadata).topics_debounce_ms
    return topics_debounce_of(decode_subscription(metadata).user_data)


def _wanted(metadata: bytes) -> WantedTopics:
    if is_plain(metadata):
        said = decode_plain_subscription(metadata)
        return WantedTopics(frozenset(said.said.topics), said.topic_regex, frozenset(said.topics_except))
    return WantedTopics(frozenset(decode_subscription(metadata).topics), None)


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
    if not is_plain(member.metadata):
        said = decode_subscription(member.metadata)
        return said.of_member(member.member_id, member.group_instance_id), None, ()
    subscription = decode_plain_subscription(member.metadata)
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
    if is_plain(assignment):
        return decode_plain_assignment(assignment)
    return decode_assignment(assignment).partitions


def active_partitions(assignment: bytes) -> tuple[TopicPartition, ...] | None:
    """The partitions of which this member has the active copy; None if the strategy assigns no copies."""
    is_json = is_plain(assignment)
    return active_in(assignment if is_json else decode_assignment(assignment).user_data)


def _encoded(
    member: JoinedWith,
    share: Sequence[TopicPartition],
    user_data: UserData | None,
    active: Sequence[TopicPartition] | None,
) -> bytes:
    if is_plain(member.metadata):
        return encode_plain_assignment(share, user_data, active)
    return encode_assignment(Assignment(tuple(share), encode_user_data(user_data, active=active)))


def unit_of(place: TopicPartition) -> str:
    """The name of a partition as a unit of work, such as `docs/3`."""
    return f"{place.topic}/{place.partition}"


def units_of(assignment: bytes) -> list[str]:
    """The names of the assigned partitions."""
    return [unit_of(place) for place in assigned_partitions(assignment)]


def without_units(assignment: bytes, units: frozenset[str]) -> bytes:
    """The assignment less these partitions, in the form that it has."""
    kept = tuple(place for place in assigned_partitions(assignment) if unit_of(place) not in units)
    if is_plain(assignment):
        return with_partitions(assignment, kept)
    return encode_assignment(replace(decode_assignment(assignment), partitions=kept))


CONSUMER: Final = ProtocolType(
    PROTOCOL_TYPE,
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
