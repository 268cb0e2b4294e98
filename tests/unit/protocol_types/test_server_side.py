"""Assigning `consumer` groups on the server: forms, patterns, attributes of topics, and readable forms."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.core.assignors import TopicPartition, UserData
from rota.core.types import (
    Generation,
    JoinedWith,
    MalformedMetadata,
    TopicFacts,
    readable_assignment,
    readable_metadata,
    server_side,
    subscribed_topics,
    topics_debounce_ms,
    why_not_assigned,
)
from rota.core.types.consumer import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_plain_subscription,
    encode_assignment,
    encode_subscription,
    group_subscription,
)
from rota.core.types.registry import subscribes
from rota.core.types.wire_format import encode_user_data
from tests.unit.assignors.worlds import deterministic

FOUR = {"t": TopicFacts(4)}


def plain(*topics: str, **more: Any) -> bytes:
    return json.dumps({"topics": topics, **more}).encode()


def assigned(name: str, topics: dict[str, TopicFacts], *metadata: bytes, former: bytes = b"") -> list[dict[str, Any]]:
    """The plain shares of members with this metadata, in their order; only `m0` had something before."""
    members = [
        JoinedWith(f"m{index}", None, each, former if index == 0 else b"") for index, each in enumerate(metadata)
    ]
    side = server_side("consumer", name)
    assert side is not None
    assert side.wants_topic is not None
    generation = Generation(3, "m0", name, members)
    wanted = side.wants_topic(generation)
    shares = side.assign(generation, {topic: facts for topic, facts in topics.items() if wanted(topic)})
    return [json.loads(shares[member.member_id])["topics"] for member in members]


def test_each_member_is_answered_in_its_own_form() -> None:
    members = [JoinedWith("a", None, plain("t")), JoinedWith("b", None, encode_subscription(Subscription(("t",))))]
    side = server_side("consumer", "server:range")
    assert side is not None

    shares = side.assign(Generation(1, "a", "server:range", members), FOUR)

    assert json.loads(shares["a"]) == {"topics": {"t": [0, 1]}}
    assert decode_assignment(shares["b"]).partitions == (TopicPartition("t", 2), TopicPartition("t", 3))


@pytest.mark.parametrize(
    ("metadata", "topic", "is_subscribed"),
    [
        (plain("orders", "words"), "words", True),
        (plain("orders", "words"), "word", False),
        (plain("audit-*"), "audit-2", True),
        (plain("audit-*"), "audits", False),
        (b'{"topics": ["w\\u006frds"]}', "words", True),
        (plain("orders", owned={"words": [1]}), "words", False),
        (encode_subscription(Subscription(("words",))), "words", True),
        (encode_subscription(Subscription(("words",), b"orders")), "orders", False),
        (encode_subscription(Subscription(("words",), owned_partitions=(TopicPartition("old", 1),))), "old", False),
        (b"words", "words", None),
    ],
)
def test_it_is_known_which_topics_a_member_subscribes_to(
    metadata: bytes, topic: str, is_subscribed: bool | None
) -> None:
    assert subscribes("consumer", metadata, topic) is is_subscribed


def test_of_types_that_know_no_topics_it_is_not_known() -> None:
    assert subscribes("worker", b"words", "words") is None
    assert subscribes("unheard-of", b"words", "words") is None


def test_a_name_that_ends_in_a_star_is_all_topics_that_begin_so() -> None:
    topics = {"audit-eu": TopicFacts(1), "audit-us": TopicFacts(1), "orders": TopicFacts(5), "audi": TopicFacts(7)}

    assert assigned("server:roundrobin", topics, plain("audit-*")) == [{"audit-eu": [0], "audit-us": [0]}]


def test_topics_that_the_registry_does_not_know_are_left_out() -> None:
    assert assigned("server:sticky", FOUR, plain("t", "missing")) == [{"t": [0, 1, 2, 3]}]


def test_options_capacities_and_weights_count() -> None:
    heavy = {"t": TopicFacts(4, {"weights": "9, 1, 1, nonsense"})}

    sizes = [len(share["t"]) for share in assigned("server:weighted", heavy, plain("t"), plain("t"))]
    copies = [share["t"] for share in assigned("server:redundant(2)", FOUR, plain("t"), plain("t"))]
    big, small = assigned("server:weighted", FOUR, plain("t", capacity=3), plain("t"))

    assert sorted(sizes) == [1, 3]
    assert copies == [[0, 1, 2, 3]] * 2
    assert (len(big["t"]), len(small["t"])) == (3, 1)


def test_racks_of_partitions_are_an_attribute_of_the_topic() -> None:
    racked = {"t": TopicFacts(4, {"racks": "r1+r3, r1, r1, r2"})}

    near, far = assigned("server:rack-aware", racked, plain("t", rack="r1"), plain("t", rack="r2"))

    assert (near, far) == ({"t": [0, 1, 2]}, {"t": [3]})


def test_a_former_share_counts_as_owned_without_a_claim() -> None:
    had = b'{"topics": {"t": [3]}}'

    assert 3 in assigned("server:sticky", FOUR, plain("t"), plain("t"), former=had)[0]["t"]
    said = plain("t", owned={"t": [1, 2]}, generation_id=2)
    assert assigned("server:sticky", FOUR, said, plain("t"), former=had)[0] == {"t": [1, 2]}


def test_a_strategy_gets_topics_once_and_the_shares_generation() -> None:
    members = [JoinedWith("m0", None, plain("t", "t*", "t"), b'{"topics": {"t": [3]}}')]

    (member,) = group_subscription(Generation(3, "m0", "server:sticky", members), FOUR).members

    assert (list(member.topics), member.owned_partitions) == (["t"], (TopicPartition("t", 3),))
    assert member.generation == 2, "the last one, as a member would claim it"


def test_changes_of_topics_collect_for_the_longest_time() -> None:
    kafkas = encode_subscription(Subscription(("t",), encode_user_data(None, topics_debounce_ms=50)))
    metadata = (plain("t", topics_debounce_ms=20), kafkas, plain("t"))
    members = [JoinedWith(f"m{number}", None, each) for number, each in enumerate(metadata)]
    side = server_side("consumer", "server:range")
    assert side is not None

    assert topics_debounce_ms(side, Generation(1, "m0", "server:range", members)) == 50


def test_bytes_of_another_strategy_are_nothing_that_one_had() -> None:
    assert assigned("server:sticky", FOUR, plain("t"), former=b"\x00m0") == [{"t": [0, 1, 2, 3]}]


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (b"{", "not JSON"),
        (b'{"topics": "t"}', "list of names"),
        (b'{"topics": [1]}', "list of names"),
        (b'{"topics": [], "capacity": 0}', "capacity"),
        (b'{"topics": [], "capacity": true}', "capacity"),
        (b'{"topics": [], "capacity": 1' + b"0" * 400 + b"}", "capacity"),
        (b'{"topics": [], "rack": 1}', "rack"),
        (b'{"topics": [], "generation_id": "1"}', "generation_id"),
        (b'{"topics": [], "owned": [1]}', "by topic"),
        (b'{"topics": [], "owned": {"t": ["0"]}}', "list of numbers"),
    ],
)
def test_what_is_wrong_with_plain_metadata_is_said(metadata: bytes, why: str) -> None:
    with pytest.raises(MalformedMetadata, match=why):
        decode_plain_subscription(metadata)
    assert why in why_not_assigned("consumer", "server:sticky", metadata)
    assert why_not_assigned("consumer", "sticky", metadata) == "", "to us it is opaque there"


@deterministic
@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: ("{" + text).encode()))
@example(b"{" * 40)
@example(b'{"topics":[],"owned":{"t":' + b"[" * 5_000)
def test_no_bytes_break_what_reads_them(data: bytes) -> None:
    why_not_assigned("consumer", "server:sticky", data)
    for protocol_type in ("consumer", "worker", "leader"):
        readable_metadata(protocol_type, data)
        readable_assignment(protocol_type, data)
        subscribed_topics(protocol_type, data)


def test_offsets_of_pattern_subscribers_never_expire() -> None:
    assert subscribed_topics("consumer", plain("a", "b")) == frozenset({"a", "b"})
    assert subscribed_topics("consumer", plain("a", "b-*")) is None


def test_people_can_read_what_members_said_and_got() -> None:
    assert readable_metadata("consumer", plain("t", rack="r1")) == {"topics": ["t"], "rack": "r1", "capacity": 1.0}
    assert readable_metadata("consumer", encode_subscription(Subscription(("t",))))["topics"] == ["t"]  # type: ignore[index]
    assert readable_assignment("consumer", b'{"topics":{"t":[1]}}') == {"topics": {"t": [1]}}
    assert readable_metadata("unheard-of", b"?") is None


def test_people_can_read_all_that_kafkas_bytes_say() -> None:
    own = encode_user_data(UserData(b"500", 1), capacity=2.0, topics_debounce_ms=50)
    metadata = encode_subscription(Subscription(("t",), own, (TopicPartition("t", 1),), generation_id=7, rack_id="r1"))
    assignment = encode_assignment(Assignment((TopicPartition("t", 1),), encode_user_data(UserData(b"warm", 2))))

    assert readable_metadata("consumer", metadata) == {
        "topics": ["t"],
        "rack": "r1",
        "owned": {"t": [1]},
        "generation_id": 7,
        "capacity": 2.0,
        "topics_debounce_ms": 50,
        "user_data": {"version": 1, "data": "NTAw"},
    }
    assert readable_assignment("consumer", assignment) == {
        "topics": {"t": [1]},
        "user_data": {"version": 2, "data": "d2FybQ=="},
    }
