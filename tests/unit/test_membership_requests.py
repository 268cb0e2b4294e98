"""The fields of each request of a member, and the bounds of the settings that it is made of."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from rota.core.membership import MembershipSettings, State
from rota.core.membership.backoff import Backoff, Pace
from rota.core.membership.deadline import LocalDeadline
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import MAX_WAIT_MS
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    SyncGroup,
)
from tests.unit.membership_bench import (
    MEMBER_ID_REQUIRED,
    POLL_MS,
    REBALANCE_MS,
    SESSION_MS,
    SETTINGS,
    Bench,
    a_newcomer,
    a_newcomer_with_an_id,
    a_stable_follower,
    joined,
)

STATIC = dataclasses.replace(SETTINGS, group_instance_id="i", client_id="app")


def a_joined_static_leader() -> Bench:
    bench = a_newcomer(STATIC)
    bench.answered(joined(leader_id="m-1"))
    return bench


def test_a_join_says_all_that_a_member_is() -> None:
    assert a_newcomer(STATIC).sends() == JoinGroup(
        "default",
        "workers",
        "worker",
        (Protocol("range", b"mine"),),
        SESSION_MS,
        REBALANCE_MS,
        group_instance_id="i",
        client_id="app",
        wait_ms=POLL_MS,
    )


def test_a_sync_names_the_generation_and_its_protocol() -> None:
    bench = a_joined_static_leader()
    bench.membership.assign(1, {"m-1": b"share"})
    bench.answered(HeartbeatReply(generation_id=1, state="CompletingRebalance"))

    assert bench.sends() == SyncGroup(
        "default",
        "workers",
        "m-1",
        1,
        "i",
        protocol_type="worker",
        protocol_name="range",
        assignments=(("m-1", b"share"),),
        wait_ms=POLL_MS,
    )


def test_a_heartbeat_names_the_member_and_its_instance() -> None:
    assert a_joined_static_leader().sends() == Heartbeat("default", "workers", "m-1", 1, "i", 0)


def test_a_leave_names_the_instance_and_the_reason() -> None:
    bench = a_joined_static_leader()
    bench.membership.leave(bench.now_ms, "shutdown")

    assert bench.sends() == LeaveGroup("default", "workers", (LeavingMember("m-1", "i", "shutdown"),))


def test_a_leave_names_the_unit_on_which_the_work_failed() -> None:
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "it raised", failed_unit="t/0")

    assert bench.sends() == LeaveGroup(
        "default", "workers", (LeavingMember("m-1", None, "it raised", failed_unit="t/0"),)
    )


def test_a_leave_of_a_member_that_steps_aside_names_no_unit() -> None:
    bench = a_stable_follower()
    bench.membership.step_aside(bench.now_ms, "not now")

    assert bench.sends() == LeaveGroup("default", "workers", (LeavingMember("m-1", None, "not now"),))


def test_a_join_names_the_last_generation_of_the_member() -> None:
    bench = a_stable_follower()
    bench.answered(HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID))
    bench.answered(MEMBER_ID_REQUIRED)
    request = bench.sends()

    assert isinstance(request, JoinGroup)
    assert request.last_generation_id == 1


def test_a_sync_without_a_chosen_protocol_names_none() -> None:
    bench = a_newcomer_with_an_id()
    bench.answered(replace(joined(), protocol_name=None))
    request = bench.sends()

    assert isinstance(request, SyncGroup)
    assert request.protocol_name is None


# --- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_ms", [1, SESSION_MS // 2])
def test_the_bounds_of_the_heartbeat_interval_are_allowed(interval_ms: int) -> None:
    assert dataclasses.replace(SETTINGS, heartbeat_ms=interval_ms).heartbeat_interval_ms == interval_ms


@pytest.mark.parametrize("interval_ms", [0, SESSION_MS // 2 + 1])
def test_an_interval_out_of_bounds_is_refused_with_the_bounds(interval_ms: int) -> None:
    with pytest.raises(
        ValueError, match=f"must be 1 to {SESSION_MS // 2} ms, half of the session timeout, not {interval_ms} ms"
    ):
        dataclasses.replace(SETTINGS, heartbeat_ms=interval_ms)


# --- pauses ----------------------------------------------------------------------------------------------


def test_a_pause_has_a_cap_of_its_own_and_one_of_the_caller() -> None:
    pauses = Backoff(100, 1_000)
    assert [pauses.next_ms(1.0) for _ in range(5)] == [100, 200, 400, 800, 1_000]
    assert [pauses.next_ms(1.0, 300), pauses.next_ms(1.0, 5_000)] == [300, 1_000]


def test_a_pause_does_not_grow_without_end() -> None:
    pauses = Backoff(1, 2**40)
    pauses.failures = 1_000

    assert pauses.next_ms(1.0) == 2**20


def paced(*, patience_ends_ms: int | None = None, retry_after_ms: int = 60_000) -> int:
    """How long a coordinator that asks for patience is not called."""
    pace = Pace(SETTINGS)
    pace.at_once(1_000)
    pace.retry_after(retry_after_ms, 1_000, patience_ends_ms)
    return pace.not_before_ms - 1_000


def test_patience_costs_at_most_a_third_of_the_time_left() -> None:
    assert paced(patience_ends_ms=4_001) == 1_000
    assert paced(patience_ends_ms=4_001, retry_after_ms=200) == 200
    assert paced(patience_ends_ms=900) == 0


def test_a_pending_call_that_returns_too_early_twice_is_spaced() -> None:
    pace = Pace(SETTINGS)
    pace.pending(1_000, 1_199)
    assert pace.not_before_ms == 1_199
    pace.pending(1_199, 1_398)
    assert pace.not_before_ms == 1_399
    pace.pending(1_399, 1_599)

    assert pace.not_before_ms == 1_599, "it took as long as it should"


# --- the deadline ------------------------------------------------------------------------------------------


def test_a_renewal_is_fresh_until_its_age_is_reached() -> None:
    deadline = LocalDeadline(SETTINGS)
    assert not deadline.is_fresh(1_000, 500)
    deadline.renewed(1_000)

    assert deadline.is_fresh(1_499, 500)
    assert not deadline.is_fresh(1_500, 500)


def test_an_earlier_renewal_that_comes_late_changes_nothing() -> None:
    deadline = LocalDeadline(SETTINGS)
    deadline.renewed(2_000)
    deadline.settled(2_000)
    until = (deadline.valid_until_ms, deadline.rejoin_by_ms)
    deadline.renewed(1_000)
    deadline.settled(1_000)

    assert (deadline.valid_until_ms, deadline.rejoin_by_ms) == until


def test_a_generation_that_is_over_leaves_no_deadline() -> None:
    deadline = LocalDeadline(SETTINGS)
    deadline.renewed(2_000)
    deadline.settled(2_000)
    deadline.clear()

    assert (deadline.valid_until_ms, deadline.rejoin_by_ms, deadline.holds(2_000)) == (None, None, False)


# --- refusals ------------------------------------------------------------------------------------------------


def test_a_refusal_for_good_names_its_code_and_detail() -> None:
    bench = a_newcomer(STATIC)
    bench.answered(joined())
    bench.answered(HeartbeatReply(ErrorCode.INVALID_REQUEST, "not in this group"))

    (failed,) = bench.events
    assert (failed.code, failed.detail) == (ErrorCode.INVALID_REQUEST, "not in this group")  # type: ignore[union-attr]
    assert bench.membership.state is State.FAILED
    assert bench.membership.next_request(bench.now_ms) is None


def test_a_long_setting_parks_no_call_beyond_the_servers_bound() -> None:
    patient = MembershipSettings(
        "default", "g", "worker", SETTINGS.protocols, session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000
    )
    request = a_newcomer(patient).sends()

    assert isinstance(request, JoinGroup)
    assert request.wait_ms == MAX_WAIT_MS
