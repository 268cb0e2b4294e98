"""A sidecar never shows its knowledge beyond its expiry, and notifies of changes in order."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.agents.sidecar.settings import instance_id_of
from rota.agents.sidecar.status import KNOWING, Change, Changes, State, Status, environment
from rota.protocol.fencing_token import fencing_token

LEADER = Status("billing", State.LEADER, "pod-0", True, "pod-0-x", fencing_token(7))


@given(state=st.sampled_from(State), left_ms=st.none() | st.integers(-10_000, 10_000))
def test_nothing_is_answered_beyond_its_expiry(state: State, left_ms: int | None) -> None:
    status = Status("billing", state, "pod-0", True, "pod-0-x", fencing_token(7)).unless_over(left_ms)

    assert (status.state in KNOWING) == (state in KNOWING and left_ms is not None and left_ms > 0)
    if state in KNOWING and status.state not in KNOWING:
        assert (status.name, status.is_self, status.token, status.expires_in_ms) == ("", False, -1, 0)


def test_a_program_learns_the_token_only_where_something_is_held() -> None:
    follower = Status("billing", State.FOLLOWER, "pod-1", False, "pod-0-x", 8)

    assert environment(LEADER, "elected")["ROTA_FENCING_TOKEN"] == str(fencing_token(7))
    assert environment(follower, "following")["ROTA_FENCING_TOKEN"] == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"POD_NAME": "web-0"}, "web-0"),
        ({"POD_NAME": "web-0", "ROTA_GROUP_INSTANCE_ID": "mine"}, "mine"),
        ({"POD_NAME": "not a name"}, None),
        ({}, None),
    ],
)
def test_a_static_id_comes_from_the_downward_api(given: dict[str, str], expected: str | None) -> None:
    assert instance_id_of(given) == expected


async def seen(changes: Changes, last_event_id: str, count: int) -> list[Change]:
    found: list[Change] = []
    async with asyncio.timeout(60):
        async for change in changes.listen(last_event_id):
            found.append(change)
            if len(found) == count:
                break
    return found


async def test_a_returning_reader_gets_missed_events_or_the_present() -> None:
    changes = Changes("boot")
    first, second, third = (changes.publish(kind, LEADER, 0) for kind in ("elected", "generation", "revoked"))

    assert await seen(changes, first.event_id, 2) == [second, third]
    assert await seen(changes, "", 1) == [third]
    assert await seen(changes, "another-1", 1) == [third]


async def test_who_listens_comes_to_its_end_with_the_sidecar() -> None:
    changes = Changes("boot")
    changes.end()

    async with asyncio.timeout(60):
        assert [change async for change in changes.listen()] == []
