"""The short way of reading commits accepts what the shape accepts, and makes the same of it."""

from __future__ import annotations

from typing import Any

import pytest

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.wire.json_commits import read_plain_commit
from rota.wire.requests import COMMIT_OFFSETS

LIMITS = Limits(max_partitions_per_request=2)
MEMBERS: list[Any] = ["m", "", "ü", "m" * 513, "\x00", 7, None]
GENERATIONS: list[Any] = [0, -1, -2, 2**31 - 1, 2**31, True, 7.0, "7", None]
TOPICS: list[Any] = ["t", "", "t" * 249, "t" * 250, "a/b", "..", "\x00", 7, None]
PARTITIONS: list[Any] = [0, -1, 2**31 - 1, 2**31, True, 1.0, "1", None]
OFFSETS: list[Any] = [0, -1, 2**53 - 1, 2**53, False, 1.0, "1", "01", "+1", str(2**63 - 1), str(2**63), None]
PLAIN = {"topic": "t", "partition": 3, "offset": 41}
ODD: list[Any] = [
    {**PLAIN, "metadata": ""},
    {**PLAIN, "leader_epoch": 3},
    {**PLAIN, "topic_id": "3"},
    {**PLAIN, "topic_id": -1},
    {**PLAIN, "topic_id": None},
    {"topic": "t", "partition": 3, "topic_id": 3},
    {"topic": "t", "partition": 3},
    {},
    [],
    "t",
    7,
]


def accepted(document: dict[str, Any]) -> Any:
    """What the shape makes of it; None where it rejects it."""
    try:
        return COMMIT_OFFSETS.decode(document, LIMITS, namespace="ns", group_id="g")
    except RejectedRequest:
        return None


def a_commit(*offsets: Any, **changes: Any) -> dict[str, Any]:
    return {"member_id": "m", "generation_id": 7, "offsets": list(offsets or [PLAIN]), **changes}


@pytest.mark.parametrize(("name", "values"), [("topic", TOPICS), ("partition", PARTITIONS), ("offset", OFFSETS)])
def test_each_field_is_what_its_shape_makes_of_it(name: str, values: list[Any]) -> None:
    for value in values:
        document = a_commit(PLAIN, {**PLAIN, name: value})

        assert read_plain_commit(document, "ns", "g", LIMITS) == accepted(document), document


def test_each_member_is_what_its_shape_makes_of_it() -> None:
    for member_id in MEMBERS:
        for generation_id in GENERATIONS:
            document = a_commit(member_id=member_id, generation_id=generation_id)

            plain = read_plain_commit(document, "ns", "g", LIMITS)

            # A null means an absent field, which the shape knows.
            is_left = member_id is None or generation_id is None
            assert plain == (None if is_left else accepted(document)), document


@pytest.mark.parametrize(
    "document",
    [
        *(a_commit(PLAIN, odd) for odd in ODD),
        a_commit(PLAIN, PLAIN, PLAIN),
        a_commit(offsets={}),
        a_commit(offsets=None),
        a_commit(group_instance_id="i"),
        a_commit(x=1),
        {"generation_id": 7, "offsets": [PLAIN]},
        {"generation_id": 7, "offsets": [PLAIN], "x": 1},
        {},
    ],
)
def test_what_is_not_plain_is_left_to_the_shape(document: dict[str, Any]) -> None:
    assert read_plain_commit(document, "ns", "g", LIMITS) is None


@pytest.mark.parametrize("topic_id", [0, 1, 2**53 - 1])
def test_a_commit_with_the_topics_id_is_plain(topic_id: int) -> None:
    document = a_commit({**PLAIN, "topic_id": topic_id})

    assert read_plain_commit(document, "ns", "g", LIMITS) == accepted(document) is not None


def test_a_commit_of_no_offset_is_plain() -> None:
    document = a_commit(offsets=[])

    assert read_plain_commit(document, "ns", "g", LIMITS) == accepted(document)
