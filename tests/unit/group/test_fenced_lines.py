"""Zombies in the journal: the refused member, its operation and its generation; once each."""

from __future__ import annotations

import pytest

from rota.core.group.records import RequestFenced
from rota.protocol import messages as m
from tests.unit.group.driver import KEY, Core, a_heartbeat, a_join, a_stable_group, a_sync

ITEMS = (m.OffsetToCommit("t", 0, 1),)
ZOMBIE = ("m0", "i0")
REQUESTS: dict[str, m.Request] = {
    "heartbeat": a_heartbeat("m0", 1, instance="i0"),
    "heartbeat of many": m.HeartbeatMany(*KEY, (m.MemberHeartbeat("m0", 1, "i0"),)),
    "sync": a_sync("m0", 1, "i0"),
    "commit": m.CommitOffsets(*KEY, 1, ITEMS, "m0", "i0"),
    "join": a_join("m0", instance="i0"),
    "leave": m.LeaveGroup(*KEY, (m.LeavingMember("m0", "i0"),)),
}


def a_group_with_a_zombie() -> Core:
    """A process took the place of the static member `i0`: the old id `m0` is void."""
    core = a_stable_group(static=1)
    core.send(a_join(new="fresh", instance="i0"))
    return core


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_fenced_instance_is_written_with_all_that_it_said(operation: str) -> None:
    core = a_group_with_a_zombie()
    core.ask(REQUESTS[operation])
    generation_id = -1 if operation in ("join", "leave") else 1

    assert core.last("request_fenced") == RequestFenced(
        *ZOMBIE, operation.partition(" ")[0], "FENCED_INSTANCE_ID", generation_id
    )


@pytest.mark.parametrize("operation", ["join", "heartbeat", "heartbeat of many", "sync", "commit"])
def test_a_fenced_request_is_written_once_for_each_operation(operation: str) -> None:
    core = a_group_with_a_zombie()
    core.ask(REQUESTS[operation])
    core.ask(REQUESTS[operation])

    assert core.kinds().count("request_fenced") == 1


def test_an_old_generation_is_written_and_a_later_one_is_not() -> None:
    core = a_stable_group()
    core.ask(a_heartbeat("m0", 0))
    assert core.last("request_fenced") == RequestFenced("m0", None, "heartbeat", "ILLEGAL_GENERATION", 0)

    core.ask(a_heartbeat("m1", 2))

    assert core.kinds().count("request_fenced") == 1


def test_a_stranger_is_not_written() -> None:
    core = a_stable_group()
    core.ask(a_heartbeat("stranger", 0))

    assert "request_fenced" not in core.kinds()


def test_a_group_writes_at_most_a_thousand_zombies() -> None:
    core = a_stable_group()
    core.group.fenced_reported = {("heartbeat", str(number)) for number in range(999)}
    core.ask(a_heartbeat("m0", 0))
    core.ask(a_heartbeat("m1", 0))

    assert core.kinds().count("request_fenced") == 1
    assert len(core.group.fenced_reported) == 1_000
