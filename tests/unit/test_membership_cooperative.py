"""The client core of a cooperative member (KIP-429): it holds on while it joins, and still never too long."""

from __future__ import annotations

from rota.core.membership import Assigned, JoinedAsLeader, Lost, RebalanceStarted, State
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    Protocol,
    SyncGroup,
    SyncReply,
)
from tests.unit.membership_bench import (
    BEATING,
    CLAIMS,
    MARGIN_MS,
    REBALANCE_MS,
    SESSION_MS,
    a_holding_joiner,
    a_stable_follower,
    joined,
    synced,
)

PENDING = JoinReply(pending=True, member_id="m-1")


def test_it_joins_with_what_it_holds_and_may_act_meanwhile() -> None:
    bench = a_holding_joiner()
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert (request.member_id, request.protocols) == ("m-1", CLAIMS)
    assert bench.membership.holds(bench.now_ms)
    assert bench.membership.generation_id == 1


def test_each_pending_join_renews_what_it_holds() -> None:
    bench = a_holding_joiner()
    for _ in range(10):
        bench.answered(PENDING, after_ms=3_000)
        assert bench.membership.deadline_ms == bench.sent_at_ms + SESSION_MS - MARGIN_MS


def test_an_unanswered_join_does_not_extend_a_share() -> None:
    bench = a_holding_joiner()
    deadline_ms = bench.membership.deadline_ms
    bench.unanswered(after_ms=3_000)
    assert bench.membership.deadline_ms == deadline_ms
    events = bench.unanswered(after_ms=SESSION_MS - 3_000)
    assert Lost(1, "deadline") in events
    assert bench.membership.state is State.UNJOINED


def test_the_next_assignment_replaces_what_it_held() -> None:
    bench = a_holding_joiner()
    bench.answered(PENDING)
    assert bench.answered(joined(2)) == []
    assert bench.membership.holds(bench.now_ms)
    assert bench.answered(synced(b"less", 2)) == [Assigned(2, "range", "m-0", False, b"less", fencing_token(2))]


def test_it_commits_in_the_old_generation_while_it_joins() -> None:
    bench = a_holding_joiner()
    bench.sends()
    commit = CommitOffsets("default", "workers", 1, (), "m-1")
    assert bench.membership.on_reply(commit, CommitReply(ErrorCode.UNKNOWN_MEMBER_ID), bench.now_ms, bench.now_ms, 1.0)
    assert not bench.membership.holds(bench.now_ms)


def test_a_leader_holds_on_while_it_assigns() -> None:
    bench = a_holding_joiner()
    (event,) = bench.answered(joined(2, leader_id="m-1"))
    assert isinstance(event, JoinedAsLeader)
    assert bench.membership.state is State.LEADING
    assert bench.membership.holds(bench.now_ms)


def test_heartbeats_do_not_postpone_an_owed_sync() -> None:
    """Found by simulation: the coordinator removes a live member that has not synced at the rebalance timeout."""
    bench = a_holding_joiner()
    bench.answered(joined(2, leader_id="m-1"))
    due_at_ms = bench.sent_at_ms + REBALANCE_MS - MARGIN_MS
    while bench.membership.holds(bench.now_ms):
        assert isinstance(bench.sends(), Heartbeat)
        assert (bench.membership.deadline_ms or 0) <= due_at_ms
        bench.answered(HeartbeatReply(generation_id=2, state="CompletingRebalance"))
    assert bench.now_ms >= due_at_ms


def test_a_pending_sync_is_known_to_have_arrived() -> None:
    bench = a_holding_joiner()
    bench.answered(joined(2))
    for _ in range(20):
        assert isinstance(bench.sends(), SyncGroup | Heartbeat)
        if isinstance(bench.sends(), SyncGroup):
            bench.answered(SyncReply(pending=True), after_ms=3_000)
        else:
            bench.answered(HeartbeatReply(generation_id=2, state="CompletingRebalance"))
    assert bench.membership.holds(bench.now_ms)


def test_a_generation_that_failed_before_sync_is_joined_again() -> None:
    bench = a_holding_joiner()
    bench.answered(joined(2))
    (event,) = bench.answered(SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
    assert event == RebalanceStarted(2, "rebalance")
    assert bench.membership.holds(bench.now_ms)


def test_who_is_unknown_when_it_joins_has_lost_what_it_held() -> None:
    bench = a_holding_joiner()
    events = bench.answered(JoinReply(ErrorCode.UNKNOWN_MEMBER_ID))
    assert events == [Lost(1, "UNKNOWN_MEMBER_ID", ErrorCode.UNKNOWN_MEMBER_ID)]
    assert bench.membership.member_id == ""


def test_what_was_lost_while_joining_is_not_claimed_for_long() -> None:
    """Found by simulation: no member would be given a partition that another claims and does not know of."""
    bench = a_holding_joiner()
    bench.sends()
    join = bench.membership.next_request(bench.now_ms)
    assert join is not None
    assert bench.passes(SESSION_MS) == [Lost(1, "deadline")]
    bench.membership.say((Protocol("range", b"mine"),))
    bench.membership.on_reply(join.request, joined(2), bench.now_ms, bench.now_ms, 1.0)
    bench.answered(HeartbeatReply(generation_id=2, state="Stable"))
    events = bench.answered(synced(b"rest", 2))
    assert [type(event) for event in events] == [Assigned, RebalanceStarted]


def test_metadata_changed_in_a_join_is_sent_after_the_generation() -> None:
    bench = a_holding_joiner()
    join = bench.sends()
    bench.membership.request_rejoin(bench.now_ms, "other topics", (Protocol("range", b"other"),))
    bench.membership.on_reply(join, joined(2), bench.now_ms, bench.now_ms, 1.0)
    events = bench.answered(synced(b"share", 2))
    assert events[-1] == RebalanceStarted(2, "its metadata changed")


def test_a_leader_assigns_before_it_joins_again_on_request() -> None:
    """The others wait for its assignment, and its last commits do, too: it would close in vain until its timeout."""
    bench = a_holding_joiner()
    (event,) = bench.answered(joined(2, leader_id="m-1"))
    assert isinstance(event, JoinedAsLeader)

    assert bench.membership.request_rejoin(bench.now_ms, "other topics") == []
    bench.membership.assign(2, {"m-1": b"share"})
    bench.answered(HeartbeatReply(generation_id=2, state="CompletingRebalance"))
    assert bench.membership.request_rejoin(bench.now_ms, "other topics") == []
    request = bench.sends()
    assert isinstance(request, SyncGroup)
    assert request.assignments == (("m-1", b"share"),)

    events = bench.answered(synced(b"share", 2))
    assert [type(each) for each in events] == [Assigned, RebalanceStarted]


# --- stepping aside ---------------------------------------------------------------------------


def test_who_steps_aside_leaves_and_waits_to_be_called_back() -> None:
    bench = a_stable_follower()
    assert bench.membership.step_aside(bench.now_ms, "tired") == []
    assert isinstance(bench.sends(), LeaveGroup)
    bench.answered(LeaveReply())
    assert bench.membership.next_request(bench.now_ms) is None
    assert not bench.membership.is_final
    bench.membership.come_back(bench.now_ms)
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert request.member_id == ""


def test_who_is_called_back_before_it_has_left_joins_after_that() -> None:
    bench = a_stable_follower()
    bench.membership.step_aside(bench.now_ms, "tired")
    bench.membership.come_back(bench.now_ms)
    bench.answered(LeaveReply())
    assert isinstance(bench.sends(), JoinGroup)


def test_who_is_away_can_be_closed() -> None:
    bench = a_stable_follower()
    bench.membership.step_aside(bench.now_ms, "tired")
    bench.answered(LeaveReply())
    bench.membership.leave(bench.now_ms, "closing")
    assert bench.membership.is_final


# --- patience ---------------------------------------------------------------------------------


def test_a_client_honours_the_pause_that_a_coordinator_asks_for() -> None:
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "closing")
    request = bench.sends()
    reply = LeaveReply(ErrorCode.THROTTLED)
    bench.membership.on_reply(request, reply, bench.now_ms, bench.now_ms, 0.0, retry_after_ms=1_500)
    assert bench.pause_ms() == 1_500


def test_patience_does_not_cost_what_is_held() -> None:
    bench = a_stable_follower()
    request = bench.sends()
    reply = HeartbeatReply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.membership.on_reply(request, reply, bench.now_ms, bench.now_ms, 0.0, retry_after_ms=60_000)
    assert bench.membership.deadline_ms is not None
    assert bench.now_ms + bench.pause_ms() < bench.membership.deadline_ms
    bench.answered(BEATING)
    assert bench.membership.holds(bench.now_ms)
