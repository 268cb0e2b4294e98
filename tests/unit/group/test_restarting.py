"""A new owner: it finds every acknowledged fact, and gives each member a full session (protocol.md §5)."""

from __future__ import annotations

from rota.core.group.records import decode_entry, encode_entry
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    SESSION_MS,
    Core,
    a_commit,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
)


def test_stable_group_notices_nothing() -> None:
    core = a_stable_group(members=3)
    core.advance(SESSION_MS - 1)

    core.restart()

    assert core.ask(a_heartbeat("m1", 1)).error is ErrorCode.NONE
    assert core.ask(a_sync("m2", 1)).assignment == b"m2"
    assert (core.generation_id, core.leader_id, core.group.state) == (1, "m0", "Stable")


def test_everybody_gets_a_full_session() -> None:
    core = a_stable_group(members=1)
    core.advance(SESSION_MS - 1)

    core.restart()

    assert core.deadline_ms("m0") == core.now_ms + SESSION_MS
    core.advance(SESSION_MS)
    assert core.group.state == "Empty"


def test_join_phase_that_did_not_end_never_was() -> None:
    core = a_group_in_a_join_phase(members=2)
    core.ask(a_join(new="late"))
    core.send(a_join("late"))

    core.restart()

    assert (core.group.state, list(core.group.members)) == ("Stable", ["m0", "m1"])
    assert core.ask(a_join("late")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_is_not_forgotten() -> None:
    core = a_stable_group(members=2)
    core.ask(a_leave("m1"))

    core.restart()

    assert (core.group.state, list(core.group.members)) == ("PreparingRebalance", ["m0"])
    assert core.ask(a_heartbeat("m0", 1)).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_leader_s_leave_leaves_the_earliest_to_follow() -> None:
    core = a_stable_group(members=3)
    core.ask(a_leave("m0"))

    core.restart()
    core.send(a_join("m2"))
    core.send(a_join("m1"))

    assert (core.generation_id, core.leader_id) == (2, "m1")


def test_assignment_that_was_awaited_is_awaited_again() -> None:
    core = a_group_awaiting_its_assignment(members=2)

    core.restart()
    core.ask(a_sync("m0", 1, m1=b"b"))

    assert core.ask(a_sync("m1", 1)).assignment == b"b"


def test_static_return_that_was_answered_is_not_forgotten() -> None:
    core = a_stable_group(members=2, static=2)
    core.ask(a_join(new="again", instance="i1"))

    core.restart()

    assert core.ask(a_heartbeat("m1", 1, instance="i1")).error is ErrorCode.FENCED_INSTANCE_ID
    assert core.ask(a_sync("again", 1, "i1")).assignment == b"m1"


def test_a_static_return_in_an_awaited_assignment_ends_it() -> None:
    core = a_group_awaiting_its_assignment(members=2, static=2)
    core.send(a_join(new="again", instance="i1"))

    core.restart()

    assert core.ask(a_sync("m0", 1, "i0", m1=b"for nobody")).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_order_of_joining_is_not_forgotten() -> None:
    core = a_stable_group(members=3)
    core.ask(a_leave("m1"))
    core.restart()
    core.send(a_join("m2"))
    core.send(a_join("m0"))

    core.ask(a_join(new="m9"))
    core.send(a_join("m9"))

    assert [(m.member_id, m.position) for m in core.group.members.values()] == [("m0", 0), ("m2", 2), ("m9", 3)]


def _everything_once() -> Core:
    core = a_stable_group(members=3, static=1)
    core.ask(a_commit("m1", 1))
    core.ask(a_sync("m1", 0))
    core.ask(a_sync("m0", 1, "i0", m0=b"more"))
    core.ask(a_join(new="again", instance="i0"))
    core.send(a_join("m1", protocols=(("range", b"new"),)))
    core.ask(a_leave("m2"))
    core.advance(SESSION_MS)
    return core


def test_journal_lines_read_back_as_they_were_written() -> None:
    core = _everything_once()

    assert [decode_entry(encode_entry(entry)) for entry in core.journal] == core.journal
    assert len(set(core.kinds())) >= 9
