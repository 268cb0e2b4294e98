"""Questions and reports of other threads: heartbeats beside the shell, and whether the member may act now."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rota.core.membership import Lost, RebalanceStarted, State
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    PartitionResult,
    Protocol,
    SyncReply,
)
from tests.unit.membership_bench import (
    BEATING,
    MARGIN_MS,
    MEMBER_ID_REQUIRED,
    REBALANCING,
    SESSION_MS,
    Bench,
    a_joined_follower,
    a_joined_leader,
    a_newcomer,
    a_revoking_follower,
    a_stable_follower,
    joined,
)

BEAT = Heartbeat("default", "workers", "m-1", 1)


def past_its_deadline(bench: Bench) -> int:
    """A moment at which the member must not act, as far as it knows."""
    assert bench.membership.deadline_ms is not None
    return bench.membership.deadline_ms


# --- holds_with ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "holds"),
    [
        (BEATING, True),
        (REBALANCING, True),
        (HeartbeatReply(ErrorCode.ILLEGAL_GENERATION), False),
        (HeartbeatReply(ErrorCode.COORDINATOR_NOT_AVAILABLE), False),
    ],
)
def test_a_renewal_in_another_thread_counts_before_its_report(reply: HeartbeatReply, holds: bool) -> None:
    bench = a_stable_follower()
    over_ms = past_its_deadline(bench)

    assert bench.membership.holds_with(over_ms, BEAT, reply, over_ms - 100) is holds
    assert not bench.membership.holds(over_ms), "asking changes nothing"


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    bench = a_stable_follower()
    sent_ms = past_its_deadline(bench) - 100
    until_ms = sent_ms + SESSION_MS - MARGIN_MS

    assert bench.membership.holds_with(until_ms - 1, BEAT, BEATING, sent_ms)
    assert not bench.membership.holds_with(until_ms, BEAT, BEATING, sent_ms)


def test_a_rebalance_seen_by_a_thread_does_not_delay_the_rejoin() -> None:
    bench = a_stable_follower()
    rejoin_by_ms = bench.membership.revoke_by_ms
    assert rejoin_by_ms is not None
    sent_ms = rejoin_by_ms - 10

    assert bench.membership.holds_with(rejoin_by_ms, BEAT, BEATING, sent_ms)
    assert not bench.membership.holds_with(rejoin_by_ms, BEAT, REBALANCING, sent_ms)


@pytest.mark.parametrize("other", [replace(BEAT, generation_id=2), replace(BEAT, member_id="m-0")])
def test_a_renewal_of_another_member_does_not_count(other: Heartbeat) -> None:
    bench = a_stable_follower()
    over_ms = past_its_deadline(bench)

    assert not bench.membership.holds_with(over_ms, other, BEATING, over_ms)
    assert bench.membership.holds_with(over_ms - 1, other, BEATING, over_ms)


def test_a_member_without_a_share_holds_nothing() -> None:
    bench = a_joined_follower()

    assert not bench.membership.holds_with(bench.now_ms, BEAT, BEATING, bench.now_ms)


# --- answers to other senders --------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [BEATING, REBALANCING])
def test_a_reported_renewal_moves_the_deadline_and_nothing_else(reply: HeartbeatReply) -> None:
    bench = a_stable_follower()
    bench.membership.on_heartbeat_answer(BEAT, reply, bench.now_ms + 500)

    assert bench.membership.deadline_ms == bench.now_ms + 500 + SESSION_MS - MARGIN_MS
    assert bench.membership.state is State.STABLE


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (replace(BEAT, generation_id=0), BEATING),
        (BEAT, HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID)),
    ],
)
def test_a_reported_answer_that_renews_nothing_changes_nothing(request_: Heartbeat, reply: HeartbeatReply) -> None:
    bench = a_stable_follower()
    deadline_ms = bench.membership.deadline_ms
    bench.membership.on_heartbeat_answer(request_, reply, bench.now_ms + 500)

    assert (bench.membership.deadline_ms, bench.membership.state) == (deadline_ms, State.STABLE)


# --- wants -------------------------------------------------------------------------------------------------


def test_a_call_is_wanted_while_the_member_would_send_it() -> None:
    bench = a_stable_follower()
    request = bench.sends()
    assert isinstance(request, Heartbeat)

    assert bench.membership.wants(request, bench.now_ms)
    assert not bench.membership.wants(replace(request, generation_id=0), bench.now_ms)


def test_a_heartbeat_is_not_waited_for_once_the_member_leaves() -> None:
    bench = a_stable_follower()
    request = bench.sends()
    bench.membership.leave(bench.now_ms, "shutdown")

    assert not bench.membership.wants(request, bench.now_ms)


def test_no_call_is_waited_for_once_there_is_none_to_send() -> None:
    bench = a_newcomer()
    request = bench.sends()
    bench.membership.abandon()

    assert not bench.membership.wants(request, bench.now_ms)


# --- overdue heartbeats ---------------------------------------------------------------------------------------


def test_half_a_session_without_a_renewal_is_overdue() -> None:
    bench = a_stable_follower()
    assert bench.membership.deadline_ms is not None
    renewed_ms = bench.membership.deadline_ms + MARGIN_MS - SESSION_MS

    assert bench.membership.overdue_heartbeat(renewed_ms + SESSION_MS // 2 - 1) is None
    assert bench.membership.overdue_heartbeat(renewed_ms + SESSION_MS // 2) == replace(BEAT, wait_ms=0)


def test_a_newcomer_has_no_heartbeat_to_send() -> None:
    assert a_newcomer().membership.overdue_heartbeat(10**9) is None


# --- decisions of the shell ----------------------------------------------------------------------------------


def test_a_member_that_is_held_off_joins_when_it_may() -> None:
    bench = a_newcomer()
    bench.membership.hold_off(True)
    assert bench.membership.next_request(bench.now_ms) is None
    bench.membership.hold_off(False)

    assert isinstance(bench.sends(), JoinGroup)


def test_a_join_claims_a_lost_share_while_its_work_still_ends() -> None:
    claims, nothing = Protocol("range", b"owns t/0"), Protocol("range", b"owns nothing")
    bench = a_revoking_follower()
    bench.membership.rejoin(bench.now_ms, (claims,), holding=True)
    bench.begins()
    bench.answered(JoinReply(pending=True, member_id="m-1", generation_id=1))
    bench.membership.say((nothing,))
    bench.membership.hold_off(True)
    held_off = bench.sends()
    bench.membership.hold_off(False)
    after = bench.sends()

    assert isinstance(held_off, JoinGroup)
    assert isinstance(after, JoinGroup)
    assert (held_off.protocols, after.protocols) == ((claims,), (nothing,))


def test_what_a_member_says_of_itself_is_sent_with_the_next_join() -> None:
    bench = a_newcomer()
    bench.membership.say((Protocol("range", b"new"),))
    request = bench.sends()

    assert isinstance(request, JoinGroup)
    assert request.protocols == (Protocol("range", b"new"),)


def test_a_failure_to_assign_a_past_generation_is_ignored() -> None:
    bench = a_joined_leader()
    bench.membership.assignment_failed(0, "no topic")
    assert bench.membership.state is State.LEADING
    follower = a_stable_follower()
    follower.membership.assignment_failed(1, "no topic")

    assert follower.membership.state is State.STABLE


def test_a_member_that_leaves_does_not_join_again() -> None:
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "shutdown")

    assert bench.membership.request_rejoin(bench.now_ms, "new metadata") == []
    assert bench.membership.state is State.LEAVING


def test_a_member_that_has_ended_stays_so() -> None:
    bench = a_stable_follower()
    bench.membership.abandon()

    assert bench.membership.request_rejoin(bench.now_ms, "new metadata") == []
    assert bench.membership.leave(bench.now_ms, "again") == []
    assert bench.membership.abandon() == []
    bench.membership.step_aside(bench.now_ms, "again")
    bench.membership.come_back(bench.now_ms)
    assert (bench.membership.state, bench.membership.is_final) == (State.LEFT, True)


def test_a_newcomer_steps_aside_and_comes_back_without_a_call() -> None:
    bench = a_newcomer()
    assert bench.membership.step_aside(bench.now_ms, "not now") == []
    assert (bench.membership.state, bench.membership.is_away) == (State.AWAY, True)
    assert bench.membership.next_request(bench.now_ms) is None
    bench.membership.come_back(bench.now_ms)

    assert (bench.membership.state, bench.membership.is_away) == (State.UNJOINED, False)


def test_a_member_that_steps_aside_silently_sends_no_leave() -> None:
    bench = a_stable_follower()
    assert bench.membership.step_aside(bench.now_ms, "restart", silently=True) == []

    assert (bench.membership.state, bench.membership.assignment) == (State.AWAY, None)


def test_a_member_that_is_called_back_early_may_still_end() -> None:
    bench = a_stable_follower()
    bench.membership.step_aside(bench.now_ms, "not now")
    bench.membership.come_back(bench.now_ms)
    bench.membership.leave(bench.now_ms, "shutdown")
    for _ in range(3):
        bench.unanswered()

    assert bench.membership.state is State.LEFT


def test_a_member_that_leaves_for_good_does_not_step_aside() -> None:
    """It would join again, though its program has ended."""
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "its callback raised")
    bench.membership.step_aside(bench.now_ms, "withdrawn")
    bench.membership.come_back(bench.now_ms)
    for _ in range(3):
        bench.unanswered()

    assert bench.membership.state is State.LEFT


def test_each_time_aside_has_its_own_tries_to_leave() -> None:
    bench = a_stable_follower()
    for generation_id in (2, 3):
        bench.membership.step_aside(bench.now_ms, "not now")
        bench.unanswered()
        bench.unanswered()
        assert bench.membership.next_request(bench.now_ms) is not None
        bench.unanswered()
        assert bench.membership.state is State.AWAY
        bench.membership.come_back(bench.now_ms)
        bench.answered(MEMBER_ID_REQUIRED)
        bench.answered(joined(generation_id))


# --- answers ------------------------------------------------------------------------------------------------------


def a_commit(bench: Bench) -> CommitOffsets:
    return CommitOffsets("default", "workers", bench.membership.generation_id, (), bench.membership.member_id)


def test_a_commit_without_an_answer_is_not_the_members_to_repeat() -> None:
    bench = a_stable_follower()
    planned = bench.membership.next_request(bench.now_ms)
    bench.membership.on_failure(a_commit(bench), bench.now_ms, bench.now_ms, 1.0)

    assert bench.membership.next_request(bench.now_ms) == planned


def test_a_fenced_commit_ends_the_member_with_the_detail() -> None:
    bench = a_stable_follower()
    fenced = CommitReply(ErrorCode.FENCED_INSTANCE_ID, "another process has this instance id")
    lost, failed = bench.membership.on_reply(a_commit(bench), fenced, bench.now_ms, bench.now_ms, 1.0)

    assert lost == Lost(1, "FENCED_INSTANCE_ID: another process has this instance id", ErrorCode.FENCED_INSTANCE_ID)
    assert failed.detail == "another process has this instance id"  # type: ignore[union-attr]
    assert bench.membership.state is State.FENCED


@pytest.mark.parametrize("error", [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_a_refused_commit_is_the_commits_concern_alone(error: ErrorCode) -> None:
    bench = a_stable_follower()

    assert bench.membership.on_reply(a_commit(bench), CommitReply(error), bench.now_ms, bench.now_ms, 1.0) == []
    assert bench.membership.state is State.STABLE


def test_a_commit_of_which_no_partition_landed_renews_nothing() -> None:
    bench = a_stable_follower()
    deadline_ms = bench.membership.deadline_ms
    refused = CommitReply(partitions=(PartitionResult("t", 0, ErrorCode.OFFSET_METADATA_TOO_LARGE),))
    bench.membership.on_reply(a_commit(bench), refused, bench.now_ms + 50, bench.now_ms + 60, 1.0)

    assert bench.membership.deadline_ms == deadline_ms


def test_a_failed_assignment_is_published_and_revokes_the_share() -> None:
    bench = a_stable_follower()
    bench.answered(HeartbeatReply(generation_id=2, state="Stable"))
    failed, rebalance = bench.answered(SyncReply(ErrorCode.ASSIGNMENT_FAILED, "no topic"))

    assert failed.detail == "no topic"  # type: ignore[union-attr]
    assert rebalance == RebalanceStarted(2, "assignment failed")
    assert bench.membership.state is State.REVOKING


def test_a_revoking_member_heartbeats_after_an_interval() -> None:
    bench = a_revoking_follower()

    assert bench.pause_ms() == bench.membership.settings.heartbeat_interval_ms


def test_a_pending_answer_to_a_joined_member_keeps_it_joining() -> None:
    bench = a_newcomer()
    bench.answered(JoinReply(pending=True, member_id="m-1"))
    bench.answered(joined())

    assert bench.membership.deadline_ms is None, "nothing is held before the sync"
    assert bench.membership.state is State.SYNCING
