"""The bytes of the `leader` type."""

from __future__ import annotations

from typing import Any

import pytest

from rota.core.types import JoinedWith, MalformedMetadata, readable_assignment, readable_metadata
from rota.core.types.leader import (
    Candidate,
    Election,
    challengers,
    decode_candidate,
    decode_election,
    elect,
    encode_candidate,
    encode_election,
)
from rota.protocol.limits import MAX_PREEMPT_AFTER_MS


def test_the_bytes_are_json_that_a_shell_script_can_read() -> None:
    assert encode_candidate(Candidate("http://a", 2)) == b'{"endpoint":"http://a","priority":2}'
    assert encode_election(Election("m0", 7, "http://a")) == b'{"endpoint":"http://a","leader_id":"m0","token":7}'
    assert decode_candidate(encode_candidate(Candidate("http://a", 2))) == Candidate("http://a", 2)
    assert decode_election(encode_election(Election("m0", 7))) == Election("m0", 7)


def test_a_candidate_may_say_whatever_it_likes_of_itself() -> None:
    assert (
        decode_candidate(b"") == decode_candidate(b"\x00opaque") == decode_candidate(b'{"endpoint":1}') == Candidate()
    )


@pytest.mark.parametrize("data", [b"", b"[]", b'{"leader_id":"m"}', b'{"leader_id":"m","token":"x"}'])
def test_what_is_no_election_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMetadata):
        decode_election(data)


def test_people_can_read_both() -> None:
    assert readable_metadata("leader", b'{"endpoint":"http://a"}') == {
        "endpoint": "http://a",
        "priority": 0,
        "preempt_after_ms": 30_000,
        "holding": None,
    }
    assert readable_assignment("leader", encode_election(Election("m", 3))) == {
        "leader_id": "m",
        "token": 3,
        "endpoint": "",
        "successor_id": "",
    }


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("null", None),
        ("0", 0),
        ("1500", 1_500),
        ("-1", 30_000),
        ("true", 30_000),
        ('"soon"', 30_000),
        ("1e3", 30_000),
        ("1" + "0" * 300, MAX_PREEMPT_AFTER_MS),
    ],
)
def test_a_time_that_is_none_counts_as_the_default(said: str, read: int | None) -> None:
    assert decode_candidate(f'{{"preempt_after_ms":{said}}}'.encode()).preempt_after_ms == read


def test_a_priority_that_is_no_whole_number_is_none() -> None:
    assert [decode_candidate(b'{"priority":%s}' % each).priority for each in (b"true", b'"9"', b"1.5", b"-3")] == [
        0,
        0,
        0,
        -3,
    ]


def candidate(member_id: str, priority: int = 0, *, asked: str = "", **said: Any) -> JoinedWith:
    said.setdefault("holding", False)
    former = encode_election(Election("m0", 1, successor_id=asked))
    return JoinedWith(member_id, None, encode_candidate(Candidate(priority=priority, **said)), former)


def test_the_first_of_the_highest_priority_is_elected() -> None:
    members = [candidate("m0", 1), candidate("m1", 5), candidate("m2", 5), candidate("m3", -1)]

    assert elect(members, "") == "m1"
    assert elect(members, "m2") == "m2"
    assert elect([candidate("m0"), JoinedWith("m1", None, b"\x00opaque"), candidate("m2")], "") == "m0"


@pytest.mark.parametrize("holding", [True, None])
def test_a_leader_whose_work_may_be_under_way_is_elected_again(holding: bool | None) -> None:
    assert elect([candidate("m0", holding=holding), candidate("m1", 9)], "m0") == "m0"


def test_a_leader_is_followed_by_the_candidate_it_was_asked_for() -> None:
    members = [candidate("m0", 1, asked="m1"), candidate("m1", 5), candidate("m2", 9)]

    assert elect(members, "m0") == "m1"
    assert elect([members[0], members[2]], "m0") == "m2"
    assert elect([candidate("m0", 1, asked="m1", holding=True), *members[1:]], "m0") == "m0"


def test_challengers_outrank_a_leader_that_can_hand_over() -> None:
    others = [candidate("m1", 5), candidate("m2", 9, preempt_after_ms=1), candidate("m3", 7, preempt_after_ms=None)]
    others.append(candidate("m4", 2))

    assert list(challengers([candidate("m0", 2), *others], "m0").items()) == [("m2", 1), ("m1", 30_000)]
    assert challengers([candidate("m0", 2, holding=None), *others], "m0") == {}
    assert challengers([candidate("m0", 2, asked="m1"), *others], "m0") == {}
