"""Join phases from a member's side: the answers that renew its session, and the state that ends with a generation."""

from __future__ import annotations

import pytest

from rota.core.membership import Assigned, Lost, State
from rota.core.membership.backoff import Pace
from rota.core.membership.deadline import JoinPhase
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import Heartbeat, HeartbeatReply, JoinReply, LeaveReply, Protocol, SyncGroup
from tests.unit.membership_bench import (
    BEATING,
    MARGIN_MS,
    MEMBER_ID_REQUIRED,
    POLL_MS,
    SESSION_MS,
    SETTINGS,
    Bench,
    a_holding_joiner,
    a_joined_follower,
    a_newcomer,
    a_rejoining_follower,
    a_stable_follower,
    joined,
    synced,
)

# --- which generation proves that the session was renewed ---------------------------------------------------


def a_phase(*, seen: int, notified: bool, is_static: bool = False) -> JoinPhase:
    phase = JoinPhase(is_static=is_static)
    phase.completed(seen)
    phase.notified = notified
    return phase


@pytest.mark.parametrize(
    ("phase", "generation_id", "renewed"),
    [
        pytest.param(JoinPhase(is_static=False), 4, True, id="the first generation of a newcomer"),
        pytest.param(a_phase(seen=4, notified=True), 5, True, id="the next one after a rebalance"),
        pytest.param(a_phase(seen=4, notified=True), 4, False, id="answered at once in the same generation"),
        pytest.param(a_phase(seen=4, notified=False), 5, False, id="a resync counts up, too"),
        pytest.param(a_phase(seen=4, notified=True, is_static=True), 5, False, id="static members are not left out"),
    ],
)
def test_only_a_join_phase_that_we_were_part_of_renews(phase: JoinPhase, generation_id: int, renewed: bool) -> None:
    assert phase.renewed(generation_id) is renewed


def test_a_phase_that_is_over_proves_nothing_of_the_next() -> None:
    phase = a_phase(seen=4, notified=True)
    phase.unanswered(1_000)
    phase.completed(5)

    assert (phase.since_ms, phase.notified, phase.renewed(6)) == (None, False, False)


def test_a_phase_counts_from_the_first_unanswered_join() -> None:
    phase = JoinPhase(is_static=False)
    phase.unanswered(2_000)
    phase.unanswered(3_000)
    assert phase.since_ms == 2_000
    phase.pending(4_000)

    assert phase.since_ms == 4_000, "it was not over then"


# --- after a rebalance ------------------------------------------------------------------------------------------


def test_a_join_that_completes_a_phase_is_followed_by_a_sync() -> None:
    bench = a_rejoining_follower()
    bench.answered(joined(2))

    assert isinstance(bench.sends(), SyncGroup)
    assert bench.pause_ms() == 0


@pytest.mark.parametrize("generation_id", [1, 5])
def test_a_join_after_a_loss_is_followed_by_a_heartbeat(generation_id: int) -> None:
    bench = a_stable_follower()
    bench.answered(HeartbeatReply(ErrorCode.ILLEGAL_GENERATION))
    assert (bench.membership.leader_id, bench.membership.assignment) == ("", None)
    bench.answered(joined(generation_id))

    assert isinstance(bench.sends(), Heartbeat)


def test_a_member_that_joins_again_by_itself_keeps_its_deadline() -> None:
    """It received no notice of a rebalance: the answer may come at once, and renew nothing."""
    bench = a_stable_follower()
    bench.membership.request_rejoin(bench.now_ms, "new topics")
    bench.membership.rejoin(bench.now_ms, (Protocol("range", b"holds share"),), holding=True)
    deadline_ms = bench.membership.deadline_ms
    bench.answered(joined())

    assert deadline_ms is not None
    assert (bench.membership.deadline_ms, bench.membership.assignment) == (deadline_ms, b"share")


def test_a_pending_join_counts_the_session_from_that_call() -> None:
    bench = a_newcomer()
    bench.answered(JoinReply(pending=True, member_id="m-1"), after_ms=2_000)
    bench.answered(JoinReply(pending=True, member_id="m-1"), after_ms=2_000)
    sent_ms = bench.sent_at_ms
    bench.answered(joined())
    bench.answered(synced())

    assert bench.membership.deadline_ms == sent_ms + SESSION_MS - MARGIN_MS


# --- forgetting --------------------------------------------------------------------------------------------------


def test_a_loss_while_joining_is_not_rebalanced_twice() -> None:
    bench = a_holding_joiner()
    lost = bench.answered(JoinReply(ErrorCode.UNKNOWN_MEMBER_ID))
    bench.answered(MEMBER_ID_REQUIRED)
    bench.answered(joined(2))

    assert lost == [Lost(1, "UNKNOWN_MEMBER_ID", ErrorCode.UNKNOWN_MEMBER_ID)]
    assert bench.answered(synced(generation_id=2)) == [Assigned(2, "range", "m-0", False, b"share", fencing_token(2))]


def test_a_member_called_back_early_may_step_aside_later() -> None:
    bench = a_stable_follower()
    bench.membership.step_aside(bench.now_ms, "not now")
    bench.membership.come_back(bench.now_ms)
    bench.answered(LeaveReply())
    assert bench.membership.deadline_ms is None
    bench.answered(MEMBER_ID_REQUIRED)
    bench.answered(joined(2))
    bench.answered(synced(generation_id=2))
    bench.membership.step_aside(bench.now_ms, "restart", silently=True)

    assert bench.membership.state is State.AWAY


# --- when the next call goes -----------------------------------------------------------------------------------------


def test_a_call_is_never_planned_for_the_past() -> None:
    bench = a_stable_follower()
    planned = bench.membership.next_request(bench.now_ms + 4_000)

    assert planned is not None
    assert planned.send_at_ms == bench.now_ms + 4_000


def test_a_heartbeat_does_not_park_in_the_last_moment() -> None:
    bench = a_stable_follower()
    assert bench.membership.deadline_ms is not None
    planned = bench.membership.next_request(bench.membership.deadline_ms - 2)

    assert planned is not None
    assert isinstance(planned.request, Heartbeat)
    assert planned.request.wait_ms == 0


def test_a_heartbeat_that_did_not_park_precedes_one_that_does() -> None:
    bench = a_stable_follower()
    bench.unanswered()
    bench.answered(BEATING, after_ms=0)
    planned = bench.membership.next_request(bench.now_ms)

    assert planned is not None
    assert isinstance(planned.request, Heartbeat)
    assert (planned.send_at_ms, planned.request.wait_ms) == (bench.now_ms, POLL_MS)


def pauses(bench: Bench, count: int) -> list[int]:
    found = []
    for _ in range(count):
        bench.unanswered(after_ms=0)
        found.append(bench.pause_ms())
    return found


def test_pauses_without_a_share_grow_to_the_cap_of_all_calls() -> None:
    assert max(pauses(a_newcomer(), 9)) == SETTINGS.backoff_cap_ms


def test_pauses_before_the_first_sync_do_not_eat_the_session() -> None:
    assert max(pauses(a_joined_follower(), 9)) == SETTINGS.heartbeat_backoff_cap_ms


def test_pauses_of_a_joining_holder_do_not_eat_the_session() -> None:
    bench = a_holding_joiner()

    assert max(pauses(bench, 5)) == SETTINGS.heartbeat_backoff_cap_ms


def test_a_pending_call_of_exactly_the_spacing_is_not_early() -> None:
    pace = Pace(SETTINGS)
    pace.pending(1_000, 1_200)
    pace.pending(1_200, 1_300)

    assert pace.not_before_ms == 1_300
