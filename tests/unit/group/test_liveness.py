"""Heartbeats, sessions, leaving: which members are alive, and the end of the others (protocol.md §3, §5, §8)."""

from __future__ import annotations

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import HeartbeatMany, MemberHeartbeat
from tests.unit.group.driver import (
    KEY,
    SESSION_MS,
    a_group_in_a_join_phase,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_shard,
)


def test_sessions_that_begin_together_have_their_own_deadlines() -> None:
    core = an_empty_shard()
    timeouts_ms = {"m0": 10_000, "m1": 10_000, "m2": 20_000, "m3": 10_000}
    for number, (member_id, session_ms) in enumerate(timeouts_ms.items()):
        core.send(a_join(new=member_id, instance=f"i{number}", session_ms=session_ms))
    core.let_the_join_phase_end()

    def left_ms() -> dict[str, int]:
        return {member_id: (core.deadline_ms(member_id) or 0) - core.now_ms for member_id in timeouts_ms}

    assert left_ms() == timeouts_ms
    core.advance(1_000)
    core.ask(HeartbeatMany(*KEY, tuple(MemberHeartbeat(member_id, 1) for member_id in timeouts_ms)))

    assert left_ms() == timeouts_ms
    assert core.deadline_ms("m0") is core.deadline_ms("m1"), "it is in memory once"


def test_heartbeats_set_no_timer_while_one_is_set() -> None:
    core = a_stable_group(members=1)

    for later_ms in (0, 1_000):
        core.advance(later_ms)
        assert core.shard.handle(a_heartbeat("m0", 1), 1_000, core.now_ms).timers == []


def test_heartbeats_together_pass_over_a_member_that_waits() -> None:
    core = a_group_in_a_join_phase(members=2)
    core.advance(1_000)

    core.ask(HeartbeatMany(*KEY, (MemberHeartbeat("m1", 1), MemberHeartbeat("m0", 1))))

    assert (core.deadline_ms("m1"), core.deadline_ms("m0")) == (None, core.now_ms + SESSION_MS)


def test_heartbeat_answered_with_rejoin_renews_the_session_too() -> None:
    core = a_group_in_a_join_phase(members=2)
    core.advance(SESSION_MS - 1)

    reply = core.ask(a_heartbeat("m0", 1))

    assert reply.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.deadline_ms("m0") == core.now_ms + SESSION_MS


def test_join_and_sync_that_are_answered_at_once_do_not_renew_it() -> None:
    core = a_stable_group(members=2)
    deadline_ms = core.deadline_ms("m1")
    core.advance(1_000)

    core.ask(a_join("m1"))
    core.ask(a_sync("m1", 1))

    assert core.deadline_ms("m1") == deadline_ms


def test_parked_heartbeat_is_answered_the_moment_the_group_moves() -> None:
    core = a_stable_group(members=2)
    call = core.send(a_heartbeat("m0", 1, wait_ms=3_000))
    assert core.is_parked(call)

    core.ask(a_leave("m1"))

    assert core.answer(call).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.answer(call).detail == "m1 left"


def test_a_parked_heartbeats_member_expires_if_it_stays_away() -> None:
    core = a_stable_group(members=1)
    call = core.send(a_heartbeat("m0", 1, wait_ms=3_000))

    core.hang_up(call)
    core.advance(SESSION_MS)

    assert core.group.state == "Empty"


def test_a_parked_heartbeat_renews_when_its_time_is_over() -> None:
    core = a_stable_group(members=1)
    call = core.send(a_heartbeat("m0", 1, wait_ms=3_000))
    core.advance(3_000)

    core.wait_is_over(call)

    assert (core.answer(call).error, core.answer(call).generation_id) == (ErrorCode.NONE, 1)
    assert core.answer(call).waited_ms == 3_000
    assert core.deadline_ms("m0") == core.now_ms + SESSION_MS


def test_parked_time_counts_from_the_last_renewal() -> None:
    core = a_stable_group(members=1)
    call = core.send(a_heartbeat("m0", 1, wait_ms=3_000))
    core.advance(1_000)
    core.ask(a_heartbeat("m0", 1))
    core.advance(2_000)

    core.wait_is_over(call)

    assert core.answer(call).waited_ms == 2_000


def test_later_heartbeat_takes_the_place_of_the_parked_one() -> None:
    core = a_stable_group(members=1)
    first = core.send(a_heartbeat("m0", 1, wait_ms=3_000))

    second = core.send(a_heartbeat("m0", 1, wait_ms=3_000))

    assert (core.answer(first).error, core.answer(first).generation_id) == (ErrorCode.NONE, 1)
    assert core.is_parked(second)


def test_all_leaves_in_the_initial_delay_end_in_empty() -> None:
    core = a_group_in_its_initial_delay(members=1)

    core.ask(a_leave("m0"))
    core.advance(1_000)

    assert (core.group.state, core.generation_id) == ("Empty", 1)


def test_removal_by_an_administrator_is_reported_as_such() -> None:
    core = a_stable_group(members=2)

    core.ask(a_leave("m1", by_admin=True))

    assert "member_removed" in core.kinds()
    assert core.group.rebalance_reason == "m1 was removed"
