"""A stream's repeated bytes are not read again, and new ones are."""

from __future__ import annotations

import pytest

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import HeartbeatMany, MemberHeartbeat
from rota.v1.coordinator_pb2 import HeartbeatManyRequest, JoinGroupRequest, SessionRequest
from rota.wire.heartbeats import (
    MAX_REMEMBERED_BYTES,
    MAX_SIZE_REMEMBERED,
    SIZE_OF_A_MEMBER,
    HeartbeatReader,
    are_heartbeats,
    write_many,
)

LIMITS = Limits(group_max_size=3)


def said(*requests: HeartbeatMany) -> HeartbeatManyRequest:
    return HeartbeatManyRequest.FromString(write_many(requests).SerializeToString())


def a_message(call: int, *requests: HeartbeatMany) -> bytes:
    return SessionRequest(call=call, heartbeat=write_many(requests)).SerializeToString()


def a_reader_of(data: bytes, limits: Limits = LIMITS) -> tuple[HeartbeatReader, list[HeartbeatMany]]:
    """It remembers the message, as far as it may."""
    reader = HeartbeatReader(limits)
    requests = reader.read(SessionRequest.FromString(data).heartbeat)
    reader.remember(data)
    return reader, requests


def a_group(name: str, generation_id: int = 1, *members: str) -> HeartbeatMany:
    beats = tuple(MemberHeartbeat(member, generation_id) for member in members or ("m1", "m2"))
    return HeartbeatMany("default", name, beats)


def test_a_group_that_says_the_same_again_is_not_read_again() -> None:
    reader = HeartbeatReader(LIMITS)
    first = reader.read(said(a_group("g"), a_group("h")))

    again = reader.read(said(a_group("h"), a_group("g")))

    assert again == [a_group("h"), a_group("g")]
    assert [id(each) for each in again] == [id(first[1]), id(first[0])]


@pytest.mark.parametrize("changed", [a_group("g", 2), a_group("g", 1, "m1"), a_group("g", 1, "m2", "m1")])
def test_whatever_differs_is_read(changed: HeartbeatMany) -> None:
    reader = HeartbeatReader(LIMITS)
    reader.read(said(a_group("g")))

    assert reader.read(said(changed)) == [changed]
    assert reader.read(said(a_group("g"))) == [a_group("g")]


def test_what_is_wrong_is_refused_every_time() -> None:
    reader = HeartbeatReader(LIMITS)
    for wrong in (a_group("not a group"), a_group("g", -2), a_group("g", 1, *"abcd")):
        for _ in range(2):
            with pytest.raises(RejectedRequest):
                reader.read(said(wrong))


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(RejectedRequest, match="groups must have at most 3"):
        HeartbeatReader(LIMITS).read(said(*(a_group(f"g{n}") for n in range(4))))


@pytest.mark.parametrize("call", [1, 127, 128, 300, 2**28 - 1])
def test_a_message_that_says_the_same_again_is_not_parsed(call: int) -> None:
    reader, requests = a_reader_of(a_message(7, a_group("g"), a_group("h")))

    repeated = reader.repeated(a_message(call, a_group("g"), a_group("h")))

    assert repeated is not None
    assert repeated[0] == call
    assert repeated[1] is requests


@pytest.mark.parametrize(
    "other",
    [
        a_message(7, a_group("g", 2)),
        a_message(7, a_group("g"), a_group("h")),
        a_message(2**28, a_group("g")),
        a_message(0, a_group("g")),
        a_message(-1, a_group("g")),
        a_message(7, a_group("g")) + SessionRequest(call=8).SerializeToString(),
        a_message(7, a_group("g")) + SessionRequest(cancel=8).SerializeToString(),
        SessionRequest(cancel=8).SerializeToString() + a_message(7, a_group("g")),
        SessionRequest(call=8).SerializeToString() + a_message(7, a_group("g")),
        SessionRequest(batch=[SessionRequest.FromString(a_message(7, a_group("g")))]).SerializeToString(),
        a_message(7, a_group("g"))[:-1],
        b"",
    ],
)
def test_any_other_message_is_parsed(other: bytes) -> None:
    reader, _ = a_reader_of(a_message(7, a_group("g")))

    assert reader.repeated(other) is None


@pytest.mark.parametrize(
    "message",
    [
        a_message(7, a_group("g")) + SessionRequest(call=8).SerializeToString(),
        a_message(7, a_group("g")) + SessionRequest(heartbeat=write_many([a_group("h")])).SerializeToString(),
        SessionRequest(heartbeat=write_many([a_group("g")]), call=7).SerializeToString()[2:],
        SessionRequest(batch=[SessionRequest.FromString(a_message(7, a_group("g")))]).SerializeToString(),
    ],
)
def test_a_message_that_says_more_is_not_remembered(message: bytes) -> None:
    reader, _ = a_reader_of(message)

    assert reader.repeated(message) is None


def test_a_message_is_remembered_after_it_was_read_alone() -> None:
    data = a_message(7, a_group("g"))
    reader, requests = a_reader_of(data)
    with pytest.raises(RejectedRequest):
        reader.read(said(a_group("not a group")))

    reader.remember(a_message(7, a_group("not a group")))

    assert reader.repeated(data) == (7, requests)
    assert reader.repeated(a_message(7, a_group("not a group"))) is None


def test_a_large_message_is_not_remembered() -> None:
    members = [f"m{number}-{'x' * 200}" for number in range(MAX_REMEMBERED_BYTES // 200)]
    data = a_message(7, a_group("g", 1, *members))

    reader, _ = a_reader_of(data, Limits(group_max_size=len(members)))

    assert reader.repeated(data) is None


def test_a_message_has_heartbeats_alone_or_is_like_others() -> None:
    beats, joins = a_message(7, a_group("g")), SessionRequest(call=7, join=JoinGroupRequest(group_id="g"))

    assert are_heartbeats(beats)
    assert not are_heartbeats(joins.SerializeToString())
    assert not are_heartbeats(SessionRequest(batch=[joins]).SerializeToString())
    assert not are_heartbeats(beats + joins.SerializeToString())
    assert not are_heartbeats(beats[:-1])
    assert not are_heartbeats(b"")


def test_what_is_remembered_of_other_groups_is_bounded() -> None:
    members = [f"m{number}" for number in range(10_000)]
    limits = Limits()
    size = len(a_message(7, a_group("g", 1, *members))) + SIZE_OF_A_MEMBER * len(members)
    data = a_message(7, a_group("first", 1, *members))
    reader, first = a_reader_of(data, limits)

    for number in range(1 + MAX_SIZE_REMEMBERED // size):
        reader.read(said(a_group(f"g{number}", 1, *members)))
    again = reader.read(said(a_group("first", 1, *members)))

    assert again == first
    assert again[0] is not first[0]


def test_members_that_come_and_go_are_counted_once() -> None:
    reader = HeartbeatReader(LIMITS)
    for number in range(1_000):
        reader.read(said(a_group("g", number), a_group("h")))

    assert reader._size < 1_000
