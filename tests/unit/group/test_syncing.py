"""Syncing: the leader assigns, the followers fetch (protocol.md §3, §8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rota.core.assignors import TopicPartition
from rota.core.types.consumer import Assignment, encode_assignment
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DescribeGroup, FreezeGroup
from tests.unit.group.driver import (
    KEY,
    SESSION_MS,
    Core,
    a_group_awaiting_its_assignment,
    a_heartbeat,
    a_join,
    a_stable_group,
    a_sync,
    an_empty_shard,
)


def test_follower_sync_is_parked_until_the_leader_syncs() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    follower = core.send(a_sync("m1", 1))
    assert core.is_parked(follower)

    core.send(a_sync("m0", 1, m0=b"a", m1=b"b"))

    assert core.answer(follower).assignment == b"b"
    assert core.group.state == "Stable"


def test_follower_s_assignments_are_ignored() -> None:
    core = a_group_awaiting_its_assignment(members=2)

    call = core.send(a_sync("m1", 1, m1=b"mine"))

    assert core.is_parked(call)
    assert core.group.state == "CompletingRebalance"


def test_leader_that_cannot_assign_fails_the_generation_for_all() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    follower = core.send(a_sync("m1", 1))

    leader = core.ask(replace(a_sync("m0", 1), leader_error="no topics"))

    assert leader.error is core.answer(follower).error is ErrorCode.ASSIGNMENT_FAILED
    assert core.answer(follower).detail == "no topics"
    assert core.group.state == "PreparingRebalance"


def test_a_leaders_error_fails_a_stable_generation_too() -> None:
    core = a_stable_group(members=2)
    waiting = core.send(a_heartbeat("m1", 1, wait_ms=5_000))

    leader = core.ask(replace(a_sync("m0", 1), leader_error="no topics"))

    assert (leader.error, leader.detail) == (ErrorCode.ASSIGNMENT_FAILED, "no topics")
    assert core.answer(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert (core.group.state, core.group.rebalance_cause) == ("PreparingRebalance", "assignment_failed")
    assert core.group.rebalance_reason == "leader m0 could not assign: no topics"
    assert core.kinds()[-2:] == ["assignment_failed", "rebalance_started"]
    core.restart()
    assert core.group.state == "PreparingRebalance"


def test_a_leaders_error_waits_for_the_end_of_a_freeze() -> None:
    core = a_stable_group(members=2)
    core.ask(FreezeGroup(*KEY, 500))

    leader = core.ask(replace(a_sync("m0", 1), leader_error="no topics"))
    frozen = core.group.state
    core.advance(500)

    assert (leader.error, frozen) == (ErrorCode.ASSIGNMENT_FAILED, "Stable")
    assert (core.group.state, core.group.rebalance_cause) == ("PreparingRebalance", "assignment_failed")


@pytest.mark.parametrize("make", [a_stable_group, a_group_awaiting_its_assignment])
def test_a_followers_error_is_refused(make: Callable[..., Core]) -> None:
    core = make(members=2)
    state = core.group.state

    reply = core.ask(replace(a_sync("m1", 1), leader_error="no topics"))

    assert (reply.error, reply.detail) == (ErrorCode.INVALID_REQUEST, "only the leader may send an error")
    assert (core.group.state, core.generation_id) == (state, 1)


def test_an_error_of_another_generation_or_phase_is_refused() -> None:
    core = a_stable_group(members=2)
    failed = replace(a_sync("m0", 1), leader_error="no topics")

    assert core.ask(replace(failed, generation_id=7)).error is ErrorCode.ILLEGAL_GENERATION
    core.ask(failed)
    assert core.ask(failed).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_zombie_is_reported_once_for_each_operation() -> None:
    core = a_group_awaiting_its_assignment(members=2)

    for _ in range(3):
        core.ask(a_sync("m1", 0))

    assert core.kinds().count("request_fenced") == 1
    assert core.last("request_fenced").operation == "sync"


def test_parked_sync_outlives_the_session_and_starts_it_afresh() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    core.send(a_sync("m1", 1))
    core.advance(SESSION_MS - 1)
    core.ask(a_heartbeat("m0", 1))
    core.advance(5_000)

    core.ask(a_sync("m0", 1, m1=b"b"))

    assert core.deadline_ms("m1") == core.now_ms + SESSION_MS


def test_a_parked_sync_is_pending_when_its_time_is_over() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    call = core.send(a_sync("m1", 1))

    core.wait_is_over(call)

    assert core.answer(call).pending
    assert core.deadline_ms("m1") == core.now_ms + SESSION_MS


def test_later_sync_takes_the_place_of_the_parked_one() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    first = core.send(a_sync("m1", 1))

    second = core.send(a_sync("m1", 1))

    assert core.answer(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.is_parked(second)


def test_resync_raises_the_generation_without_a_join_phase() -> None:
    core = a_stable_group(members=2)
    waiting = core.send(a_heartbeat("m1", 1, wait_ms=5_000))

    leader = core.ask(a_sync("m0", 1, m0=b"more", m1=b"m1"))

    assert (leader.generation_id, leader.assignment) == (2, b"more")
    line, described = core.last("assignment_synced"), core.ask(DescribeGroup(*KEY))
    assert (line.cause, line.by) == ("resync", "m0")
    assert (described.rebalance_cause, described.rebalance_by) == ("resync", "m0")
    assert described.rebalance_reason == "the leader assigned anew"
    assert (core.answer(waiting).error, core.answer(waiting).generation_id) == (ErrorCode.NONE, 2)
    assert core.group.state == "Stable"


def test_a_leader_that_joined_again_moves_nothing_that_is_held() -> None:
    """It may take its second assignment for the first one, when another sync of it has arrived meanwhile."""
    core = a_group_awaiting_its_assignment(members=2)
    core.ask(a_join("m0"))
    core.ask(a_sync("m0", 1, m0=b"a", m1=b"b"))

    reply = core.ask(a_sync("m0", 1, m0=b"b", m1=b"a"))

    assert reply.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.group.state == "PreparingRebalance"
    assert core.group.rebalance_reason == "leader m0 joined again, and may not know of its first assignment"
    assert {m.member_id: m.assignment for m in core.group.members.values()} == {"m0": b"a", "m1": b"b"}


def test_a_new_owner_does_not_know_whether_the_leader_joined_again() -> None:
    core = a_stable_group(members=2)
    core.restart()

    assert core.ask(a_sync("m0", 1, m0=b"m0", m1=b"m1")).error is ErrorCode.NONE
    assert core.ask(a_sync("m0", 1, m0=b"m1", m1=b"m0")).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_s_resync_says_which_topics_have_changed() -> None:
    core = an_empty_shard()
    core.send(a_join(new="m0", instance="i", protocol_type="consumer"))
    core.let_the_join_phase_end()

    for generation_id, count in ((1, 2), (1, 5)):
        docs = tuple(TopicPartition("docs", number) for number in range(count))
        core.ask(a_sync("m0", generation_id, "i", m0=encode_assignment(Assignment(docs))))

    assert core.last("assignment_synced").reason == "the leader assigned anew: docs 2 → 5"


def test_a_resync_that_leaves_a_member_out_says_what_has_changed() -> None:
    core = an_empty_shard()
    for number in range(2):
        core.send(a_join(new=f"m{number}", instance=f"i{number}", protocol_type="consumer"))
    core.let_the_join_phase_end()
    docs = [encode_assignment(Assignment((TopicPartition("docs", number),))) for number in range(2)]
    core.ask(a_sync("m0", 1, "i0", m0=docs[0], m1=docs[1]))

    core.ask(a_sync("m0", 1, "i0", m0=docs[1]))

    assert core.last("assignment_synced").reason == "the leader assigned anew: docs 2 → 1"


def test_a_member_of_before_a_resync_heartbeats_without_commits() -> None:
    core = a_stable_group(members=2)
    core.ask(a_sync("m0", 1, m0=b"more"))

    beat = core.ask(a_heartbeat("m1", 1))

    assert (beat.error, beat.generation_id) == (ErrorCode.NONE, 2)
    assert core.ask(a_sync("m1", 1)).error is ErrorCode.ILLEGAL_GENERATION


def test_leader_s_retry_of_the_same_sync_is_no_resync() -> None:
    core = a_stable_group(members=2)

    core.ask(a_sync("m0", 1, m0=b"m0", m1=b"m1"))

    assert core.generation_id == 1
