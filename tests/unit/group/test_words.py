"""The texts of replies and journal lines, word for word: readers of the journal and of logs act on them."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from rota.core.group.records import (
    AssignmentFailed,
    AssignmentSynced,
    LeaderChanged,
    MemberExpired,
    MemberLeft,
    MemberRemoved,
    RebalanceStarted,
)
from rota.protocol import messages as m
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from tests.unit.group.driver import (
    KEY,
    LIMITS,
    SESSION_MS,
    a_fetch,
    a_group_awaiting_its_assignment,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_group,
    an_empty_shard,
)

REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS


# --- members that go -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by_admin", "line"), [(False, MemberLeft), (True, MemberRemoved)])
def test_a_leave_and_a_removal_have_lines_of_their_own(by_admin: bool, line: type[MemberLeft | MemberRemoved]) -> None:
    core = a_stable_group(static=1)
    leaving = m.LeavingMember("", "i0", "done")
    reply = core.ask(m.LeaveGroup(*KEY, (leaving,), by_admin))

    cause = Cause.MEMBER_REMOVED if by_admin else Cause.MEMBER_LEFT
    assert core.last(line.kind) == line("m0", "i0", "done", cause)
    assert reply == m.LeaveReply(members=(m.LeftMember("", "i0", ErrorCode.NONE),))
    assert core.group.rebalance_reason == ("i0 was removed" if by_admin else "i0 left")
    assert core.group.rebalance_by == "i0"


def test_several_that_leave_are_named_up_to_three() -> None:
    core = a_stable_group(members=5)
    core.ask(a_leave("m0", "m1", "m2", "m3"))

    assert (core.group.rebalance_reason, core.group.rebalance_by) == ("m0, m1, m2 and others left", "")


def test_a_silent_member_is_expired_with_its_timeout() -> None:
    core = a_stable_group(static=1)
    core.send(a_heartbeat("m1", 1, wait_ms=1))
    core.advance(SESSION_MS // 2)
    core.ask(a_heartbeat("m1", 1))
    core.advance(SESSION_MS // 2)

    why = f"no heartbeat within its session timeout of {SESSION_MS} ms"
    assert core.last("member_expired") == MemberExpired("m0", "i0", why, Cause.MEMBER_EXPIRED)
    assert (core.group.rebalance_reason, core.group.rebalance_by) == (f"member m0 expired: {why}", "m0")


@pytest.mark.parametrize(("late", "by"), [(1, "m0"), (2, "")])
def test_members_that_do_not_sync_in_time_are_expired(late: int, by: str) -> None:
    core = a_group_awaiting_its_assignment(members=3, static=1)
    for number in range(late, 3):
        core.send(a_sync(f"m{number}", 1))
    while core.group.state == "CompletingRebalance":
        for member_id in core.group.pending_sync:
            core.ask(a_heartbeat(member_id, 1))
        core.advance(1_000)

    why = "did not sync within the rebalance timeout"
    cause = Cause.SYNC_TIMEOUT
    gone = [MemberExpired("m0", "i0", why, cause), MemberExpired("m1", None, why, cause)][:late]
    assert [e.record for e in core.journal if isinstance(e.record, MemberExpired)] == gone
    assert core.group.rebalance_reason == f"{late} of the members did not sync within the rebalance timeout"
    assert core.group.rebalance_by == by


def test_a_static_member_without_room_is_removed_by_instance_id() -> None:
    core = a_stable_group(members=2, static=1, limits=dataclasses.replace(LIMITS, group_max_size=2))
    core.send(a_join("m1", protocols=(("range", b"changed"),)))
    core.ask(a_join(new="third"))
    core.send(a_join("third"))

    reply = core.ask(a_join("m0", instance="i0"))

    assert (reply.error, reply.detail) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "the group has 2 members")
    assert core.last("member_removed") == MemberRemoved("m0", "i0", "the group is full", Cause.GROUP_FULL)


# --- joins ------------------------------------------------------------------------------------------------


def test_a_change_has_a_reason_and_a_read_has_none() -> None:
    core = a_stable_group()

    assert core.shard.handle(a_leave("m0"), 98, core.now_ms).reason == "m0 left"
    assert core.shard.handle(a_fetch(), 99, core.now_ms).reason == ""


@pytest.mark.parametrize(
    ("join", "reason", "cause"),
    [
        (a_join("m0"), "leader m0 joined again", "leader_rejoined"),
        (a_join("m1", protocols=(("range", b"x"),)), "member m1 changed its metadata", "metadata_changed"),
        (
            replace(a_join("m0"), reason="new topics"),
            "leader m0 joined again; client reason: new topics",
            "leader_rejoined",
        ),
        (
            replace(a_join("m0"), reason="the topics changed: t"),
            "leader m0 joined again; client reason: the topics changed: t",
            "topics_changed",
        ),
    ],
)
def test_a_join_that_starts_a_rebalance_says_why(join: m.JoinGroup, reason: str, cause: str) -> None:
    core = a_stable_group()
    core.send(join)

    assert core.last("rebalance_started") == RebalanceStarted(reason, join.member_id, "Stable", cause)


def test_new_metadata_counts_from_the_next_generation_on() -> None:
    core = a_stable_group(members=3)
    core.send(a_join("m1", protocols=(("range", b"x"),)))

    assert core.last("member_updated").settle is False
    core.restart()
    assert core.group.members["m1"].image.metadata_for("range") == b"", "the join phase is forgotten"


def test_metadata_changed_before_the_assignment_is_the_reason() -> None:
    core = a_group_awaiting_its_assignment()
    core.send(a_join("m1", protocols=(("range", b"x"),)))

    assert core.group.rebalance_reason == "member m1 changed its metadata while the assignment was awaited"


def test_a_static_member_that_returns_early_is_the_reason() -> None:
    core = a_group_awaiting_its_assignment(static=1)
    core.send(a_join(new="fresh", instance="i0"))

    assert (core.group.rebalance_reason, core.group.rebalance_by) == ("static member i0 came back as fresh", "fresh")


def test_the_new_leader_says_which_one_it_follows() -> None:
    core = a_stable_group()
    core.ask(a_leave("m0"))
    core.send(a_join("m1"))

    assert core.last("leader_changed") == LeaderChanged("", "m1", "m0 left", Cause.MEMBER_LEFT)


# --- syncs ------------------------------------------------------------------------------------------------


def test_a_leader_may_assign_anew_at_once() -> None:
    core = a_group_awaiting_its_assignment(members=1)
    core.ask(a_sync("m0", 1, m0=b"first"))
    core.ask(a_sync("m0", 1, m0=b"second"))

    assert (core.generation_id, core.group.members["m0"].assignment) == (2, b"second")


def test_the_leaders_assignment_is_one_line_without_strangers() -> None:
    core = a_group_awaiting_its_assignment()
    core.send(a_sync("m0", 1, m0=b"a", stranger=b"b"))

    assert core.last("assignment_synced") == AssignmentSynced(1, "m0", (("m0", b"a"),), False, "")
    assert core.ask(a_sync("m1", 1)) == m.SyncReply(
        generation_id=1, protocol_type="worker", protocol_name="range", fencing_token=fencing_token(1)
    )


def test_a_resync_is_a_line_with_its_own_generation() -> None:
    core = a_stable_group()
    core.ask(a_sync("m0", 1, m0=b"m1", m1=b"m0"))

    line = AssignmentSynced(2, "m0", (("m0", b"m1"), ("m1", b"m0")), True, "the leader assigned anew", "resync", "m0")
    assert core.last("assignment_synced") == line


def test_a_refused_resync_names_the_member_that_is_gone() -> None:
    core = a_stable_group(static=2)
    core.send(a_join(new="fresh", instance="i1"))
    reply = core.ask(a_sync("m0", 1, "i0", m0=b"x", m1=b"y"))

    why = "leader m0 assigned to m1, which is no member any more"
    assert reply == m.SyncReply(REBALANCING, why)
    assert (core.group.rebalance_reason, core.group.rebalance_by) == (why, "m0")


def test_a_leader_that_cannot_assign_says_so_to_all() -> None:
    core = a_group_awaiting_its_assignment()
    waiting = core.send(a_sync("m1", 1))
    reply = core.ask(replace(a_sync("m0", 1), leader_error="no topic"))

    assert reply == core.answer(waiting) == m.SyncReply(ErrorCode.ASSIGNMENT_FAILED, "no topic")
    assert core.last("assignment_failed") == AssignmentFailed(1, "m0", "no topic")
    assert (core.group.rebalance_reason, core.group.rebalance_by) == ("leader m0 could not assign: no topic", "m0")


# --- heartbeats -------------------------------------------------------------------------------------------------


# --- administrators, and names that are not there -----------------------------------------------------------------


def test_a_group_that_cannot_be_rebalanced_says_why() -> None:
    no_members = an_empty_group().ask(m.RebalanceGroup(*KEY))
    fresh = an_empty_shard()
    fresh.send(a_join(new="m0", instance="i0"))
    no_leader = fresh.ask(m.RebalanceGroup(*KEY, step_down=True))

    assert no_members == m.RebalanceReply(ErrorCode.INVALID_REQUEST, "the group has no members")
    assert no_leader == m.RebalanceReply(ErrorCode.INVALID_REQUEST, "the group has no leader")


@pytest.mark.parametrize(
    ("request_", "reason", "cause"),
    [
        (m.RebalanceGroup(*KEY), "a rebalance was asked for", "requested"),
        (m.RebalanceGroup(*KEY, "uneven"), "a rebalance was asked for: uneven", "requested"),
        (m.RebalanceGroup(*KEY, step_down=True), "leader m0 was asked to step down", "step_down"),
    ],
)
def test_a_rebalance_that_an_administrator_asked_for_says_so(
    request_: m.RebalanceGroup, reason: str, cause: str
) -> None:
    core = a_stable_group()
    reply = core.ask(request_)

    assert reply == m.RebalanceReply(generation_id=1)
    assert core.last("rebalance_started") == RebalanceStarted(reason, "", "Stable", cause)


NOT_FOUND, INVALID, UNKNOWN = ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID, ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("request_", "unknown", "unnamed"),
    [
        (a_heartbeat("m0", 1), UNKNOWN, INVALID),
        (a_sync("m0", 1), UNKNOWN, INVALID),
        (m.DeleteGroup(*KEY), NOT_FOUND, INVALID),
        (m.RebalanceGroup(*KEY), NOT_FOUND, INVALID),
        (m.DeleteOffsets(*KEY, ()), NOT_FOUND, INVALID),
        (m.CommitOffsets(*KEY, 1, ()), NOT_FOUND, INVALID),
        (a_join("m0"), UNKNOWN, INVALID),
    ],
)
def test_an_unknown_group_and_a_missing_name_differ(
    request_: m.GroupRequest, unknown: ErrorCode, unnamed: ErrorCode
) -> None:
    assert an_empty_shard().ask(request_).error is unknown
    assert an_empty_shard().ask(replace(request_, group_id="")).error is unnamed


# --- progress ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member_id", "instance_id", "generation_id", "error"),
    [
        ("m0", "i0", 1, ErrorCode.NONE),
        ("m0", "other", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", "i0", 1, ErrorCode.FENCED_INSTANCE_ID),
        ("m0", "i0", 0, ErrorCode.ILLEGAL_GENERATION),
        ("", None, -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "i0", -1, ErrorCode.FENCED_INSTANCE_ID),
        ("", None, 0, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_commit_names_a_member_of_the_generation(
    member_id: str, instance_id: str | None, generation_id: int, error: ErrorCode
) -> None:
    core = a_stable_group(static=1)
    items = (m.OffsetToCommit("t", 0, 1),)

    assert core.ask(m.CommitOffsets(*KEY, generation_id, items, member_id, instance_id)).error is error
