"""The bytes of the `consumer` protocol type: golden vectors worked out by hand, round trips, and malformed bytes."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.core.assignors import TopicPartition
from rota.core.types import MalformedMetadata, subscribed_topics
from rota.core.types.consumer import (
    LATEST_VERSION,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

deterministic = settings(derandomize=True, deadline=None)

SUBSCRIPTION = Subscription(
    topics=("ab", "c"),
    user_data=b"\xff\x00",
    owned_partitions=(TopicPartition("ab", 0), TopicPartition("ab", 258), TopicPartition("c", 1)),
    generation_id=7,
    rack_id="r1",
)
TOPICS = bytes.fromhex(
    "00000002"  # two topics
    "0002 6162"  # 2 bytes: "ab"
    "0001 63"  # 1 byte: "c"
)
USER_DATA = bytes.fromhex(
    "00000002"  # 2 bytes of user data
    "ff00"
)
NO_USER_DATA = bytes.fromhex("ffffffff")  # -1: null
PARTITIONS = bytes.fromhex(
    "00000002"  # two topics
    "0002 6162"  # "ab"
    "00000002 00000000 00000102"  # two partitions: 0 and 258
    "0001 63"  # "c"
    "00000001 00000001"  # one partition: 1
)
GENERATION = bytes.fromhex("00000007")
RACK = bytes.fromhex("0002 7231")  # 2 bytes: "r1"
NO_RACK = bytes.fromhex("ffff")  # -1: null

SUBSCRIPTION_BYTES = {
    0: b"\x00\x00" + TOPICS + USER_DATA,
    1: b"\x00\x01" + TOPICS + USER_DATA + PARTITIONS,
    2: b"\x00\x02" + TOPICS + USER_DATA + PARTITIONS + GENERATION,
    3: b"\x00\x03" + TOPICS + USER_DATA + PARTITIONS + GENERATION + RACK,
}

versions = st.integers(0, LATEST_VERSION)
TEXTS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
names = st.text(TEXTS, max_size=12)
partitions = st.builds(TopicPartition, names, st.integers(-(2**31), 2**31 - 1))
user_data = st.none() | st.binary(max_size=20)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(names, max_size=5).map(tuple),
    user_data=user_data,
    owned_partitions=st.lists(partitions, max_size=8).map(tuple),
    generation_id=st.integers(-1, 2**31 - 1),
    rack_id=st.none() | st.text(TEXTS, min_size=1, max_size=8),
)


@pytest.mark.parametrize("version", SUBSCRIPTION_BYTES)
def test_a_subscription_is_written_byte_for_byte_as_kafka_does(version: int) -> None:
    assert encode_subscription(SUBSCRIPTION, version) == SUBSCRIPTION_BYTES[version]


def test_each_version_of_a_subscription_reads_with_defaults() -> None:
    decoded = {version: decode_subscription(data) for version, data in SUBSCRIPTION_BYTES.items()}

    owned = SUBSCRIPTION.owned_partitions
    assert decoded == {
        0: Subscription(("ab", "c"), b"\xff\x00"),
        1: Subscription(("ab", "c"), b"\xff\x00", owned),
        2: Subscription(("ab", "c"), b"\xff\x00", owned, 7),
        3: SUBSCRIPTION,
    }


def test_absent_user_data_and_rack_are_null_and_not_empty() -> None:
    data = encode_subscription(Subscription(("ab", "c"), generation_id=7))

    assert data == b"\x00\x03" + TOPICS + NO_USER_DATA + bytes(4) + GENERATION + NO_RACK
    assert decode_subscription(data) == Subscription(("ab", "c"), generation_id=7)


def test_an_empty_rack_is_no_rack() -> None:
    data = b"\x00\x03" + TOPICS + NO_USER_DATA + bytes(4) + GENERATION + b"\x00\x00"

    assert decode_subscription(data).rack_id is None


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    data = b"\x00\x09" + SUBSCRIPTION_BYTES[3][2:] + b"fields of the future"

    assert decode_subscription(data) == SUBSCRIPTION


@pytest.mark.parametrize("version", range(LATEST_VERSION + 1))
def test_an_assignment_is_written_byte_for_byte_as_kafka_does(version: int) -> None:
    assignment = Assignment(SUBSCRIPTION.owned_partitions, b"\xff\x00")
    data = struct.pack(">h", version) + PARTITIONS + USER_DATA

    assert encode_assignment(assignment, version) == data
    assert decode_assignment(data) == assignment
    assert decode_assignment(b"\x00\x09" + data[2:] + b"more") == assignment


def test_no_bytes_are_no_assignment() -> None:
    assert decode_assignment(b"") == Assignment(())


def test_a_subscription_in_another_order_is_the_same_bytes() -> None:
    shuffled = Subscription(
        SUBSCRIPTION.topics[::-1], SUBSCRIPTION.user_data, SUBSCRIPTION.owned_partitions[::-1], 7, "r1"
    )

    assert encode_subscription(shuffled) == SUBSCRIPTION_BYTES[3]


def test_what_the_format_cannot_say_is_refused_when_writing() -> None:
    for subscription, version in [
        (Subscription(("x" * 0x8000,)), 3),
        (SUBSCRIPTION, -1),
        (SUBSCRIPTION, LATEST_VERSION + 1),
    ]:
        with pytest.raises(ValueError):
            encode_subscription(subscription, version)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "2 bytes expected"),
        (b"\x00", "2 bytes expected"),
        (b"\xff\xff" + TOPICS + USER_DATA, "version -1"),
        (b"\x00\x00\xff\xff\xff\xff" + USER_DATA, "array .* null"),
        (b"\x00\x00\x00\x00\x00\x01\xff\xff" + USER_DATA, "string .* null"),
        (b"\x00\x00\x00\x00\x00\x01\xff\xfe" + USER_DATA, "-2 bytes"),
        (b"\x00\x00\x00\x00\x00\x01\x00\x01\xff" + USER_DATA, "UTF-8"),
        (b"\x00\x00\x7f\xff\xff\xff" + USER_DATA, "2147483647 items"),
        (b"\x00\x00" + TOPICS + b"\x7f\xff\xff\xff", "2147483647 bytes"),
        (b"\x00\x00" + TOPICS + b"\xff\xff\xff\xfe", "-2 bytes"),
        (b"\x00\x01" + TOPICS + USER_DATA, "4 bytes expected"),
        (b"\x00\x02" + TOPICS + USER_DATA + PARTITIONS, "4 bytes expected"),
        (b"\x00\x03" + TOPICS + USER_DATA + PARTITIONS + GENERATION, "2 bytes expected"),
    ],
)
def test_malformed_bytes_are_named(data: bytes, why: str) -> None:
    with pytest.raises(MalformedMetadata, match=why):
        decode_subscription(data)


def test_every_cut_of_a_subscription_is_malformed() -> None:
    data = SUBSCRIPTION_BYTES[3]

    for end in range(len(data)):
        with pytest.raises(MalformedMetadata):
            decode_subscription(data[:end])


def test_a_length_that_lies_allocates_nothing() -> None:
    lies = b"\x00\x01" + TOPICS + USER_DATA + b"\x7f\xff\xff\xff" + bytes(64)

    tracemalloc.start()
    with pytest.raises(MalformedMetadata):
        decode_subscription(lies)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 100_000


@deterministic
@given(subscriptions, versions)
def test_a_subscription_lacks_what_its_version_lacks(subscription: Subscription, version: int) -> None:
    expected = Subscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=tuple(sorted(subscription.owned_partitions)) if version >= 1 else (),
        generation_id=subscription.generation_id if version >= 2 else -1,
        rack_id=subscription.rack_id if version >= 3 else None,
    )

    assert decode_subscription(encode_subscription(subscription, version)) == expected


@deterministic
@given(st.lists(partitions, max_size=8), user_data, versions)
def test_an_assignment_comes_back_grouped_by_topic(
    given: list[TopicPartition], extra: bytes | None, version: int
) -> None:
    decoded = decode_assignment(encode_assignment(Assignment(tuple(given), extra), version))

    order = list(dict.fromkeys(partition.topic for partition in given))
    assert decoded == Assignment(tuple(sorted(given, key=lambda partition: order.index(partition.topic))), extra)


@deterministic
@given(
    st.binary(max_size=80) | st.builds(lambda head, tail: head + tail, st.sampled_from([b"\0\0", b"\0\3"]), st.binary())
)
@example(SUBSCRIPTION_BYTES[3])
def test_random_bytes_raise_nothing_but_malformed_metadata(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except MalformedMetadata:
            continue


@deterministic
@given(st.integers(0, len(SUBSCRIPTION_BYTES[3]) - 1), st.integers(0, 255))
def test_a_flipped_byte_raises_nothing_but_malformed_metadata(position: int, value: int) -> None:
    data = bytearray(SUBSCRIPTION_BYTES[3])
    data[position] = value

    topics = subscribed_topics("consumer", bytes(data))

    assert topics is None or topics == frozenset(decode_subscription(bytes(data)).topics)


def test_topics_are_known_for_readable_consumers_only() -> None:
    assert subscribed_topics("consumer", SUBSCRIPTION_BYTES[0]) == frozenset({"ab", "c"})
    assert subscribed_topics("consumer", b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff") == frozenset()
    assert subscribed_topics("consumer", b"anything") is None
    assert subscribed_topics("leader", SUBSCRIPTION_BYTES[0]) is None


def test_a_subscription_becomes_what_assignors_want() -> None:
    member = SUBSCRIPTION.of_member("m-1", "instance")

    assert (member.member_id, member.group_instance_id, member.topics) == ("m-1", "instance", ("ab", "c"))
    assert (member.owned_partitions, member.generation, member.rack) == (SUBSCRIPTION.owned_partitions, 7, "r1")


KIP54 = bytes.fromhex("00000001 0001 74 00000002 00000000 00000003")
"""`{t: [0, 3]}`, as Kafka's StickyAssignor writes it without a version before it."""


@pytest.mark.parametrize(
    ("user_data", "claims"),
    [
        (KIP54, (((0, 3)), -1)),
        (KIP54 + (7).to_bytes(4, "big"), ((0, 3), 7)),
        (KIP54[:-1], ((), -1)),
        (KIP54 + b"\0", ((), -1)),
        (b'{"capacity": 2}', ((), -1)),
        (b"", ((), -1)),
    ],
    ids=["version 0", "version 1", "cut", "longer", "ours", "empty"],
)
def test_the_user_data_of_kip54_claims_partitions(user_data: bytes, claims: tuple[tuple[int, ...], int]) -> None:
    said = decode_subscription(encode_subscription(Subscription(("t",), user_data), version=0)).of_member("m")

    assert (tuple(place.partition for place in said.owned_partitions), said.generation) == claims


def test_owned_partitions_count_more_than_the_user_data_of_kip54() -> None:
    owned = (TopicPartition("t", 5),)

    said = Subscription(("t",), KIP54, owned, 9).of_member("m")

    assert (said.owned_partitions, said.generation) == (owned, 9)
