"""Heartbeats, sessions, leaving: which members are alive, and the end of the others (protocol.md §3, §5, §8)."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import HeartbeatMany, MemberHeartbeat
from tests.unit.group.driver import (
    DELAY_MS,
    KEY,
    LIMITS,
    SESSION_MS,
    a_commit,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_shard,
)


def test_a_silent_member_expires_exactly_at_its_sessions_end() -> None:
    core = a_stable_group(members=2)
    core.advance(1_000)
    core.ask(a_heartbeat("m0", 1))
    session_over_ms = core.deadline_ms("m1")
    assert session_over_ms is not None

    core.advance(session_over_ms - core.now_ms - 1)
    assert "m1" in core.group.members
    core.advance(1)

    assert list(core.group.members) == ["m0"]
    assert core.group.rebalance_reason == "member m1 expired: no heartbeat within its session timeout of 10000 ms"


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


def test_heartbeat_renews_a_session_of_a_millisecond() -> None:
    core = an_empty_shard(dataclasses.replace(LIMITS, min_session_timeout_ms=1))
    core.send(a_join(new="m0", instance="i0", session_ms=1))
    core.advance(DELAY_MS)

    core.ask(a_heartbeat("m0", 1))

    assert core.deadline_ms("m0") == core.now_ms + 1


def test_heartbeat_renews_the_session() -> None:
    core = a_stable_group(members=1)

    for _ in range(5):
        core.advance(SESSION_MS - 1)
        assert core.ask(a_heartbeat("m0", 1)).error is ErrorCode.NONE

    assert list(core.group.members) == ["m0"]


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


def test_accepted_commit_renews_the_session() -> None:
    core = a_stable_group(members=1)
    core.advance(SESSION_MS - 1)

    core.ask(a_commit("m0", 1))

    assert core.deadline_ms("m0") == core.now_ms + SESSION_MS


def test_join_and_sync_that_are_answered_at_once_do_not_renew_it() -> None:
    core = a_stable_group(members=2)
    deadline_ms = core.deadline_ms("m1")
    core.advance(1_000)

    core.ask(a_join("m1"))
    core.ask(a_sync("m1", 1))

    assert core.deadline_ms("m1") == deadline_ms


def test_heartbeat_while_the_assignment_is_awaited_is_fine() -> None:
    core = a_group_awaiting_its_assignment(members=2)

    reply = core.ask(a_heartbeat("m1", 1))

    assert (reply.error, reply.state) == (ErrorCode.NONE, "CompletingRebalance")


def test_heartbeat_of_another_generation_or_nobody_is_refused() -> None:
    core = a_stable_group(members=1)

    assert core.ask(a_heartbeat("m0", 0)).error is ErrorCode.ILLEGAL_GENERATION
    assert core.ask(a_heartbeat("m0", 2)).error is ErrorCode.ILLEGAL_GENERATION
    assert core.ask(a_heartbeat("stranger", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert core.ask(replace(a_heartbeat("m0", 1), group_id="other")).error is ErrorCode.UNKNOWN_MEMBER_ID


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


def test_leave_starts_the_rebalance_at_once() -> None:
    core = a_stable_group(members=3)

    reply = core.ask(a_leave("m1"))

    assert [member.error for member in reply.members] == [ErrorCode.NONE]
    assert (core.group.state, core.group.rebalance_by) == ("PreparingRebalance", "m1")


def test_batch_leave_triggers_one_rebalance_and_answers_for_each() -> None:
    core = a_stable_group(members=3)

    reply = core.ask(a_leave("m1", "stranger", "m2"))

    assert [member.error for member in reply.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert core.kinds().count("rebalance_started") == 2


def test_leaver_s_parked_join_is_answered_unknown() -> None:
    core = a_group_in_a_join_phase(members=2)
    (call,) = core.unanswered

    core.ask(a_leave("m1"))

    assert core.answer(call).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leave_of_a_pending_id_ends_its_wait_only() -> None:
    core = a_stable_group(members=1)
    core.ask(a_join(new="late"))
    call = core.send(a_join("m0"))

    core.ask(a_leave("late"))

    assert core.answer(call).generation_id == 2


def test_pending_id_of_a_stable_group_leaves_without_a_rebalance() -> None:
    core = a_stable_group(members=1)
    core.ask(a_join(new="late"))

    core.ask(a_leave("late"))

    assert core.group.state == "Stable"


def test_the_last_leave_empties_the_group_with_a_generation() -> None:
    core = a_stable_group(members=1)

    core.ask(a_leave("m0"))

    assert (core.group.state, core.generation_id) == ("Empty", 2)


def test_all_leaves_in_the_initial_delay_end_in_empty() -> None:
    core = a_group_in_its_initial_delay(members=1)

    core.ask(a_leave("m0"))
    core.advance(1_000)

    assert (core.group.state, core.generation_id) == ("Empty", 1)


def test_an_expiry_completes_a_join_phase_of_all_others() -> None:
    core = a_group_in_a_join_phase(members=2)
    (call,) = core.unanswered

    core.advance(SESSION_MS)

    assert core.answer(call).generation_id == 2
    assert core.leader_id == "m1"


def test_leave_of_an_unknown_group_is_answered_for_each_member() -> None:
    core = an_empty_shard()

    reply = core.ask(a_leave("m0", "m1"))

    assert reply.error is ErrorCode.NONE
    assert [(left.member_id, left.error) for left in reply.members] == [
        ("m0", ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert core.ask(replace(a_leave("m0"), group_id="")).error is ErrorCode.INVALID_GROUP_ID


def test_removal_by_an_administrator_is_reported_as_such() -> None:
    core = a_stable_group(members=2)

    core.ask(a_leave("m1", by_admin=True))

    assert "member_removed" in core.kinds()
    assert core.group.rebalance_reason == "m1 was removed"
