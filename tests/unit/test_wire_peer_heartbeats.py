"""Heartbeats between replicas: they are unpacked as they were packed, and bytes that no replica sends are malformed."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    MemberHeartbeat,
)
from rota.wire.envelopes import MalformedEnvelope
from rota.wire.peer_heartbeats import pack_answers, pack_heartbeats, unpack_answers, unpack_heartbeats

TEXT = st.text(max_size=8)
NUMBER = st.integers(-1, 2**31 - 1)
CODE = st.sampled_from(ErrorCode)
MEMBERS = st.lists(st.builds(MemberHeartbeat, TEXT, NUMBER, st.none() | TEXT), max_size=4).map(tuple)
REQUESTS = st.builds(Heartbeat, TEXT, TEXT, TEXT, NUMBER, st.none() | TEXT, subject=TEXT) | st.builds(
    HeartbeatMany, TEXT, TEXT, MEMBERS, TEXT
)
ERRORS = st.lists(st.builds(HeartbeatError, TEXT, CODE, TEXT), max_size=4).map(tuple)
REPLIES = st.builds(HeartbeatReply, CODE, TEXT, NUMBER, TEXT) | st.builds(
    HeartbeatManyReply, CODE, TEXT, NUMBER, TEXT, ERRORS
)


def as_tuple(*packed: Any) -> Any:
    return packed


@given(st.lists(REQUESTS, max_size=4))
def test_heartbeats_arrive_as_they_were_sent(requests: list[Heartbeat | HeartbeatMany]) -> None:
    assert unpack_heartbeats(pack_heartbeats(requests)) == requests


@given(st.lists(st.tuples(REPLIES, NUMBER, NUMBER, TEXT), max_size=4))
def test_replies_arrive_with_what_travels_beside_them(
    reported: list[tuple[HeartbeatReply | HeartbeatManyReply, int, int, str]],
) -> None:
    assert unpack_answers(pack_answers(reported), as_tuple) == reported


def test_heartbeats_of_many_members_arrive_beside_one() -> None:
    many = HeartbeatMany("n", "g", tuple(MemberHeartbeat(f"m{number}", 1) for number in range(1_024)))
    requests: list[Heartbeat | HeartbeatMany] = [Heartbeat("n", "g", "m", 1), many, Heartbeat("n", "g", "m", 2)]

    assert unpack_heartbeats(pack_heartbeats(requests)) == requests


def test_numbers_of_another_kind_are_malformed() -> None:
    for generation_id in (b"1.0", b"true"):
        with pytest.raises(MalformedEnvelope):
            unpack_heartbeats(b'[["n","g","m",%b,null]]' % generation_id)
        with pytest.raises(MalformedEnvelope):
            unpack_answers(b'[[1,1,"","NONE","",%b,"Stable"]]' % generation_id, as_tuple)


@pytest.mark.parametrize(
    "document",
    [
        1,
        [1],
        [["n", "g"]],
        [["n", "g", "m", "1", None]],
        [["n", "g", "m", True, None]],
        [["n", "g", "m", 1.0, None]],
        [["n", "g", "m", 1, 0]],
        [["n", "g", "m", 1, 2]],
        [["n", "g", "m", 1, None, 2]],
        [["n", "g", "m", 1, None, "token:ci", ""]],
        [["n", "g", [], None]],
        [["n", "g", {}]],
        [["n", "g", [["m", None, None]]]],
        [{"n": 1, "g": 2, "m": 3, "x": 4, "y": 5}],
    ],
)
def test_other_requests_are_malformed(document: object) -> None:
    with pytest.raises(MalformedEnvelope):
        unpack_heartbeats(json.dumps(document).encode())


@pytest.mark.parametrize(
    "document",
    [
        {},
        [[]],
        [[1, 1, "", "NONE", "", 1]],
        [[1, 1, "", "SURPRISE", "", 1, "Stable"]],
        [[1, 1, None, "NONE", "", 1, "Stable"]],
        [[1, 1, "", "NONE", "", 1, "Stable", [["m", "SURPRISE", ""]]]],
        [[1, 1, "", "NONE", "", 1, "Stable", [], []]],
    ],
)
def test_other_replies_are_malformed(document: object) -> None:
    with pytest.raises(MalformedEnvelope):
        unpack_answers(json.dumps(document).encode(), as_tuple)


def test_what_is_no_json_is_malformed() -> None:
    for unpack in (unpack_heartbeats, partial(unpack_answers, build=as_tuple)):
        with pytest.raises(MalformedEnvelope):
            unpack(b"\xff[")
