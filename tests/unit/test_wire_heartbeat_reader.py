"""A stream's repeated bytes are not read again, and new ones are."""

from __future__ import annotations

import pytest

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import HeartbeatMany, MemberHeartbeat
from rota.v1.coordinator_pb2 import HeartbeatManyRequest
from rota.wire.heartbeats import HeartbeatReader, write_many

LIMITS = Limits(group_max_size=3)


def said(*requests: HeartbeatMany) -> HeartbeatManyRequest:
    return HeartbeatManyRequest.FromString(write_many(requests).SerializeToString())


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
