"""Regular expressions over topics: what is one, which topics it means, and that matching takes linear time."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from rota.core.types import (
    Generation,
    JoinedWith,
    MalformedMetadata,
    TopicFacts,
    readable_metadata,
    server_side,
    subscribed_topics,
    why_not_assigned,
)
from rota.core.types.registry import subscribes
from rota.core.types.topics import MAX_REGEX_CHARS, MAX_REGEXES
from rota.core.types.worker import WorkerState, decode_state, encode_state


def plain(**values: Any) -> bytes:
    return json.dumps(values).encode()


def assigned(*metadata: bytes, topics: dict[str, int]) -> list[dict[str, list[int]]]:
    """The shares of members with this metadata, of the topics that the coordinator takes to be theirs."""
    side = server_side("consumer", "server:range")
    assert side is not None
    assert side.wants_topic is not None
    generation = Generation(
        1, "m0", "server:range", [JoinedWith(f"m{i}", None, each) for i, each in enumerate(metadata)]
    )
    wanted = side.wants_topic(generation)
    shares = side.assign(generation, {name: TopicFacts(count) for name, count in topics.items() if wanted(name)})
    return [json.loads(shares[member.member_id])["topics"] for member in generation.members]


def test_an_expression_means_topics_matched_as_a_whole() -> None:
    topics = {"audit-1": 1, "audit-22": 1, "audit-x": 1, "old-audit-1": 1, "orders": 1}

    (share,) = assigned(plain(topic_regex="audit-[0-9]+"), topics=topics)

    assert share == {"audit-1": [0], "audit-22": [0]}


def test_names_and_an_expression_together_mean_each_topic_once() -> None:
    metadata = plain(topics=["orders", "aud*"], topic_regex="audit-1|orders")

    (share,) = assigned(metadata, topics={"audit-1": 2, "orders": 1, "words": 1})

    assert share == {"audit-1": [0, 1], "orders": [0]}


def test_members_with_different_expressions_share_what_both_mean() -> None:
    shares = assigned(
        plain(topic_regex="a.*"), plain(topic_regex=".*-1"), topics={"a-1": 2, "a-2": 1, "b-1": 1, "c": 1}
    )

    assert shares == [{"a-1": [0], "a-2": [0]}, {"a-1": [1], "b-1": [0]}]


WITHOUT_AUDIT = {"topics": ["w-*", "orders"], "topics_except": ["w-au*", "w-old"]}


@pytest.mark.parametrize(
    "metadata", [{"topic_regex": "w-.*|orders", "topics_except": ["w-au*", "w-old"]}, WITHOUT_AUDIT]
)
def test_excepted_topics_are_left_out(metadata: dict[str, Any]) -> None:
    topics = {"w-audit": 1, "w-a": 1, "w-old": 1, "w-older": 1, "orders": 1}

    (share,) = assigned(plain(**metadata), topics=topics)

    assert share == {"orders": [0], "w-a": [0], "w-older": [0]}
    assert [subscribes("consumer", plain(**metadata), topic) for topic in topics] == [False, True, False, True, True]


def test_an_exception_holds_for_its_member_alone() -> None:
    shares = assigned(plain(topics=["a*"], topics_except=["a-1"]), plain(topics=["a*"]), topics={"a-1": 2, "a-2": 2})

    assert shares == [{"a-2": [0]}, {"a-1": [0, 1], "a-2": [1]}]


def test_a_name_may_be_excepted() -> None:
    metadata = plain(topics=["orders", "logs"], topics_except=["logs"])

    assert assigned(metadata, topics={"orders": 1, "logs": 1}) == [{"orders": [0]}]
    assert subscribed_topics("consumer", metadata) == frozenset({"orders"})
    read = readable_metadata("consumer", metadata)
    assert read is not None
    assert read["topics_except"] == ["logs"]


@pytest.mark.parametrize("excepted", ["logs", {"logs": 1}, [1], [None], 7, None])
def test_what_is_no_list_of_exceptions_is_rejected_at_the_join(excepted: object) -> None:
    said = why_not_assigned("consumer", "server:range", plain(topics=["a"], topics_except=excepted))

    assert said.endswith('"topics_except" must be a list of names')


def test_a_workers_connectors_may_be_excepted() -> None:
    state = WorkerState("http://w", topics=("orders-*",), topics_except=("orders-old*",))

    assert decode_state(encode_state(state)) == state
    assert subscribes("worker", encode_state(state), "orders-1")
    assert not subscribes("worker", encode_state(state), "orders-older")


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("(", "is no regular expression of RE2: missing ): ("),
        ("a(?=b)", "is no regular expression of RE2: invalid perl operator: (?="),
        (r"(a)\1", r"is no regular expression of RE2: invalid escape sequence: \1"),
        ("(((a{40}){40}){40})", "is no regular expression of RE2: "),
        ("", f"must be a text of 1 to {MAX_REGEX_CHARS} characters"),
        ("x" * (MAX_REGEX_CHARS + 1), f"must be a text of 1 to {MAX_REGEX_CHARS} characters"),
        (7, f"must be a text of 1 to {MAX_REGEX_CHARS} characters"),
        (["a"], f"must be a text of 1 to {MAX_REGEX_CHARS} characters"),
    ],
)
def test_what_is_no_expression_is_rejected_at_the_join(regex: object, why: str) -> None:
    said = why_not_assigned("consumer", "server:range", plain(topic_regex=regex))

    assert said.startswith(f"metadata of 'server:range': \"topic_regex\" {why}")


def test_a_subscription_without_topics_needs_an_expression() -> None:
    assert why_not_assigned("consumer", "server:range", plain()).endswith('"topics" must be a list of names')
    assert why_not_assigned("consumer", "server:range", plain(topic_regex="a+")) == ""


def test_an_expression_is_matched_in_linear_time() -> None:
    """Python's `re` needs more than the age of the universe for this one."""
    assert subscribes("consumer", plain(topic_regex="(a*)*b"), "a" * 249) is False


def test_many_different_expressions_in_a_group_are_an_error() -> None:
    """Each topic is matched with each of them."""
    regexes = [plain(topic_regex=f"a{number}") for number in range(MAX_REGEXES + 1)]
    assigned(*regexes[:-1], *regexes[:-1], topics={"a1": 1})

    with pytest.raises(MalformedMetadata, match=f"{MAX_REGEXES + 1} different regular expressions, at most"):
        assigned(*regexes, topics={"a1": 1})


def test_a_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)

    said = why_not_assigned("consumer", "server:range", plain(topic_regex="of-this-test-alone+"))

    assert said.endswith("which is not installed here: pip install 'rota[patterns]'")


def test_topics_of_an_expression_come_from_the_registry_alone() -> None:
    """So no offset of a topic that it may mean expires, and listings by topic find the group."""
    metadata = plain(topics=["orders"], topic_regex="audit-[0-9]+")

    assert subscribed_topics("consumer", metadata) is None
    assert [subscribes("consumer", metadata, topic) for topic in ("audit-7", "orders", "audit-x")] == [
        True,
        True,
        False,
    ]


def test_people_can_read_the_expression() -> None:
    read = readable_metadata("consumer", plain(topic_regex="a+", topics_debounce_ms=5))

    assert read == {"topics": [], "rack": None, "capacity": 1.0, "topic_regex": "a+", "topics_debounce_ms": 5}
