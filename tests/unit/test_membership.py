"""The client state machine: one sentence per rule of the protocol that a member follows, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.membership import (
    Assigned,
    AssignmentFailed,
    Failed,
    JoinedAsLeader,
    Left,
    Lost,
    Reachable,
    RebalanceStarted,
    Rejected,
    State,
)
from rota.core.membership.events import REFUSALS
from rota.protocol.defaults import REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import (
    NO_GENERATION,
    Heartbeat,
    HeartbeatReply,
    JoinedMember,
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
    POLL_MS,
    REBALANCING,
    SESSION_MS,
    SETTINGS,
    a_joined_follower,
    a_joined_leader,
    a_newcomer,
    a_newcomer_with_an_id,
    a_rejoining_follower,
    a_revoking_follower,
    a_stable_follower,
    joined,
    synced,
)

# --- joining ----------------------------------------------------------------------------------


def test_a_newcomer_joins_without_a_member_id() -> None:
    request = a_newcomer().sends()
    assert isinstance(request, JoinGroup)
    assert (request.member_id, request.protocols) == ("", (Protocol("range", b"mine"),))


def test_member_id_required_is_answered_at_once_with_the_id() -> None:
    bench = a_newcomer_with_an_id()
    assert bench.pause_ms() == 0
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert request.member_id == "m-1"


def test_a_pending_join_is_sent_again_with_the_same_id() -> None:
    bench = a_newcomer()
    bench.answered(JoinReply(pending=True, member_id="m-1"), after_ms=3_000)
    assert (bench.membership.state, bench.pause_ms()) == (State.JOINING, 0)
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert request.member_id == "m-1"


def test_a_join_parks_for_at_most_a_third_of_either_timeout() -> None:
    request = a_newcomer().sends()
    assert isinstance(request, JoinGroup)
    assert request.wait_ms == POLL_MS
    hasty = a_newcomer(replace(SETTINGS, rebalance_timeout_ms=3_000)).sends()
    assert isinstance(hasty, JoinGroup)
    assert hasty.wait_ms == 1_000


def test_an_unanswered_join_leaves_time_for_another_one() -> None:
    bench = a_newcomer_with_an_id()
    planned = bench.membership.next_request(bench.now_ms)
    assert planned is not None
    assert isinstance(planned.request, JoinGroup)
    assert planned.timeout_ms <= 2 * SESSION_MS // 3


def test_an_unknown_member_id_is_dropped_and_joins_as_new() -> None:
    bench = a_newcomer_with_an_id()
    bench.answered(JoinReply(ErrorCode.UNKNOWN_MEMBER_ID))
    assert bench.pause_ms() == 0
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert request.member_id == ""


def test_an_unknown_member_without_an_id_retries_after_a_pause() -> None:
    bench = a_newcomer()
    bench.answered(JoinReply(ErrorCode.UNKNOWN_MEMBER_ID))
    assert bench.pause_ms() == 100


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.THROTTLED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ],
)
def test_a_retriable_join_backs_off_exponentially_up_to_a_cap(code: ErrorCode) -> None:
    bench = a_newcomer()
    pauses = []
    for _ in range(8):
        bench.answered(JoinReply(code))
        pauses.append(bench.pause_ms())
    assert pauses == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]


def test_the_pause_is_a_random_share_of_the_step() -> None:
    bench = a_newcomer()
    bench.answered(JoinReply(ErrorCode.THROTTLED), jitter=0.25)
    assert bench.pause_ms() == 25


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.PAYLOAD_TOO_LARGE,
    ],
)
def test_a_join_refused_for_good_is_final(code: ErrorCode) -> None:
    bench = a_newcomer()
    assert bench.answered(JoinReply(code, detail="why")) == [Failed(code, "why")]
    assert bench.membership.state is State.FAILED
    assert bench.membership.next_request(bench.now_ms) is None


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_what_an_operator_cures_is_retried_until_it_is_cured(code: ErrorCode) -> None:
    bench = a_newcomer()
    rejected = [event for _ in range(9) for event in bench.answered(JoinReply(code, detail="why"))]
    assert [(event.code, event.cause) for event in rejected if isinstance(event, Rejected)] == [(code, f"{code}: why")]
    assert any(isinstance(event, Reachable) for event in bench.answered(joined()))


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_program_may_want_the_error_of_a_refusal(code: ErrorCode) -> None:
    bench = a_newcomer(replace(SETTINGS, retry_refusals=False))
    assert bench.answered(JoinReply(code, detail="why")) == [Failed(code, "why")]


def test_a_fenced_instance_is_final() -> None:
    bench = a_newcomer(replace(SETTINGS, group_instance_id="pod-0"))
    events = bench.answered(JoinReply(ErrorCode.FENCED_INSTANCE_ID, detail="taken over"))
    assert events == [Failed(ErrorCode.FENCED_INSTANCE_ID, "taken over")]
    assert bench.membership.state is State.FENCED


# --- leading and syncing ----------------------------------------------------------------------


def test_the_leader_is_asked_for_the_assignment_and_sends_it() -> None:
    bench = a_joined_leader()
    assert bench.events == [JoinedAsLeader(1, "range", (JoinedMember("m-1", None, b"mine"),))]
    bench.membership.assign(1, {"m-1": b"all"})
    request = bench.sends()
    assert isinstance(request, SyncGroup)
    assert (request.generation_id, request.assignments) == (1, (("m-1", b"all"),))


def test_a_leader_that_takes_its_time_keeps_heartbeating() -> None:
    bench = a_joined_leader()
    request = bench.sends()
    assert isinstance(request, Heartbeat)
    assert bench.now_ms == 1_010 + 3_000  # one interval after the join was sent
    assert request.wait_ms == 0


def test_an_assignment_for_a_generation_that_is_over_is_ignored() -> None:
    bench = a_joined_leader()
    bench.membership.assign(0, {"m-1": b"stale"})
    assert bench.membership.state is State.LEADING


def test_a_returning_static_leader_only_fetches_its_assignment() -> None:
    bench = a_newcomer(replace(SETTINGS, group_instance_id="pod-0"))
    bench.answered(joined(leader_id="m-1", skip=True))
    # Until its next answer, its session is the one that its former self asked for: that may be shorter.
    assert isinstance(bench.sends(), Heartbeat)
    bench.answered(BEATING)
    request = bench.sends()
    assert isinstance(request, SyncGroup)
    assert request.assignments == ()


def test_a_leader_that_cannot_assign_reports_it_and_joins_again() -> None:
    bench = a_joined_leader()
    bench.membership.assignment_failed(1, "no topics")
    request = bench.sends()
    assert isinstance(request, SyncGroup)
    assert request.leader_error == "no topics"
    assert bench.answered(SyncReply()) == [AssignmentFailed(1, "no topics")]
    assert (bench.membership.state, bench.pause_ms()) == (State.UNJOINED, 100)


def test_followers_of_a_failed_assignment_back_off_further() -> None:
    bench = a_joined_follower()
    bench.answered(SyncReply(ErrorCode.ASSIGNMENT_FAILED, detail="no topics"))
    first_ms = bench.pause_ms()
    bench.answered(joined(2))
    bench.answered(SyncReply(ErrorCode.ASSIGNMENT_FAILED, detail="no topics"))
    assert (first_ms, bench.pause_ms()) == (100, 200)


def test_pauses_of_failed_assignments_do_not_cost_the_session() -> None:
    bench = a_joined_follower()
    pauses_ms = []
    for generation_id in range(2, 10):
        bench.answered(SyncReply(ErrorCode.ASSIGNMENT_FAILED, detail="no topics"))
        pauses_ms.append(bench.pause_ms())
        bench.answered(joined(generation_id))

    assert max(pauses_ms) == SETTINGS.rejoin_backoff_cap_ms == SESSION_MS // 3


def test_a_sync_brings_the_assignment() -> None:
    bench = a_stable_follower()
    assert bench.events == [Assigned(1, "range", "m-0", False, b"share", fencing_token(1))]
    assert bench.membership.holds(bench.now_ms)


def test_a_pending_sync_is_repeated_at_once() -> None:
    bench = a_joined_follower()
    bench.answered(SyncReply(pending=True), after_ms=100)
    assert bench.pause_ms() == 0
    assert isinstance(bench.sends(), SyncGroup)


def test_a_heartbeat_goes_between_two_parked_syncs() -> None:
    bench = a_joined_follower()
    bench.answered(SyncReply(pending=True), after_ms=POLL_MS)
    request = bench.sends()
    assert isinstance(request, Heartbeat)
    bench.answered(BEATING)
    assert isinstance(bench.sends(), SyncGroup)


def test_a_sync_answered_by_a_rebalance_keeps_no_generation() -> None:
    """KAFKA-13419 and KAFKA-13891: the next join must not revive a generation that was never synced."""
    bench = a_joined_follower()
    assert bench.answered(SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)) == []
    assert bench.membership.generation_id == NO_GENERATION
    assert bench.pause_ms() == 0
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert request.member_id == "m-1"


def test_a_sync_of_an_illegal_generation_joins_again() -> None:
    bench = a_joined_follower()
    bench.answered(SyncReply(ErrorCode.ILLEGAL_GENERATION))
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert (request.member_id, bench.membership.generation_id) == ("m-1", NO_GENERATION)


def test_a_sync_that_fails_on_the_way_is_repeated_after_a_pause() -> None:
    bench = a_joined_follower()
    bench.unanswered()
    assert bench.pause_ms() == 100
    assert isinstance(bench.sends(), SyncGroup)


# --- heartbeats -------------------------------------------------------------------------------


def test_a_stable_member_parks_its_heartbeats() -> None:
    bench = a_stable_follower()
    request = bench.sends()
    assert isinstance(request, Heartbeat)
    assert request.wait_ms is not None
    assert 2_500 < request.wait_ms <= POLL_MS
    assert bench.pause_ms() == 0


def test_one_parked_heartbeat_follows_the_other_at_once() -> None:
    bench = a_stable_follower()
    bench.answered(BEATING, after_ms=POLL_MS)
    assert bench.pause_ms() == 0


def test_heartbeats_answered_at_once_are_not_sent_in_a_loop() -> None:
    bench = a_stable_follower()
    bench.answered(BEATING, after_ms=1)
    assert bench.pause_ms() > 2_500


def test_after_half_of_its_time_a_heartbeat_is_followed_at_once() -> None:
    bench = a_stable_follower()
    bench.answered(BEATING, after_ms=POLL_MS // 2)
    assert bench.pause_ms() == 0


def test_after_a_failed_heartbeat_the_next_one_does_not_park() -> None:
    bench = a_stable_follower()
    bench.unanswered()
    request = bench.sends()
    assert isinstance(request, Heartbeat)
    assert request.wait_ms == 0
    bench.answered(BEATING)
    parked = bench.sends()
    assert isinstance(parked, Heartbeat)
    assert parked.wait_ms is not None
    assert parked.wait_ms > 2_500


def test_pauses_between_failed_heartbeats_do_not_eat_the_session() -> None:
    bench = a_stable_follower()
    for _ in range(6):
        bench.unanswered(after_ms=10)
    assert bench.pause_ms() == 1_000


def test_a_rebalance_is_announced_once_while_work_stops() -> None:
    bench = a_revoking_follower()
    assert bench.events == [RebalanceStarted(1, "rebalance")]
    assert bench.answered(REBALANCING) == []
    assert isinstance(bench.sends(), Heartbeat)
    assert bench.membership.holds(bench.now_ms)


def test_a_member_rejoins_under_its_id_after_its_work_stopped() -> None:
    bench = a_rejoining_follower()
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert (request.member_id, bench.membership.holds(bench.now_ms)) == ("m-1", False)


@pytest.mark.parametrize(("code", "member_id"), [("UNKNOWN_MEMBER_ID", ""), ("ILLEGAL_GENERATION", "m-1")])
def test_a_rejected_heartbeat_costs_the_share_and_an_unknown_member_its_id(code: str, member_id: str) -> None:
    bench = a_stable_follower()
    assert bench.answered(HeartbeatReply(ErrorCode(code))) == [Lost(1, code, ErrorCode(code))]
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert request.member_id == member_id


def test_a_fenced_heartbeat_loses_everything_for_good() -> None:
    bench = a_stable_follower()
    events = bench.answered(HeartbeatReply(ErrorCode.FENCED_INSTANCE_ID))
    assert [type(event) for event in events] == [Lost, Failed]
    assert bench.membership.next_request(bench.now_ms) is None


def test_a_higher_generation_in_a_heartbeat_means_sync_again() -> None:
    bench = a_stable_follower()
    assert bench.answered(HeartbeatReply(generation_id=2, state="Stable")) == []
    assert bench.membership.holds(bench.now_ms)
    assert bench.membership.fencing_token == fencing_token(2)
    request = bench.sends()
    assert isinstance(request, SyncGroup)
    assert request.generation_id == 2
    assert bench.answered(synced(b"new share", 2)) == [
        Assigned(2, "range", "m-0", False, b"new share", fencing_token(2))
    ]


def test_a_leader_resyncs_a_changed_assignment_without_joining() -> None:
    bench = a_joined_leader()
    bench.membership.assign(1, {"m-1": b"all"})
    bench.answered(synced(b"all"))
    assert bench.membership.resync({"m-1": b"more"})
    request = bench.sends()
    assert isinstance(request, SyncGroup)
    assert (request.generation_id, request.assignments) == (1, (("m-1", b"more"),))
    assert bench.answered(synced(b"more", 2)) == [Assigned(2, "range", "m-1", True, b"more", fencing_token(2))]


def test_a_follower_cannot_resync() -> None:
    assert not a_stable_follower().membership.resync({"m-1": b"mine"})


def test_an_answer_to_a_heartbeat_of_before_is_ignored() -> None:
    bench = a_stable_follower()
    stale = bench.sends()
    bench.answered(HeartbeatReply(ErrorCode.ILLEGAL_GENERATION))
    bench.answered(joined(2))
    late = bench.membership.on_reply(
        stale, HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID), bench.sent_at_ms, bench.now_ms, 1.0
    )
    assert late == []
    assert (bench.membership.state, bench.membership.member_id) == (State.SYNCING, "m-1")


def test_changed_metadata_revokes_first_and_then_joins_with_it() -> None:
    bench = a_stable_follower()
    events = bench.membership.request_rejoin(bench.now_ms, "subscription changed", (Protocol("range", b"new"),))
    assert events == [RebalanceStarted(1, "subscription changed")]
    bench.membership.rejoin(bench.now_ms)
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert (request.protocols, request.reason) == ((Protocol("range", b"new"),), "subscription changed")


# --- leaving ----------------------------------------------------------------------------------


def test_leaving_names_the_member_and_ends() -> None:
    bench = a_stable_follower()
    assert bench.membership.leave(bench.now_ms, "closing") == []
    request = bench.sends()
    assert isinstance(request, LeaveGroup)
    assert (request.members[0].member_id, request.members[0].reason) == ("m-1", "closing")
    assert bench.answered(LeaveReply()) == [Left()]
    assert bench.membership.next_request(bench.now_ms) is None


def test_leaving_before_anything_was_joined_needs_no_call() -> None:
    bench = a_newcomer()
    assert bench.membership.leave(bench.now_ms, "closing") == [Left()]


def test_leaving_gives_up_after_three_tries() -> None:
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "closing")
    bench.unanswered()
    bench.answered(LeaveReply(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert bench.membership.state is State.LEAVING
    assert Left() in bench.unanswered()


def test_a_refused_leave_is_repeated_for_the_time_of_a_call() -> None:
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "closing")
    ends_ms = bench.now_ms + REQUEST_TIMEOUT_MS
    for _ in range(4):
        bench.answered(LeaveReply(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        assert bench.membership.state is State.LEAVING
    bench.sends()
    assert bench.now_ms < ends_ms - 10

    assert Left() in bench.answered(LeaveReply(ErrorCode.COORDINATOR_NOT_AVAILABLE), ends_ms - bench.now_ms)


def test_leaving_after_a_long_outage_skips_its_pauses() -> None:
    bench = a_stable_follower()
    for _ in range(10):
        bench.unanswered(after_ms=10)
    bench.membership.leave(bench.now_ms, "closing")
    assert bench.pause_ms() == 0
    bench.unanswered()
    assert bench.pause_ms() == 100


def test_a_static_member_may_go_without_telling() -> None:
    bench = a_stable_follower()
    assert bench.membership.abandon() == [Left()]
    assert not bench.membership.holds(bench.now_ms)
