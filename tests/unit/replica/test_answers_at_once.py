"""Heartbeats and reads that a shard answers at once: without a wait, a timer or a write."""

from __future__ import annotations

import pytest

from rota.core.replica.owned_shard import Ready
from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import GetLeader, HeartbeatMany, MemberHeartbeat, Request, VerifyFence
from tests.unit.group.driver import KEY, SESSION_MS, a_commit, a_heartbeat
from tests.unit.replica.shards import (
    BEAT,
    EPOCH,
    LEASE_ENDS,
    a_shard_with_a_member,
    at,
    commit,
    decide,
)

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- heartbeats that do not wait ----------------------------------------------------------------------------


@pytest.mark.parametrize("beat", [BEAT, HeartbeatMany(*KEY, (MemberHeartbeat("m", 1, "i"),))])
def test_a_heartbeat_is_answered_at_once_where_all_is_durable(beat: Request) -> None:
    owned = a_shard_with_a_member()

    answer = owned.try_heartbeat(3, beat, at(300))  # type: ignore[arg-type]

    assert isinstance(answer, Answer)
    assert (answer.reply.error, answer.revision, answer.epoch) == (ErrorCode.NONE, owned.seq, EPOCH)
    assert owned.waiting == 0
    member = owned.shard.groups[KEY].members["m"]
    assert member.session_deadline_ms == at(300).wall_ms + SESSION_MS


def test_a_heartbeat_is_left_to_submit_unless_all_is_durable() -> None:
    owned = a_shard_with_a_member()
    decide(owned, 3, a_commit("m", 1), 300)
    assert owned.try_heartbeat(4, BEAT, at(300)) is None

    commit(owned, 300)

    assert isinstance(owned.try_heartbeat(4, BEAT, at(300)), Answer)


def test_a_heartbeat_is_left_to_submit_once_closed_or_expired() -> None:
    owned = a_shard_with_a_member()
    assert owned.try_heartbeat(3, BEAT, LEASE_ENDS) is None
    owned.close("it moves", at(300))
    commit(owned, 300)

    assert owned.try_heartbeat(4, BEAT, at(300)) is None


def test_heartbeats_of_different_members_get_their_own_replies() -> None:
    owned = a_shard_with_a_member()
    unknown = a_heartbeat("x", 1)

    answers = [owned.try_heartbeat(number, beat, at(300)) for number, beat in enumerate([BEAT, unknown, BEAT])]

    errors = [answer.reply.error for answer in answers if isinstance(answer, Answer)]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]


def test_a_heartbeat_sets_a_timer_where_the_clock_was_set_back() -> None:
    """The session ends before the timer that there is."""
    owned = a_shard_with_a_member()
    earlier = at(300)._replace(wall_ms=at(0).wall_ms - 60_000)

    ready = owned.try_heartbeat(3, BEAT, earlier)

    assert isinstance(ready, Ready)
    assert [timer.at_ms for timer in ready.timers] == [earlier.wall_ms + SESSION_MS]
    assert [number for number, _ in ready.replies] == [3]


def test_a_heartbeat_that_parks_waits_for_its_reply() -> None:
    owned = a_shard_with_a_member()

    ready = owned.try_heartbeat(3, a_heartbeat("m", 1, wait_ms=500, instance="i"), at(300))

    assert isinstance(ready, Ready)
    assert (list(ready.replies), 3 in owned._waiting) == ([], True)


# --- reads that do not wait ---------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [GetLeader(*KEY), VerifyFence(*KEY, 1, "m")])
def test_a_read_is_answered_at_once_only_where_all_is_durable(read: GetLeader | VerifyFence) -> None:
    owned = a_shard_with_a_member()
    at_once = owned.try_read(3, read, at(300))
    asked = owned.submit(4, read, at(300))
    decide(owned, 5, a_commit("m", 1), 300)
    too_early = owned.try_read(6, read, at(300))
    commit(owned, 300)

    assert at_once is not None
    assert list(asked.replies) == [(4, at_once)]
    assert too_early is None
    assert owned.try_read(7, read, at(300)) is not None
    assert owned.try_read(8, read, LEASE_ENDS) is None
    assert owned.waiting == 0
