"""Members belong to the callers that joined as them: the owner of the shard compares (ADR 43)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    DELAY_MS,
    GROUP_ID,
    NAMESPACE,
    Core,
    a_heartbeat,
    a_join,
    a_leave,
    a_sync,
    an_empty_shard,
)

KEY = (NAMESPACE, GROUP_ID)
MINE, OTHERS = "token:mine", "token:other"
FORBIDDEN = ErrorCode.GROUP_AUTHORIZATION_FAILED
HELD_BY_ANOTHER = "a member of another caller has this group_instance_id, until it leaves or its session is over"
LATER = 5
CALLS: dict[str, Callable[[], Any]] = {
    "join": lambda: a_join("m0", instance="i0"),
    "join, of a later generation": lambda: replace(a_join("m0", instance="i0"), last_generation_id=LATER),
    "take over": lambda: a_join(new="again", instance="i0"),
    "take over, of a later generation": lambda: replace(a_join(new="again", instance="i0"), last_generation_id=LATER),
    "sync": lambda: a_sync("m0", 1, "i0"),
    "heartbeat": lambda: a_heartbeat("m0", 1, instance="i0"),
    "commit": lambda: m.CommitOffsets(*KEY, 1, (m.OffsetToCommit("t", 0, 7),), "m0", "i0"),
    "leave": lambda: a_leave("m0"),
    "leave by instance": lambda: m.LeaveGroup(*KEY, (m.LeavingMember("", "i0"),)),
    "drain": lambda: m.DrainMember(*KEY, "m0", "i0"),
    "sign": lambda: m.VerifyFence(*KEY, 1, "m0", sign=True),
}


def a_group_of(subject: str) -> Core:
    """One static member that joined and synced as this caller."""
    core = an_empty_shard()
    core.send(replace(a_join(new="m0", instance="i0"), subject=subject))
    core.advance(DELAY_MS)
    core.ask(replace(a_sync("m0", 1, "i0", m0=b"all"), subject=subject))
    return core


def error_of(reply: Any) -> ErrorCode:
    return ErrorCode(reply.members[0].error if isinstance(reply, m.LeaveReply) else reply.error)


@pytest.mark.parametrize("name", CALLS)
def test_another_caller_is_rejected_and_changes_nothing(name: str) -> None:
    core = a_group_of(MINE)
    before, lines = core.image(), len(core.journal)
    deadline_ms = core.deadline_ms("m0")
    core.advance(1_000)

    reply = core.ask(replace(CALLS[name](), subject=OTHERS))

    assert error_of(reply) is FORBIDDEN
    if not isinstance(reply, m.LeaveReply):
        assert reply.detail == (HELD_BY_ANOTHER if "take over" in name else "another caller joined as this member")
    assert (core.image(), len(core.journal), core.deadline_ms("m0")) == (before, lines, deadline_ms)


@pytest.mark.parametrize("name", [name for name in CALLS if "later generation" in name])
def test_the_caller_itself_raises_the_generation_that_it_held(name: str) -> None:
    core = a_group_of(MINE)

    core.send(replace(CALLS[name](), subject=MINE))

    assert core.last("generation_raised").generation_id == LATER + 1


@pytest.mark.parametrize("subject", [MINE, ""])
@pytest.mark.parametrize("name", CALLS)
def test_the_caller_itself_and_an_administrator_are_not_rejected(name: str, subject: str) -> None:
    core = a_group_of(MINE)

    call = core.send(replace(CALLS[name](), subject=subject))

    assert core.is_parked(call) or error_of(core.answer(call)) is ErrorCode.NONE


def test_a_batch_of_heartbeats_is_rejected_member_by_member() -> None:
    core = a_group_of(MINE)
    core.send(replace(a_join(new="m1", instance="i1"), subject=OTHERS))
    core.send(replace(a_join("m0", instance="i0"), subject=MINE))
    beats = (m.MemberHeartbeat("m0", 2), m.MemberHeartbeat("m1", 2, "i1"))

    reply = core.ask(m.HeartbeatMany(*KEY, beats, subject=OTHERS))

    assert [(each.member_id, each.error) for each in reply.errors] == [("m0", FORBIDDEN)]
    assert reply.errors[0].detail


def test_a_drain_by_another_caller_says_why_it_is_refused() -> None:
    reply = a_group_of(MINE).ask(replace(CALLS["drain"](), subject=OTHERS))

    assert (reply.granted, reply.detail) == (False, "another caller joined as this member")


def test_a_member_without_a_caller_gets_one_when_it_joins_again() -> None:
    core = a_group_of("")

    assert core.ask(replace(a_heartbeat("m0", 1), subject=OTHERS)).error is ErrorCode.NONE
    core.send(replace(a_join("m0", instance="i0"), subject=MINE))

    assert core.group.members["m0"].image.subject == MINE
    assert core.ask(replace(a_heartbeat("m0", 2), subject=OTHERS)).error is FORBIDDEN


def test_an_administrator_in_a_members_name_is_not_its_caller() -> None:
    core = a_group_of(MINE)

    core.send(a_join("m0", instance="i0"))
    core.ask(a_sync("m0", 2, "i0"))
    assert "member_updated" not in core.kinds(), "it says the same as the member"
    core.send(a_join("m0", instance="i0", session_ms=12_000))

    image = core.group.members["m0"].image
    assert (image.subject, image.session_timeout_ms) == (MINE, 12_000)


def test_the_next_owner_knows_the_callers_of_members() -> None:
    core = a_group_of(MINE)

    core.restart()

    assert core.ask(replace(a_sync("m0", 1, "i0"), subject=OTHERS)).error is FORBIDDEN


def test_an_instance_id_is_free_once_its_member_left() -> None:
    core = a_group_of(MINE)
    core.ask(a_leave("m0"))

    call = core.send(replace(a_join(new="again", instance="i0"), subject=OTHERS))
    core.advance(DELAY_MS)

    assert core.answer(call).error is ErrorCode.NONE
