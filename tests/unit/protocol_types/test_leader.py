"""The bytes of the `leader` type."""

from __future__ import annotations

import pytest

from rota.types import MalformedMetadata, readable_assignment, readable_metadata
from rota.types.leader import Candidate, Election, decode_candidate, decode_election, encode_candidate, encode_election


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
    assert readable_metadata("leader", b'{"endpoint":"http://a"}') == {"endpoint": "http://a", "priority": 0}
    assert readable_assignment("leader", encode_election(Election("m", 3))) == {
        "leader_id": "m",
        "token": 3,
        "endpoint": "",
    }
