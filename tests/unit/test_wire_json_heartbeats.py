"""The short way of reading heartbeats accepts what the shapes accept, and makes the same of it."""

from __future__ import annotations

from typing import Any

import pytest

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import MemberHeartbeat
from rota.wire.json_heartbeats import read_plain, read_plain_members
from rota.wire.requests import HEARTBEAT, HEARTBEAT_BATCH

LIMITS = Limits(group_max_size=3)
IDS: list[Any] = ["m", "", "ü", "m" * 512, "m" * 513, "a\u202eb", "\x00", "\ud800", 7, None, True, ["m"]]
GENERATIONS: list[Any] = [0, -1, -2, 2**31 - 1, 2**31, True, 7.0, "7", None]
BEATS = [{"member_id": member_id, "generation_id": number} for member_id in IDS for number in GENERATIONS]
WAITS: list[Any] = [0, 5, 50_001, 2**53 - 1, -1, 2**53, True, 5.0, "5"]
MORE: list[dict[str, Any]] = [{}, *({"wait_ms": wait_ms} for wait_ms in WAITS)]
LEFT: list[dict[str, Any]] = [
    {"group_instance_id": "i"},
    {"group_instance_id": None},
    {"wait_ms": None},
    {"wait_ms": 5, "group_instance_id": None},
    {"x": 1},
]


@pytest.mark.parametrize("more", LEFT)
def test_one_heartbeat_that_says_more_is_left_to_the_shape(more: dict[str, Any]) -> None:
    assert [read_plain({**beat, **more}, "ns", "g") for beat in BEATS] == [None] * len(BEATS)


@pytest.mark.parametrize("more", MORE)
def test_one_heartbeat_is_what_its_shape_makes_of_it(more: dict[str, Any]) -> None:
    for beat in BEATS:
        document = {**beat, **more}

        plain = read_plain(document, "ns", "g")

        assert (plain is None) == (not is_accepted(document)), document
        assert plain is None or plain == HEARTBEAT.decode(document, LIMITS, namespace="ns", group_id="g")


def test_a_batch_is_what_its_shape_makes_of_it() -> None:
    for beat in BEATS:
        document = {"members": [{"member_id": "first", "generation_id": 1}, beat]}

        plain = read_plain_members(document, LIMITS)

        assert (plain is None) == (not is_accepted(beat)), document
        if plain is not None:
            shaped = HEARTBEAT_BATCH.decode(document, LIMITS)
            assert plain == tuple(MemberHeartbeat(**member) for member in shaped["members"])


@pytest.mark.parametrize(
    "document",
    [
        {"members": [{"member_id": f"m{n}", "generation_id": 1} for n in range(4)]},
        {"members": [], "wait_ms": 0},
        {"members": {}},
        {"members": None},
        {"members": ["m"]},
        {"members": [{"member_id": "m", "generation_id": 1, "group_instance_id": "i"}]},
        {},
    ],
)
def test_what_is_not_plain_is_left_to_the_shape(document: dict[str, Any]) -> None:
    assert read_plain_members(document, LIMITS) is None


def is_accepted(document: dict[str, Any]) -> bool:
    try:
        HEARTBEAT.decode(document, LIMITS, namespace="ns", group_id="g")
    except RejectedRequest:
        return False
    return True
