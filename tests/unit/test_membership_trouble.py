"""What a member makes of answers that serve nothing: it notifies its program of the cause, and paces itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from rota.core.membership import Event, Failed, Reachable, Rejected, State, Unreachable
from rota.protocol.defaults import REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    SyncGroup,
    SyncReply,
)
from rota.protocol.texts import ERROR_MAX_CHARS, REASON_MAX_CHARS
from tests.unit.membership_bench import (
    BEATING,
    MEMBER_ID_REQUIRED,
    SESSION_MS,
    SETTINGS,
    Bench,
    a_joined_leader,
    a_newcomer,
    a_newcomer_with_an_id,
    a_stable_follower,
    joined,
    synced,
)

REFUSED = "cannot connect to http://h:1: connection refused"


def failed(bench: Bench, cause: str = REFUSED, *, was_sent: bool = False) -> list[Event]:
    request = bench.sends()
    return bench.membership.on_failure(request, bench.sent_at_ms, bench.now_ms, 1.0, cause, was_sent=was_sent)


# --- trouble is published with its cause ------------------------------------------------------


def test_a_newcomer_without_a_server_is_notified_with_the_cause() -> None:
    bench = a_newcomer()
    assert failed(bench) == []
    since_ms = bench.now_ms
    assert bench.membership.alarm_ms == since_ms + 1_000
    assert bench.passes(999) == []
    assert bench.passes(1) == [Unreachable(since_ms, REFUSED)]
    assert bench.membership.trouble == REFUSED
    assert bench.membership.alarm_ms is None


def test_the_cause_is_that_of_the_last_call() -> None:
    bench = a_newcomer()
    failed(bench)
    bench.passes(1_000)
    assert failed(bench, "HTTP status 404") == []
    assert bench.membership.trouble == "HTTP status 404"


@pytest.mark.parametrize("code", [ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.THROTTLED])
def test_a_member_without_room_is_notified_and_goes_on(code: ErrorCode) -> None:
    bench = a_newcomer()
    bench.answered(JoinReply(code, "no room"))
    since_ms = bench.now_ms
    assert bench.passes(1_000) == [Rejected(since_ms, code, f"{code}: no room")]
    assert bench.membership.unreachable_since_ms is None
    assert bench.answered(MEMBER_ID_REQUIRED) == [Reachable()]
    assert bench.membership.trouble == ""


def test_a_full_server_ends_the_silence_and_begins_a_rejection() -> None:
    bench = a_newcomer()
    failed(bench)
    bench.passes(1_000)
    assert bench.answered(JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, "full")) == [Reachable()]
    [rejected] = bench.passes(1_000)
    assert isinstance(rejected, Rejected)


# --- answers of another protocol --------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [structs.replace(joined(), protocol_type="connect"), structs.replace(joined(), protocol_name="sticky")],
)
def test_a_join_answer_of_another_protocol_is_not_taken_up(wrong: JoinReply) -> None:
    bench = a_newcomer_with_an_id()
    bench.answered(wrong)
    assert bench.membership.state is State.UNJOINED
    assert bench.pause_ms() > 0
    [event] = bench.passes(1_000)
    assert isinstance(event, Unreachable)
    assert "connect" in event.cause or "sticky" in event.cause


@pytest.mark.parametrize(
    "wrong",
    [structs.replace(synced(), protocol_type="connect"), structs.replace(synced(), protocol_name="sticky")],
)
def test_a_sync_answer_of_another_protocol_is_not_taken_up(wrong: SyncReply) -> None:
    bench = a_newcomer_with_an_id()
    bench.answered(joined())
    bench.answered(wrong)
    assert bench.membership.assignment is None
    assert bench.membership.state is State.SYNCING


# --- texts and sizes --------------------------------------------------------------------------

LONG = "x" * 10_000


def test_reasons_are_cut_by_the_sender() -> None:
    bench = a_stable_follower()
    bench.membership.request_rejoin(bench.now_ms, LONG)
    bench.membership.rejoin(bench.now_ms)
    join = bench.sends()
    assert isinstance(join, JoinGroup)
    assert len(join.reason) == REASON_MAX_CHARS
    bench.membership.leave(bench.now_ms, LONG)
    leave = bench.sends()
    assert isinstance(leave, LeaveGroup)
    assert len(leave.members[0].reason) == REASON_MAX_CHARS


def test_errors_of_a_leader_are_cut_by_the_sender() -> None:
    bench = a_joined_leader()
    bench.membership.assignment_failed(1, LONG)
    sync = bench.sends()
    assert isinstance(sync, SyncGroup)
    assert sync.leader_error is not None
    assert len(sync.leader_error) == ERROR_MAX_CHARS


def test_text_that_no_transport_can_encode_is_replaced() -> None:
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "half a pair: \ud800")
    leave = bench.sends()
    assert isinstance(leave, LeaveGroup)
    assert leave.members[0].reason == "half a pair: ?"


@pytest.mark.parametrize("code", [ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.INVALID_REQUEST])
def test_impossible_assignments_fail_the_generation_only(
    code: ErrorCode,
) -> None:
    bench = a_joined_leader()
    bench.membership.assign(1, {"m-1": b"far too much"})
    bench.answered(SyncReply(code, "assignment must be at most 262144 bytes"))
    sync = bench.sends()
    assert isinstance(sync, SyncGroup)
    assert (sync.assignments, sync.leader_error) == ((), f"{code}: assignment must be at most 262144 bytes")
    [failure, *_] = bench.answered(SyncReply(code, "no errors either"))
    assert isinstance(failure, Failed)


# --- pace -------------------------------------------------------------------------------------


def test_a_join_answered_pending_at_once_is_not_sent_in_a_loop() -> None:
    bench = a_newcomer()
    began_ms, calls = bench.now_ms, 0
    while bench.now_ms < began_ms + 5_000:
        bench.answered(JoinReply(pending=True, member_id="m-1"), after_ms=1)
        calls += 1
    assert calls <= 27


def test_a_proxy_cannot_silence_a_newcomer_for_a_day() -> None:
    bench = a_newcomer()
    request = bench.sends()
    reply = JoinReply(ErrorCode.THROTTLED)
    bench.membership.on_reply(request, reply, bench.now_ms, bench.now_ms, 1.0, retry_after_ms=86_400_000)
    assert bench.pause_ms() == SESSION_MS


def test_a_proxy_cannot_stop_a_leave_from_being_repeated() -> None:
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "shutdown")
    request = bench.sends()
    reply = LeaveReply(ErrorCode.THROTTLED)

    bench.membership.on_reply(request, reply, bench.now_ms, bench.now_ms, 1.0, retry_after_ms=86_400_000)

    assert bench.pause_ms() == REQUEST_TIMEOUT_MS // 3


@pytest.mark.parametrize("interval_ms", [0, -1, SESSION_MS // 2 + 1])
def test_a_heartbeat_interval_leaves_time_for_a_second_heartbeat(interval_ms: int) -> None:
    with pytest.raises(ValueError, match="heartbeat interval"):
        replace(SETTINGS, heartbeat_ms=interval_ms)


def test_the_heartbeat_interval_can_be_set() -> None:
    bench = a_stable_follower(replace(SETTINGS, heartbeat_ms=500))
    request = bench.sends()
    assert isinstance(request, Heartbeat)
    assert request.wait_ms == 500
    bench.answered(BEATING, after_ms=10)
    assert bench.pause_ms() == 490


# --- beside the calls -------------------------------------------------------------------------


def test_a_leader_whose_assign_blocks_is_kept_alive_by_a_thread() -> None:
    bench = a_joined_leader()
    assert bench.membership.state is State.LEADING
    assert bench.membership.overdue_heartbeat(bench.now_ms) is None
    bench.now_ms += SESSION_MS // 2
    assert isinstance(bench.membership.overdue_heartbeat(bench.now_ms), Heartbeat)


def test_a_member_may_step_aside_silently_as_static_members_do() -> None:
    bench = a_stable_follower()
    bench.membership.step_aside(bench.now_ms, "no progress", silently=True)
    assert (bench.membership.state, bench.membership.next_request(bench.now_ms)) == (State.AWAY, None)
    bench.membership.come_back(bench.now_ms)
    join = bench.sends()
    assert isinstance(join, JoinGroup)
    assert join.member_id == ""


def test_a_heartbeat_that_was_rejected_for_load_costs_no_share() -> None:
    bench = a_stable_follower()
    bench.answered(HeartbeatReply(ErrorCode.THROTTLED, "busy"))
    assert bench.membership.holds(bench.now_ms)


# --- answers that are overdue -----------------------------------------------------------------


def test_an_overdue_answer_is_published_before_the_call_fails() -> None:
    bench = a_newcomer()
    request = bench.begins()
    since_ms = bench.now_ms
    assert bench.membership.alarm_ms == since_ms + 1_000
    assert bench.passes(1_000) == [Unreachable(since_ms, "the coordinator does not answer")]
    bench.membership.ended(request)
    assert bench.answered(MEMBER_ID_REQUIRED) == [Reachable()]


def test_a_parked_call_is_overdue_only_after_its_wait() -> None:
    bench = a_stable_follower()
    request = bench.sends()
    assert isinstance(request, Heartbeat)
    bench.membership.sent(request, bench.now_ms)
    assert request.wait_ms
    assert bench.passes(request.wait_ms + 999) == []
    [event] = bench.passes(1)
    assert isinstance(event, Unreachable)


def test_a_call_that_has_ended_is_never_overdue() -> None:
    bench = a_newcomer()
    request = bench.begins()
    bench.membership.ended(request)
    assert bench.passes(60_000) == []


def test_a_blocked_program_reads_all_input_before_it_complains() -> None:
    bench = a_newcomer()
    bench.begins()
    assert bench.passes(5_000) == []
    assert bench.passes(999) == []
    assert bench.passes(1) != []


@pytest.mark.parametrize(("late_ms", "is_published"), [(200, True), (201, False)])
def test_a_program_that_wakes_late_reads_before_it_publishes(late_ms: int, is_published: bool) -> None:
    bench = a_newcomer()
    bench.begins()

    assert bool(bench.passes(SETTINGS.notice_ms + late_ms)) is is_published


def test_the_join_of_a_known_member_is_overdue_after_its_wait() -> None:
    bench = a_newcomer()
    new = bench.begins()
    assert bench.membership.alarm_ms == bench.now_ms + SETTINGS.notice_ms, "an id is given at once"
    bench.membership.ended(new)
    assert isinstance(new, JoinGroup)
    known = structs.replace(new, member_id="m-1")
    bench.membership.sent(known, bench.now_ms)

    assert bench.membership.alarm_ms == bench.now_ms + SETTINGS.poll_ms + SETTINGS.notice_ms
