"""State that outlives a restart, a deletion or a call: deadlines, generations and parked calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.group.rows import GroupRow
from rota.core.group.state import Timer, TimerKind
from rota.core.types import TopicFacts
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    DELAY_MS,
    KEY,
    NAMESPACE,
    REBALANCE_MS,
    SESSION_MS,
    Core,
    a_commit,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_tombstone,
    an_empty_group,
    an_empty_shard,
)
from tests.unit.group.served import (
    SERVER_STICKY,
    TOPICS,
    a_served_group,
    asks_for_assignment,
    candidates,
    finish,
    hand_in,
    the_job,
)

ITEM = m.OffsetToCommit("t", 0, 1)


# --- a restart ----------------------------------------------------------------------------------------


def test_a_restart_gives_an_unassigned_generation_its_whole_time() -> None:
    core = a_group_awaiting_its_assignment()
    core.advance(5_000)
    core.restart()

    assert core.group.sync_deadline_ms == core.now_ms + REBALANCE_MS
    assert list(core.group.pending_sync) == ["m0", "m1"]


def test_a_restart_gives_a_join_phase_its_whole_time() -> None:
    core = a_stable_group()
    core.ask(a_leave("m0"))
    core.advance(5_000)
    core.restart()

    assert core.group.state == "PreparingRebalance"
    assert core.group.join_deadline_ms == core.now_ms + REBALANCE_MS
    assert core.group.rebalance_started_ms == core.now_ms


def test_a_restart_has_the_topics_of_a_stable_group_checked() -> None:
    core = a_served_group()
    finish(core)
    core.restart()

    assert asks_for_assignment(core)


# --- the next generation -------------------------------------------------------------------------------


def rejoin(core: Core, metadata: bytes) -> None:
    for member_id in list(core.group.members):
        core.send(a_join(member_id, protocols=(("range", metadata),)))


def test_a_leader_that_rejoins_leads_before_an_earlier_member() -> None:
    core = a_stable_group(members=3)
    core.ask(m.RebalanceGroup(*KEY, step_down=True))
    rejoin(core, b"second")
    assert (core.generation_id, core.leader_id) == (2, "m1")
    rejoin(core, b"third")

    assert (core.generation_id, core.leader_id) == (3, "m1")


@pytest.mark.parametrize(
    ("preferred", "chosen"),
    [("abb", "b"), ("baa", "a"), ("ba", "b"), ("ab", "a"), ("bbaaa", "a")],
)
def test_most_members_choose_the_protocol_and_the_earliest_a_tie(preferred: str, chosen: str) -> None:
    core = an_empty_shard()
    for number, first in enumerate(preferred):
        listed = ((first, b""), ("b" if first == "a" else "a", b""))
        core.send(a_join(new=f"m{number}", instance=f"i{number}", protocols=listed))
    core.let_the_join_phase_end()

    assert core.group.protocol_name == chosen


def test_a_newcomer_that_commits_is_no_zombie() -> None:
    core = a_stable_group()
    core.ask(a_join(new="late"))
    core.send(a_join("late"))
    assert core.ask(a_commit("late", 1)).error is ErrorCode.ILLEGAL_GENERATION

    assert "request_fenced" not in core.kinds()


def test_progress_alone_writes_no_row_of_the_group() -> None:
    core = a_stable_group(members=1)
    core.shard.handle(a_commit("m0", 1), 99, core.now_ms)
    changes = core.shard.rows()

    assert (changes.groups, changes.members, len(changes.offsets)) == ([], [], 1)


def test_a_timer_of_an_earlier_join_phase_ends_none() -> None:
    core = a_group_in_a_join_phase(members=2)
    deadline_ms = core.group.join_deadline_ms
    assert deadline_ms is not None
    stale = Timer(TimerKind.JOIN, *KEY, "", deadline_ms - 1)

    assert core.shard.on_timer(stale, core.now_ms).records == []
    assert a_stable_group().shard.on_timer(stale, core.now_ms).records == []


def test_the_initial_delay_is_extended_by_its_last_millisecond() -> None:
    core = an_empty_shard()
    core.send(a_join(new="m0", instance="i0", rebalance_ms=DELAY_MS + 1))
    core.advance(DELAY_MS - 1)
    core.send(a_join(new="m1", instance="i1", rebalance_ms=DELAY_MS + 1))
    core.advance(1)
    assert core.group.state == "PreparingRebalance"
    core.advance(1)

    assert core.group.state == "CompletingRebalance"


# --- assigning by the server --------------------------------------------------------------------------


def test_a_job_is_current_until_the_group_moves_on() -> None:
    core = a_served_group()
    job = the_job(core)
    assert core.shard.is_current(job)
    core.ask(a_leave("m1"))
    core.send(a_join("m0", protocols=SERVER_STICKY, protocol_type="consumer"))

    assert not core.shard.is_current(job)
    assert not an_empty_shard().shard.is_current(job)


def test_a_job_names_members_with_their_instance_ids() -> None:
    core = an_empty_shard()
    core.send(a_join(new="m0", instance="i0", protocols=SERVER_STICKY, protocol_type="consumer"))
    core.let_the_join_phase_end()

    (member,) = the_job(core).generation.members
    assert (member.member_id, member.group_instance_id) == ("m0", "i0")


def test_a_restarted_election_leaves_nothing_to_assign() -> None:
    core = candidates()
    core.restart()

    assert not asks_for_assignment(core)
    assert core.group.state == "Stable"
    assert core.shard.assignment_job(*KEY) is None


def test_no_member_is_named_for_acts_of_the_server() -> None:
    failed, changed = a_served_group(), a_served_group()
    hand_in(failed, "no such topic")
    finish(changed)
    finish(changed, topics={"documents": TopicFacts(1)})

    assert (failed.group.rebalance_reason, failed.group.rebalance_by) == (
        "the server could not assign: no such topic",
        "",
    )
    assert (changed.group.rebalance_reason, changed.group.rebalance_by) == ("the topics changed: documents 4 → 1", "")


def test_a_repeated_assignment_without_a_member_changes_nothing() -> None:
    core = a_served_group()
    shares = {"m0": the_job(core).side.assign(the_job(core).generation, TOPICS)["m0"]}
    for _ in range(2):
        hand_in(core, shares)

    assert (core.generation_id, core.group.members["m1"].assignment) == (1, b"")


def test_sessions_that_begin_again_with_an_assignment_are_shared() -> None:
    core = a_served_group()
    call = core.send(m.SyncGroup(*KEY, "m0", 1))
    core.shard.share_sessions({}, 0, core.now_ms)
    core.advance(100)
    finish(core)

    assert core.answer(call).error is ErrorCode.NONE
    assert core.shard.take_seen() == {(*KEY, "m0"): core.now_ms}


def test_sessions_that_the_end_of_a_join_phase_renews_are_shared() -> None:
    core = a_group_in_its_initial_delay()
    core.shard.share_sessions({}, 0, core.now_ms)
    core.let_the_join_phase_end()

    assert core.shard.take_seen() == dict.fromkeys([(*KEY, "m0"), (*KEY, "m1")], core.now_ms)


# --- calls that change --------------------------------------------------------------------------------


def test_a_session_that_an_unparked_call_renews_is_shared() -> None:
    core = a_group_in_a_join_phase(members=3)
    call = core.send(a_join("m0"))
    core.shard.share_sessions({}, 0, core.now_ms)
    core.advance(700)
    core.wait_is_over(call)

    assert core.shard.take_seen() == {(*KEY, "m0"): core.now_ms}


def test_an_answered_call_unparks_no_other_of_its_member() -> None:
    core = a_stable_group()
    answered = core.send(a_heartbeat("m0", 1))
    parked = core.send(a_heartbeat("m0", 1, wait_ms=1_000))
    result = core.shard.unpark(core.requests[answered], answered, core.now_ms, answer=True)

    assert result.replies == []
    assert core.group.members["m0"].heartbeat_call == parked


def test_a_void_pending_id_moves_no_group_at_rest() -> None:
    core = an_empty_group()
    generation_id = core.generation_id
    core.ask(a_join(new="late"))
    core.advance(SESSION_MS)

    assert (core.group.pending, core.generation_id, core.group.state) == ({}, generation_id, "Empty")


# --- generations outlive groups -----------------------------------------------------------------------


def test_the_generation_of_a_deleted_group_goes_on() -> None:
    core = an_empty_group()
    generation_id = core.generation_id
    core.ask(m.DeleteGroup(*KEY))
    core.ask(a_commit("", -1))

    assert core.ask(m.DescribeGroup(*KEY)).generation_id == generation_id


def test_a_deleted_group_leaves_a_row_with_its_generation_and_its_end() -> None:
    core = an_empty_group()
    generation_id = core.generation_id
    core.ask(m.DeleteGroup(*KEY))

    (row,) = core.image().groups
    assert row == replace(a_tombstone(generation_id), state_since_ms=core.now_ms, rebalance_reason=row.rebalance_reason)
    assert row.rebalance_reason == "deleted on request; no members since Thu, 01 Jan 1970 00:00:01 GMT: m0 left"


def test_a_loaded_group_is_not_written_again_with_progress() -> None:
    core = a_stable_group(members=1)
    core.restart()
    core.shard.handle(a_commit("m0", 1), 99, core.now_ms)

    assert core.shard.rows().groups == []


def test_an_image_holds_all_rows_as_of_an_entry() -> None:
    core = a_stable_group(members=1)
    core.ask(m.PutTopic(NAMESPACE, "u", 3))
    image = core.shard.image(7)

    assert (image.last_seq, core.shard.image().last_seq) == (7, 0)
    assert [(row.topic, row.revision) for row in image.topics] == [("u", 1)]


def test_a_deleted_group_is_named_once_in_its_transaction() -> None:
    core = an_empty_group()
    core.shard.handle(m.DeleteGroup(*KEY), 99, core.now_ms)

    assert [row.state for row in core.shard.rows().groups] == ["Dead"]


def test_an_empty_group_has_no_protocol_in_its_row() -> None:
    (row,) = an_empty_group().image().groups

    assert (row.state, row.protocol_name, row.leader_id) == ("Empty", None, None)


def test_the_row_of_a_group_with_only_progress_has_no_generation() -> None:
    core = an_empty_shard()
    core.ask(a_commit("", -1))

    assert core.image().groups == (GroupRow(*KEY, "Empty", 0, 0, None, None, None, core.now_ms, "", ""),)


def test_only_an_administrator_makes_a_group_by_committing() -> None:
    core = an_empty_shard()

    assert core.ask(m.CommitOffsets(*KEY, 0, (ITEM,))).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert core.shard.groups == {}


# --- texts of a mismatch ------------------------------------------------------------------------------


HAS = "group 'g' has the protocol type 'worker' (Connect workers)"
LIST = f"{HAS}, and all its members list the protocol 'range'; this member offers the protocols"
FIVE = tuple((f"p{number}", b"") for number in range(5))
LONG = (("p" * 80, b""), ("q" * 81, b""))


@pytest.mark.parametrize(
    ("join", "details"),
    [
        (a_join(new="x", protocol_type=""), ["a join needs a protocol type and at least one protocol"]),
        (
            a_join(new="x", protocol_type="mine"),
            [
                f"{HAS} and the protocol 'range'",
                "this member offers the protocol 'range' of the protocol type 'mine'",
                "use another group name",
            ],
        ),
        (
            a_join(new="x", protocols=FIVE),
            [*f"{LIST} 'p0', 'p1', 'p2', 'p3', 'p4'".split("; "), "list a protocol that all members list"],
        ),
        (
            a_join(new="x", protocols=LONG),
            [*f"{LIST} '{'p' * 80}', '{'q' * 80}…'".split("; "), "list a protocol that all members list"],
        ),
    ],
)
def test_a_join_that_does_not_fit_names_the_protocols_of_both(join: m.JoinGroup, details: list[str]) -> None:
    reply = a_stable_group().ask(join)

    assert (reply.error, reply.detail.split("; ")) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, details)
