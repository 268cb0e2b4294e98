"""One owned shard: nothing is answered before it is durable, or after the lease is over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rota.core.group.assignment import AssignmentJob
from rota.core.group.records import ShardAcquired, ShardReleased
from rota.core.group.rows import OffsetRow, SideCommit
from rota.core.group.state import Timer, TimerKind
from rota.core.replica.leases import MOVES
from rota.core.replica.owned_shard import GRACE_MS, LEASE_IS_OVER, NOTHING, PUBLISH_MS, STILL_HERE_MS, OwnedShard, Ready
from rota.core.replica.ports import Answer, SeenMembers
from rota.core.types.consumer import Subscription, encode_subscription
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, JoinGroup, RebalanceGroup
from tests.unit.group.driver import KEY, SESSION_MS, a_commit, a_fetch, a_heartbeat, a_join, a_leave, a_sync
from tests.unit.replica.shards import (
    AN_OFFSET,
    BEAT,
    EPOCH,
    LEASE_ENDS,
    LEASE_MS,
    a_loading_shard,
    a_shard,
    a_shard_with_a_member,
    at,
    commit,
    decide,
    reply_to,
)

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def session_timer(ms: int = SESSION_MS + 200) -> Timer:
    return Timer(TimerKind.SESSION, *KEY, "m", at(ms).wall_ms)


def kinds(owned: OwnedShard) -> list[str]:
    """The kinds of the records in the next batch."""
    return [line.kind for line in owned.take_batch().events]


# --- loading -------------------------------------------------------------------------------------------


def test_a_loaded_shard_first_writes_that_it_is_acquired() -> None:
    owned, ready = a_loading_shard()
    batch = owned.take_batch()

    assert ready.appends
    assert (batch.shard_id, batch.epoch, batch.first_seq, batch.last_seq) == (0, EPOCH, 1, 1)
    (line,) = batch.events
    acquired = {"replica_id": "r", "epoch": EPOCH}
    assert (line.kind, line.at_ms, line.reason, line.payload) == (
        ShardAcquired.kind,
        at(0).wall_ms,
        "it was free",
        acquired,
    )


# --- the commit order ------------------------------------------------------------------------------------


def test_a_reply_waits_until_its_entries_are_durable() -> None:
    owned = a_shard()
    decided = decide(owned, 1, AN_OFFSET)
    assert (decided.appends, decided.replies, owned.is_durable, owned.waiting) == (True, (), False, 1)

    ready = commit(owned, 5)

    assert ready.replies == [(1, Answer(reply_to(ready, 1), revision=2, epoch=EPOCH))]
    assert (owned.is_durable, owned.waiting, owned.durable_seq) == (True, 0, 2)


def test_a_read_waits_for_the_entries_that_it_shows() -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)
    read = decide(owned, 2, a_fetch())
    assert (read.appends, read.replies) == (False, ())

    assert [number for number, _ in commit(owned).replies] == [1, 2]


def test_replies_of_a_later_batch_wait_for_that() -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)
    first = owned.take_batch()
    decide(owned, 2, AN_OFFSET)
    assert owned.has_entries

    assert [number for number, _ in owned.committed(first.last_seq, at(1)).replies] == [1]
    assert (owned.durable_seq, owned.seq, owned.is_durable) == (2, 3, False)
    assert [number for number, _ in commit(owned).replies] == [2]


def test_batches_number_the_entries_without_a_gap() -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)
    decide(owned, 2, AN_OFFSET)
    first = owned.take_batch()
    decide(owned, 3, AN_OFFSET)
    second = owned.take_batch()

    assert [(batch.first_seq, batch.last_seq) for batch in (first, second)] == [(2, 3), (4, 4)]
    assert not owned.has_entries


def test_timers_are_set_once_their_entries_are_durable() -> None:
    owned = a_shard()
    started = decide(owned, 1, a_join(new="m", instance="i"))
    completed = owned.on_timer(started.timers[0], at(200))
    assert (started.timers[0].kind, completed.timers) == (TimerKind.JOIN, ())

    assert [timer.kind for timer in commit(owned).timers] == [TimerKind.SYNC, TimerKind.SESSION]


def test_members_that_are_gone_are_named_once_that_is_durable() -> None:
    owned = a_shard_with_a_member(seen=SeenMembers({}, None))
    left = decide(owned, 3, a_leave("m"), 300)
    assert left.gone == ()

    assert commit(owned).gone == [(*KEY, "m")]


def test_a_member_that_expires_is_named_as_gone() -> None:
    """No call is answered then, and no timer is set."""
    owned = a_shard_with_a_member(seen=SeenMembers({}, None))
    member = owned.shard.groups[KEY].members["m"]
    timer = Timer(TimerKind.SESSION, *KEY, "m", member.session_armed_ms or 0)
    late = at(200 + SESSION_MS)
    owned.lease_until_ms = late.monotonic_ms + 1
    assert owned.on_timer(timer, late).asks == timer
    owned.others_answered(timer, None, late)

    assert commit(owned, 200 + SESSION_MS).gone == [(*KEY, "m")]


# --- a join phase under way ------------------------------------------------------------------------------


def test_a_join_phase_that_starts_is_not_waited_for() -> None:
    owned = a_shard_with_a_member()
    durable_seq = owned.durable_seq
    started = decide(owned, 3, a_join(new="n", instance="j"), 300)
    beat = decide(owned, 4, BEAT, 300)

    assert [(seq, entry.record.kind) for seq, entry in started.unsettled] == [
        (durable_seq + 1, "member_joined"),
        (durable_seq + 2, "rebalance_started"),
    ]
    assert (started.appends, [timer.kind for timer in started.timers]) == (False, [TimerKind.JOIN])
    assert beat.replies[0][1].revision == durable_seq
    assert reply_to(beat, 4).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_end_of_a_join_phase_appends_all_of_it() -> None:
    owned = a_shard_with_a_member()
    decide(owned, 3, a_join(new="n", instance="j"), 300)
    completed = decide(owned, 4, a_join("m", instance="i"), 400)
    assert (completed.appends, completed.unsettled, completed.replies) == (True, (), ())

    batch = owned.take_batch()

    assert [line.kind for line in batch.events] == [
        "member_joined",
        "rebalance_started",
        "generation_completed",
    ]
    assert [number for number, _ in owned.committed(batch.last_seq, at(500)).replies] == [4, 3]


def test_a_join_phase_that_starts_waits_for_what_was_decided_before() -> None:
    owned = a_shard_with_a_member()
    decide(owned, 3, a_commit("m", 1), 300)
    offset = owned.take_batch()
    started = decide(owned, 4, a_join(new="n", instance="j"), 300)
    assert (started.timers, started.unsettled) == ((), ())

    ready = owned.committed(offset.last_seq, at(400))

    assert [entry.record.kind for _, entry in ready.unsettled] == ["member_joined", "rebalance_started"]
    assert [timer.kind for timer in ready.timers] == [TimerKind.JOIN]
    assert owned.has_entries


def test_a_rebalance_that_an_administrator_asked_for_is_waited_for() -> None:
    owned = a_shard_with_a_member()
    decided = decide(owned, 3, RebalanceGroup(*KEY), 300)
    assert (decided.appends, decided.replies) == (True, ())

    assert [number for number, _ in commit(owned, 300).replies] == [3]


# --- parked calls ---------------------------------------------------------------------------------------


def test_a_call_without_a_reply_is_parked_for_as_long_as_it_asks() -> None:
    owned = a_shard()

    assert decide(owned, 1, a_join(new="m", instance="i")).parks_ms == 30_000
    assert decide(a_shard(), 1, AN_OFFSET).parks_ms is None
    assert 1 in owned._waiting


def test_a_parked_call_is_answered_when_its_time_is_over() -> None:
    owned = a_shard_with_a_member()
    decide(owned, 3, a_heartbeat("m", 1, wait_ms=500, instance="i"), 300)

    ready = owned.unpark(3, at(800))

    assert reply_to(ready, 3).error is ErrorCode.NONE
    assert 3 not in owned._waiting
    assert owned.unpark(3, at(900)) is NOTHING


def test_a_client_that_is_gone_gets_no_reply() -> None:
    owned = a_shard_with_a_member()
    decide(owned, 3, a_heartbeat("m", 1, wait_ms=500, instance="i"), 300)

    ready = owned.hang_up(3, at(800))

    assert (list(ready.replies), owned.waiting) == ([], 0)
    assert owned.hang_up(3, at(800)) is NOTHING
    assert decide(owned, 4, a_leave("m"), 900).appends


# --- timers ----------------------------------------------------------------------------------------------


def test_a_session_that_is_over_expires_its_member() -> None:
    owned = a_shard_with_a_member()
    owned.lease_until_ms = 2**40

    owned.on_timer(session_timer(), at(SESSION_MS + 200))
    assert owned.others_answered(session_timer(), None, at(SESSION_MS + 230)).appends
    assert "member_expired" in kinds(owned)


def test_a_heartbeat_that_is_read_before_the_expiry_counts() -> None:
    owned = a_shard_with_a_member()
    owned.lease_until_ms = 2**40
    owned.on_timer(session_timer(), at(SESSION_MS + 200))
    decide(owned, 9, Heartbeat(*KEY, "m", 1), SESSION_MS + 210)

    ready = owned.others_answered(session_timer(), None, at(SESSION_MS + 230))

    assert not ready.appends
    assert [timer.at_ms for timer in ready.timers] == [at(2 * SESSION_MS + 210).wall_ms]


@pytest.mark.parametrize("seen_ms_ago", [None, SESSION_MS + 90])
def test_a_slow_process_reads_again_before_a_later_session_ends(seen_ms_ago: int | None) -> None:
    """It took longer than a session to read what it had received: more has arrived since then."""
    owned = a_shard_with_a_member(seen=SeenMembers({}, None))
    owned.lease_until_ms = 2**40
    owned.on_timer(session_timer(), at(SESSION_MS + 200))
    if seen_ms_ago is None:
        decide(owned, 9, Heartbeat(*KEY, "m", 1), SESSION_MS + 210)

    late = at(2 * SESSION_MS + 300)
    assert owned.others_answered(session_timer(), seen_ms_ago, late) == Ready(asks=session_timer())
    assert owned.others_answered(session_timer(), None, late).appends


def test_a_rebalance_reads_what_has_arrived_before_it_removes() -> None:
    owned = a_shard_with_a_member()
    owned.lease_until_ms = 2**40
    group = owned.shard.groups[KEY]
    group.join_deadline_ms, group.sync_deadline_ms = at(500).wall_ms, at(700).wall_ms
    group.pending["newcomer"] = at(900).wall_ms

    asked = [
        owned.on_timer(Timer(kind, *KEY, "", at(due_ms).wall_ms), at(due_ms)).asks is not None
        for kind, due_ms in ((TimerKind.JOIN, 500), (TimerKind.JOIN, 499), (TimerKind.SYNC, 700), (TimerKind.SYNC, 699))
    ]

    assert asked == [True, False, True, False]


def test_other_replicas_are_asked_before_a_member_expires() -> None:
    owned = a_shard_with_a_member(seen=SeenMembers({}, None))
    owned.lease_until_ms = 2**40

    assert owned.on_timer(session_timer(), at(SESSION_MS + 200)) == Ready(asks=session_timer())
    assert owned.on_timer(session_timer(), at(SESSION_MS - 200)).asks is None, "its session is not over"


def test_a_member_that_another_replica_has_seen_in_time_lives_on() -> None:
    owned = a_shard_with_a_member(seen=SeenMembers({}, None))
    owned.lease_until_ms = 2**40
    now = at(SESSION_MS + 200)

    ready = owned.others_answered(session_timer(), 400, now)

    assert not ready.appends
    assert [timer.at_ms for timer in ready.timers] == [now.wall_ms - 400 + SESSION_MS]


def test_a_member_that_another_replica_saw_too_long_ago_expires() -> None:
    owned = a_shard_with_a_member(seen=SeenMembers({}, None))
    owned.lease_until_ms = 2**40

    assert owned.others_answered(session_timer(), SESSION_MS, at(SESSION_MS + 200)).appends


def test_an_assignment_by_the_server_is_left_to_the_shell() -> None:
    timer = Timer(TimerKind.ASSIGN, *KEY, "", at(0).wall_ms)

    assert a_shard().on_timer(timer, at(0)) == Ready(assigns=timer)


# --- taking over ------------------------------------------------------------------------------------------


def taken_over(seen: SeenMembers) -> OwnedShard:
    """The next owner of a shard with a member, with these heartbeats in the liveness store."""
    image = a_shard_with_a_member().shard.image()
    owned, _ = a_loading_shard(seen=seen, image=image)
    return owned


def session_left_ms(owned: OwnedShard) -> int:
    deadline_ms = owned.shard.groups[KEY].members["m"].session_deadline_ms
    assert deadline_ms is not None
    return deadline_ms - at(0).wall_ms


def test_a_member_has_a_session_from_the_last_publication() -> None:
    """Up to a round after it, the former owner may have answered one more heartbeat."""
    owned = taken_over(SeenMembers({(*KEY, "m"): 9_000}, 3_000))

    assert session_left_ms(owned) == SESSION_MS - 3_000 + STILL_HERE_MS + 2 * PUBLISH_MS


def test_a_member_keeps_what_the_last_owner_was_silent_for() -> None:
    """For so long the store did not receive heartbeats, whether or not the member sent them."""
    long_silent = taken_over(SeenMembers({(*KEY, "m"): 4_000}, 2_500))

    assert session_left_ms(long_silent) == SESSION_MS - 4_000 + 2_500 + GRACE_MS


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(SeenMembers({(*KEY, "m"): 4_000}, None), id="the store does not know when the last owner wrote"),
        pytest.param(SeenMembers({}, 300), id="the store does not know the member"),
    ],
)
def test_a_member_unknown_to_the_store_has_a_full_session(seen: SeenMembers) -> None:
    assert session_left_ms(taken_over(seen)) == SESSION_MS


def test_timers_of_full_and_of_shortened_sessions_are_set() -> None:
    image = a_shard_with_a_member().shard.image()
    owned, _ = a_loading_shard(seen=SeenMembers({(*KEY, "m"): 4_000}, 300), image=image)

    assert at(SESSION_MS).wall_ms in [timer.at_ms for timer in commit(owned).timers]


# --- sweeping, side commits ---------------------------------------------------------------------------------


def test_a_group_that_holds_nothing_is_deleted_by_a_sweep() -> None:
    owned = a_shard_with_a_member()
    decide(owned, 3, a_leave("m"), 300)
    commit(owned, 300)
    assert not owned.sweep(at(400), at(300).wall_ms).appends, "it has been empty for too short a time"

    assert owned.sweep(at(400), at(301).wall_ms).appends
    assert kinds(owned) == ["group_deleted"]


def test_a_closed_shard_is_not_swept() -> None:
    owned = a_shard_with_a_member()
    decide(owned, 3, a_leave("m"), 300)
    commit(owned, 300)
    owned.close("it moves", at(400))

    assert owned.sweep(at(400), at(301).wall_ms) is NOTHING
    assert kinds(owned) == ["shard_released"], "no line follows it"


def test_what_a_users_transaction_has_committed_is_taken_in() -> None:
    owned = a_shard_with_a_member()
    row = OffsetRow(*KEY, "t", 0, 42, None, "", at(0).wall_ms)

    ready = owned.take_in([SideCommit(0, 7, *KEY, "t", 0, "m", row)], at(300))

    assert ready.appends
    assert owned.shard.groups[KEY].offsets[("t", 0)].offset == 42


# --- the end of a lease, closing and dropping -----------------------------------------------------------------


def test_nothing_is_decided_once_the_lease_is_over() -> None:
    owned = a_shard_with_a_member()
    last = at(LEASE_MS - 1)
    assert owned.may_answer(last)
    assert not owned.may_answer(LEASE_ENDS)
    seq = owned.seq

    refused = reply_to(owned.submit(3, AN_OFFSET, LEASE_ENDS), 3)

    assert (refused.error, refused.detail) == (UNAVAILABLE, LEASE_IS_OVER)
    assert owned.on_timer(session_timer(), LEASE_ENDS) is NOTHING
    assert owned.others_answered(session_timer(), None, LEASE_ENDS) is NOTHING
    assert owned.sweep(LEASE_ENDS) is NOTHING
    assert owned.take_in([], LEASE_ENDS) is NOTHING
    assert owned.close("it moves", LEASE_ENDS) is NOTHING
    assert (owned.seq, owned.waiting, owned.is_closed) == (seq, 0, True)


def test_a_decided_call_is_refused_once_the_lease_is_over() -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)

    refused = reply_to(commit(owned, LEASE_MS), 1)

    assert (refused.error, refused.detail) == (UNAVAILABLE, LEASE_IS_OVER)


def test_a_closed_shard_answers_only_what_it_has_decided() -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)
    assert owned.close("it moves", at(1)).appends

    refused = reply_to(decide(owned, 2, AN_OFFSET), 2)

    assert (refused.error, refused.detail) == (ErrorCode.NOT_COORDINATOR, "the shard moves to another replica")
    assert owned.on_timer(session_timer(), at(1)) is NOTHING
    assert owned.take_in([], at(1)) is NOTHING
    batch = owned.take_batch()
    assert reply_to(owned.committed(batch.last_seq, at(2)), 1).error is ErrorCode.NONE
    last = batch.events[-1]
    assert (last.kind, last.at_ms, last.reason) == (ShardReleased.kind, at(1).wall_ms, "it moves")


@pytest.mark.parametrize("undecided", [False, True])
def test_a_dropped_shard_refuses_each_waiting_call_once(undecided: bool) -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)
    decide(owned, 2, a_join(new="m", instance="i"))

    ready = owned.drop("the store is away", undecided=undecided)

    assert [(number, a.reply.error, a.reply.detail, a.undecided) for number, a in ready.replies] == [
        (1, UNAVAILABLE, "the store is away", undecided),
        (2, UNAVAILABLE, "the store is away", undecided),
    ]
    assert owned.drop("again") is NOTHING
    assert (owned.waiting, owned.has_entries) == (0, False)


def test_a_decided_call_is_not_sent_to_the_next_owner() -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)

    (dropped,) = owned.drop(MOVES).replies

    assert (dropped[1].reply.error, dropped[1].undecided) == (UNAVAILABLE, False)


def test_a_dropped_shard_does_nothing_more() -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)
    parked: JoinGroup = a_join(new="m", instance="i")
    decide(owned, 2, parked)
    batch = owned.take_batch()
    owned.drop("lost")

    assert owned.committed(batch.last_seq, at(1)) is NOTHING
    assert owned.unpark(2, at(1)) is NOTHING
    assert owned.hang_up(2, at(1)) is NOTHING
    assert not owned.may_answer(at(1))
    assert reply_to(decide(owned, 3, AN_OFFSET), 3).error is UNAVAILABLE
    assert owned.try_heartbeat(4, BEAT, at(1)) is None


def test_observers_see_decisions_before_they_are_durable() -> None:
    owned = a_shard()

    decided = decide(owned, 1, AN_OFFSET).decided

    assert decided is not None
    assert [entry.record.kind for entry in decided.records] == ["offsets_committed"]
    read = decide(a_shard(), 1, a_sync("stranger", 1)).decided
    assert read is not None
    assert read.records == []


# --- assigning for the members ----------------------------------------------------------------------------


def reads(topic: str) -> JoinGroup:
    """A join of a consumer that the server assigns to."""
    listed = (("server:range", encode_subscription(Subscription(topics=(topic,)))),)
    return a_join(instance="i", protocols=listed, protocol_type="consumer")


def a_shard_that_assigns() -> tuple[OwnedShard, AssignmentJob]:
    """A generation of one member, with partitions of the topic `t` that the server assigns."""
    owned = a_shard()
    for timer in decide(owned, 1, replace(reads("t"), new_member_id="m")).timers:
        owned.on_timer(timer, at(200))
    commit(owned, 200)
    job = owned.shard.assignment_job(*KEY)
    assert job is not None
    return owned, job


SHARES = {"m": b"share"}


def test_a_durable_assignment_by_the_server_answers_the_syncs() -> None:
    owned, job = a_shard_that_assigns()
    decide(owned, 3, a_sync("m", 1, "i"), 300)

    ready = owned.finish_job(job, SHARES, at(300))

    assert ready is not None
    assert (ready.appends, list(ready.replies)) == (True, [])
    assert owned.shard.groups[KEY].state_since_ms == at(300).wall_ms
    assert reply_to(commit(owned, 300), 3).assignment == b"share"


def test_no_assignment_is_taken_once_closed_or_expired() -> None:
    owned, job = a_shard_that_assigns()
    assert owned.finish_job(job, SHARES, LEASE_ENDS) is None
    owned.close("it moves", at(300))

    assert owned.finish_job(job, SHARES, at(300)) is None
