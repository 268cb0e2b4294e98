"""Until when a member holds its share, and its events while no replica answers, in virtual time."""

from __future__ import annotations

import pytest
from msgspec import structs

from rota.core.membership import (
    Assigned,
    Event,
    Lost,
    Reachable,
    State,
    Unreachable,
)
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    OffsetToCommit,
    PartitionResult,
    SyncGroup,
)
from tests.unit.membership_bench import (
    BEATING,
    MARGIN_MS,
    POLL_MS,
    REBALANCE_MS,
    REBALANCING,
    SESSION_MS,
    Bench,
    a_joined_follower,
    a_newcomer_with_an_id,
    a_stable_follower,
    joined,
    synced,
)


def test_the_deadline_counts_from_the_last_renewals_sending() -> None:
    bench = a_stable_follower()
    bench.answered(BEATING, after_ms=500)
    assert bench.membership.deadline_ms == bench.sent_at_ms + SESSION_MS - MARGIN_MS


def test_an_answer_gives_the_parked_time_back() -> None:
    bench = a_stable_follower()
    bench.answered(structs.replace(BEATING, waited_ms=POLL_MS), after_ms=POLL_MS + 500)
    counted_ms = POLL_MS - POLL_MS // 50  # The clocks may differ by 2 %.
    assert bench.membership.deadline_ms == bench.sent_at_ms + counted_ms + SESSION_MS - MARGIN_MS
    assert bench.membership.revoke_by_ms == bench.sent_at_ms + counted_ms + REBALANCE_MS - MARGIN_MS


@pytest.mark.parametrize(("after_ms", "most_ms"), [(500, 500), (2 * POLL_MS, POLL_MS)])
def test_parked_time_ends_with_the_wait_and_the_answer(after_ms: int, most_ms: int) -> None:
    bench = a_stable_follower()
    bench.answered(structs.replace(BEATING, waited_ms=60_000), after_ms=after_ms)
    assert bench.membership.deadline_ms == bench.sent_at_ms + most_ms + SESSION_MS - MARGIN_MS


def test_a_heartbeat_answered_with_a_rebalance_still_renews() -> None:
    bench = a_stable_follower()
    bench.now_ms += 2_000
    bench.answered(REBALANCING)
    assert bench.membership.deadline_ms == bench.sent_at_ms + SESSION_MS - MARGIN_MS


def test_an_accepted_commit_renews_and_a_refused_one_does_not() -> None:
    bench = a_stable_follower()
    before_ms = bench.membership.deadline_ms
    commit = CommitOffsets("default", "workers", 1, (OffsetToCommit("t", 0, 5),), "m-1")
    refused = CommitReply(partitions=(PartitionResult("t", 0, ErrorCode.OFFSET_METADATA_TOO_LARGE),))
    bench.membership.on_reply(commit, refused, 3_000, 3_010, 1.0)
    assert bench.membership.deadline_ms == before_ms
    bench.membership.on_reply(commit, CommitReply(partitions=(PartitionResult("t", 0),)), 3_000, 3_010, 1.0)
    assert bench.membership.deadline_ms == 3_000 + SESSION_MS - MARGIN_MS


def test_a_commit_of_an_unknown_member_loses_everything() -> None:
    bench = a_stable_follower()
    commit = CommitOffsets("default", "workers", 1, (), "m-1")
    events = bench.membership.on_reply(commit, CommitReply(ErrorCode.UNKNOWN_MEMBER_ID), 1_500, 1_600, 1.0)
    assert events == [Lost(1, "UNKNOWN_MEMBER_ID", ErrorCode.UNKNOWN_MEMBER_ID)]


def test_a_commit_of_an_old_generation_triggers_a_heartbeat() -> None:
    bench = a_stable_follower()
    bench.answered(BEATING)
    commit = CommitOffsets("default", "workers", 1, (), "m-1")
    refused = CommitReply(ErrorCode.ILLEGAL_GENERATION)
    assert bench.membership.on_reply(commit, refused, bench.now_ms, bench.now_ms, 1.0) == []
    assert bench.pause_ms() == 0


def test_a_sync_does_not_move_the_deadline() -> None:
    bench = a_joined_follower()
    joined_at_ms = bench.sent_at_ms
    bench.answered(synced(), after_ms=2_000)
    assert bench.membership.deadline_ms == joined_at_ms + SESSION_MS - MARGIN_MS


def test_at_the_deadline_everything_is_lost_without_a_server() -> None:
    bench = a_stable_follower()
    deadline_ms = bench.membership.deadline_ms
    assert deadline_ms is not None
    bench.unanswered()
    assert bench.passes(deadline_ms - bench.now_ms - 1) == [Unreachable(bench.sent_at_ms + 100)]
    assert bench.passes(1) == [Lost(1, "deadline")]
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert request.member_id == "m-1"


def test_a_member_that_slept_past_its_deadline_knows_it_first() -> None:
    bench = a_stable_follower()
    assert bench.membership.holds(bench.now_ms)
    assert not bench.membership.holds(bench.now_ms + SESSION_MS)


def test_an_answer_after_a_long_sleep_revives_nothing() -> None:
    bench = a_stable_follower()
    assert bench.answered(BEATING, after_ms=60_000) == [Lost(1, "deadline")]


def reported_while_unanswered(bench: Bench, calls: int) -> list[Event]:
    return [event for _ in range(calls) for event in bench.unanswered()]


def test_unreachable_is_reported_once_and_is_not_lost() -> None:
    bench = a_stable_follower()
    assert bench.unanswered(after_ms=100) == []
    silent_since_ms = bench.now_ms
    assert reported_while_unanswered(bench, calls=8) == [Unreachable(silent_since_ms)]
    assert bench.membership.unreachable_since_ms == silent_since_ms
    assert bench.membership.holds(bench.now_ms)
    assert bench.answered(BEATING) == [Reachable()]


def test_a_failed_call_that_the_next_one_covers_is_not_reported() -> None:
    bench = a_stable_follower()
    for _ in range(5):
        assert bench.unanswered() + bench.answered(BEATING) == []
        assert bench.membership.unreachable_since_ms is None


def test_silence_begins_when_an_answer_is_due() -> None:
    bench = a_stable_follower()
    planned = bench.membership.next_request(bench.now_ms)
    assert planned is not None
    parked_ms = planned.timeout_ms - SESSION_MS // 3  # which is the grace of a heartbeat
    assert bench.unanswered(planned.timeout_ms) == [Unreachable(bench.sent_at_ms + parked_ms)]


def test_an_unavailable_coordinator_counts_as_unreachable() -> None:
    bench = a_stable_follower()
    away = HeartbeatReply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert [type(event) for _ in range(8) for event in bench.answered(away)] == [Unreachable]


def test_a_slow_stop_is_lost_at_the_rebalance_timeout() -> None:
    """The coordinator drops it then (protocol.md §8.3), however well it heartbeats."""
    bench = a_stable_follower()
    bench.answered(BEATING, after_ms=1)
    settled_at_ms = bench.sent_at_ms
    rebalancing = REBALANCING
    while bench.membership.state is not State.UNJOINED:
        bench.answered(rebalancing)
        assert (bench.membership.deadline_ms or 0) <= settled_at_ms + REBALANCE_MS
    assert bench.events == [Lost(1, "deadline")]
    assert bench.now_ms > settled_at_ms + REBALANCE_MS - 2 * POLL_MS


def test_an_idle_member_is_lost_when_a_join_phase_could_end() -> None:
    """A replica that answers for an owner that it cannot reach does not know what that owner does meanwhile."""
    bench = a_stable_follower()
    settled_at_ms = bench.sent_at_ms
    while bench.now_ms < settled_at_ms + REBALANCE_MS - 2 * POLL_MS:
        assert bench.answered(HeartbeatReply(generation_id=1)) == []
    assert bench.membership.deadline_ms == settled_at_ms + REBALANCE_MS - MARGIN_MS
    bench.answered(BEATING)
    assert bench.membership.deadline_ms == bench.sent_at_ms + SESSION_MS - MARGIN_MS


def test_a_join_repeated_after_silence_counts_from_the_first_try() -> None:
    bench = a_newcomer_with_an_id()
    bench.unanswered()
    first_try_ms = bench.sent_at_ms
    bench.answered(joined())
    bench.answered(synced())
    assert bench.membership.deadline_ms == first_try_ms + SESSION_MS - MARGIN_MS


def test_a_heartbeat_follows_a_join_that_renews_nothing() -> None:
    bench = a_stable_follower()
    bench.now_ms += SESSION_MS
    bench.passes(0)
    bench.answered(joined(1))
    assert isinstance(bench.sends(), Heartbeat)
    bench.answered(BEATING)
    heartbeat_at_ms = bench.sent_at_ms
    assert isinstance(bench.sends(), SyncGroup)
    assert bench.answered(synced()) == [Assigned(1, "range", "m-0", False, b"share", fencing_token(1))]
    assert bench.membership.deadline_ms == heartbeat_at_ms + SESSION_MS - MARGIN_MS


def test_a_sync_answered_after_the_deadline_hands_nothing_out() -> None:
    bench = a_joined_follower()
    assert bench.answered(synced(), after_ms=SESSION_MS) == []
    assert not bench.membership.holds(bench.now_ms)
    assert isinstance(bench.sends(), Heartbeat)
    bench.answered(BEATING)
    assert isinstance(bench.sends(), SyncGroup)
    assert bench.answered(synced()) == [Assigned(1, "range", "m-0", False, b"share", fencing_token(1))]
