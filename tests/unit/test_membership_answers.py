"""Answers that are incomplete, strange or late, and how long a member waits for each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from rota.core.membership import Assigned, Rejected, State, Unreachable
from rota.protocol.defaults import REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatReply,
    JoinReply,
    PartitionResult,
    Reply,
    SyncGroup,
    parks_for_ms,
)
from tests.unit.membership_bench import (
    SETTINGS,
    Bench,
    a_holding_joiner,
    a_joined_follower,
    a_joined_leader,
    a_newcomer,
    a_newcomer_with_an_id,
    a_rejoining_follower,
    a_stable_follower,
    joined,
    synced,
)

AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_newcomer_has_no_id_yet() -> None:
    membership = a_newcomer().membership

    assert (membership.member_id, membership.protocol_name, membership.leader_id) == ("", "", "")
    assert (membership.is_leader, membership.is_away, membership.is_final) == (False, False, False)


# --- joins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(JoinReply(generation_id=1, protocol_name="range", leader_id="m-0"), id="no member id"),
        pytest.param(JoinReply(member_id="m-1", generation_id=-1), id="no generation"),
        pytest.param(JoinReply(pending=True, generation_id=1), id="pending without a member id"),
        pytest.param(JoinReply(ErrorCode.MEMBER_ID_REQUIRED), id="an id is required and none is given"),
    ],
)
def test_an_incomplete_answer_to_a_join_is_no_answer(reply: JoinReply) -> None:
    bench = a_newcomer()
    bench.answered(reply)

    assert (bench.membership.state, bench.membership.member_id) == (State.UNJOINED, "")
    assert bench.pause_ms() > 0


def test_a_member_that_has_an_id_takes_no_other() -> None:
    bench = a_newcomer_with_an_id()
    bench.answered(JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id="m-2"))

    assert bench.membership.member_id == "m-1"
    assert bench.pause_ms() > 0


def test_generations_may_begin_with_0() -> None:
    bench = a_newcomer_with_an_id()
    bench.answered(joined(0))

    assert (bench.membership.state, bench.membership.generation_id) == (State.SYNCING, 0)


def test_only_an_answer_with_a_generation_needs_its_protocol() -> None:
    bench = a_newcomer()
    bench.answered(JoinReply(pending=True, member_id="m-1", protocol_type="other"))
    assert bench.membership.member_id == "m-1"
    bench.answered(JoinReply(ErrorCode.INVALID_REQUEST, protocol_type="other"))

    assert bench.membership.state is State.FAILED


def test_a_sync_of_another_generation_is_ignored() -> None:
    bench = a_joined_follower()
    request = bench.sends()
    assert isinstance(request, SyncGroup)
    late = structs.replace(request, generation_id=0)

    assert bench.membership.on_reply(late, synced(), bench.now_ms, bench.now_ms, 1.0) == []
    assert bench.membership.state is State.SYNCING


# --- how long an answer may take ------------------------------------------------------------------------------


def timeout_ms(bench: Bench) -> int:
    """Beyond the time for which the next call may park."""
    planned = bench.membership.next_request(bench.now_ms)
    assert planned is not None
    return planned.timeout_ms - parks_for_ms(planned.request)


def test_a_newcomers_join_has_the_time_of_any_call() -> None:
    assert timeout_ms(a_newcomer()) == REQUEST_TIMEOUT_MS


def test_a_known_members_join_leaves_time_for_another() -> None:
    bench = a_newcomer_with_an_id()

    assert timeout_ms(bench) == SETTINGS.seat_grace_ms


def test_a_leave_has_the_time_of_any_call() -> None:
    bench = a_stable_follower()
    bench.membership.leave(bench.now_ms, "shutdown")

    assert timeout_ms(bench) == REQUEST_TIMEOUT_MS


def test_the_join_of_a_holder_has_the_time_of_a_heartbeat() -> None:
    settings = replace(SETTINGS, session_timeout_ms=2_400)
    bench = a_holding_joiner(settings)

    assert timeout_ms(bench) == settings.heartbeat_grace_ms == 800
    assert settings.seat_grace_ms == 1_000


def test_a_heartbeat_between_two_syncs_does_not_park() -> None:
    bench = a_joined_leader()
    bench.membership.assign(1, {})
    bench.now_ms += SETTINGS.poll_ms
    request = bench.sends()

    assert isinstance(request, Heartbeat)
    assert request.wait_ms == 0


# --- shares that come with the answer to a join -------------------------------------------------------


ELECTED = structs.replace(joined(2, leader_id="m-1"), members=(), skip_assignment=True, assignment=b"term")


def test_a_share_by_the_answer_to_a_join_is_held_at_once() -> None:
    bench = a_rejoining_follower()

    (assigned,) = bench.answered(ELECTED)

    assert isinstance(assigned, Assigned)
    assert (assigned.assignment, assigned.generation_id, assigned.is_leader) == (b"term", 2, True)
    assert isinstance(bench.sends(), Heartbeat), "no sync is needed"


def test_a_share_after_a_long_join_phase_waits_for_a_heartbeat() -> None:
    """Little is left of the session by then: its work would begin, and end before the answer to its first heartbeat."""
    bench = a_rejoining_follower()

    assert bench.answered(ELECTED, after_ms=SETTINGS.poll_ms) == []
    assert isinstance(bench.sends(), Heartbeat)
    (assigned,) = bench.answered(HeartbeatReply(generation_id=2, state="Stable"))

    assert isinstance(assigned, Assigned)
    assert assigned.assignment == b"term"
    assert bench.membership.state is State.STABLE


def test_a_share_of_a_generation_that_is_over_is_not_held() -> None:
    bench = a_rejoining_follower()
    bench.answered(ELECTED, after_ms=SETTINGS.poll_ms)

    assert bench.answered(HeartbeatReply(generation_id=3, state="Stable")) == []

    sync = bench.sends()
    assert isinstance(sync, SyncGroup)
    assert sync.generation_id == 3


def test_a_share_not_yet_held_is_forgotten_in_a_rebalance() -> None:
    bench = a_rejoining_follower()
    bench.answered(ELECTED, after_ms=SETTINGS.poll_ms)
    bench.answered(HeartbeatReply(ErrorCode.REBALANCE_IN_PROGRESS))

    assert bench.answered(joined(3)) == []

    assert isinstance(bench.sends(), SyncGroup)


# --- trouble ----------------------------------------------------------------------------------------------------


def trouble_after(bench: Bench, reply: Reply, after_ms: int = 1_500) -> Unreachable | Rejected:
    """The event that is published once this has lasted for the notice."""
    bench.answered(reply, after_ms)
    (event,) = bench.events or bench.passes(SETTINGS.notice_ms)
    assert isinstance(event, Unreachable | Rejected)
    return event


@pytest.mark.parametrize(("detail", "cause"), [("", str(AWAY)), ("no store", f"{AWAY}: no store")])
def test_the_cause_of_silence_is_in_the_coordinators_words(detail: str, cause: str) -> None:
    event = trouble_after(a_stable_follower(), HeartbeatReply(AWAY, detail))

    assert isinstance(event, Unreachable)
    assert event.cause == cause


@pytest.mark.parametrize(("detail", "cause"), [("", "THROTTLED"), ("5 calls a second", "THROTTLED: 5 calls a second")])
def test_the_cause_of_a_rejection_is_in_the_coordinators_words(detail: str, cause: str) -> None:
    event = trouble_after(a_stable_follower(), HeartbeatReply(ErrorCode.THROTTLED, detail))

    assert isinstance(event, Rejected)
    assert (event.code, event.cause) == (ErrorCode.THROTTLED, cause)


def test_silence_of_a_parked_call_begins_when_its_answer_is_due() -> None:
    """An answer that is none came before: silence begins with it."""
    bench = a_stable_follower()
    event = trouble_after(bench, HeartbeatReply(AWAY))

    assert event.since_ms == bench.sent_at_ms + 1_500


def test_an_answer_of_another_protocol_is_silence_since_it_came() -> None:
    bench = a_rejoining_follower()
    event = trouble_after(bench, structs.replace(joined(2), protocol_type="other"))

    assert event.since_ms == bench.sent_at_ms + 1_500


def test_silence_of_a_call_that_was_never_sent_begins_at_once() -> None:
    bench = a_stable_follower()
    request = bench.sends()
    sent_ms = bench.now_ms
    (event,) = bench.membership.on_failure(request, sent_ms, sent_ms + 1_500, 1.0, "refused", was_sent=False)

    assert event == Unreachable(sent_ms, "refused")


# --- patience ------------------------------------------------------------------------------------------------------


def test_a_commit_to_retry_later_does_not_delay_the_heartbeat() -> None:
    bench = a_stable_follower()
    bench.sends()
    planned = bench.membership.next_request(bench.now_ms)
    request = CommitOffsets("default", "workers", 1, (), "m-1")
    reply = CommitReply(partitions=(PartitionResult("t", 0),))
    bench.membership.on_reply(request, reply, bench.now_ms, bench.now_ms, 1.0, retry_after_ms=2_000)

    assert planned is not None
    after = bench.membership.next_request(bench.now_ms)
    assert after is not None
    assert after.send_at_ms == planned.send_at_ms
