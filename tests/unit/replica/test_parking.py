"""How long a call may stay parked at its shard."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from rota.core.replica.owned_shard import wait_ms
from rota.protocol.limits import MAX_WAIT_MS
from rota.protocol.messages import JoinGroup, SyncGroup
from tests.unit.group.driver import SESSION_MS, a_commit, a_heartbeat, a_join, a_stable_group, a_sync

A_THIRD_MS = SESSION_MS // 3


@pytest.mark.parametrize("request_", [a_join("m0"), a_sync("m0", 1)])
@pytest.mark.parametrize(("asked_ms", "parked_ms"), [(0, 0), (700, 700), (MAX_WAIT_MS + 1, MAX_WAIT_MS)])
def test_a_join_and_a_sync_wait_for_as_long_as_they_ask(
    request_: JoinGroup | SyncGroup, asked_ms: int, parked_ms: int
) -> None:
    shard = a_stable_group().shard

    assert wait_ms(replace(request_, wait_ms=asked_ms), shard) == parked_ms


@pytest.mark.parametrize(
    ("asked_ms", "parked_ms"), [(0, 0), (700, 700), (A_THIRD_MS, A_THIRD_MS), (A_THIRD_MS + 1, A_THIRD_MS)]
)
def test_a_heartbeat_waits_for_at_most_a_third_of_the_session(asked_ms: int, parked_ms: int) -> None:
    assert wait_ms(a_heartbeat("m0", 1, wait_ms=asked_ms), a_stable_group().shard) == parked_ms


def test_a_heartbeat_of_a_long_session_waits_for_the_bound() -> None:
    core = a_stable_group()
    member = core.group.members["m0"]
    member.image = dataclasses.replace(member.image, session_timeout_ms=4 * MAX_WAIT_MS)

    assert wait_ms(a_heartbeat("m0", 1, wait_ms=2 * MAX_WAIT_MS), core.shard) == MAX_WAIT_MS


def test_a_heartbeat_of_no_member_does_not_wait() -> None:
    assert wait_ms(a_heartbeat("stranger", 1, wait_ms=700), a_stable_group().shard) == 0


def test_a_call_that_never_parks_has_the_servers_bound() -> None:
    assert wait_ms(a_commit("m0", 1), a_stable_group().shard) == MAX_WAIT_MS
