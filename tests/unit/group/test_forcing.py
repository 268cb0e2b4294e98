"""An administrator has a group agree anew, or its leader step down."""

from __future__ import annotations

import pytest

from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    KEY,
    REBALANCE_MS,
    Core,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_heartbeat,
    a_join,
    a_stable_group,
    a_sync,
    an_empty_group,
    an_empty_shard,
    everybody_again,
)


def described(core: Core) -> m.DescribeReply:
    reply: m.DescribeReply = core.ask(m.DescribeGroup(*KEY))
    return reply


def test_a_forced_rebalance_notifies_all_and_removes_none() -> None:
    core = a_stable_group(members=2)
    waiting = core.send(a_heartbeat("m1", 1, wait_ms=3_000))

    reply = core.ask(m.RebalanceGroup(*KEY, "new machines"))

    assert (reply.error, reply.generation_id) == (ErrorCode.NONE, 1)
    assert core.answer(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.last("rebalance_started").reason == "a rebalance was asked for: new machines"
    everybody_again(core)
    assert (core.generation_id, core.leader_id, list(core.group.members)) == (2, "m0", ["m0", "m1"])


def test_a_leader_asked_to_step_down_stays_a_member() -> None:
    core = a_stable_group(members=3)

    core.ask(m.RebalanceGroup(*KEY, step_down=True))
    everybody_again(core)

    assert (core.leader_id, list(core.group.members)) == ("m1", ["m0", "m1", "m2"])
    changed = core.last("leader_changed")
    assert (changed.former_leader_id, changed.reason) == ("m0", "leader m0 was asked to step down")


def test_stepping_down_holds_for_one_generation() -> None:
    core = a_stable_group(members=2)
    core.ask(m.RebalanceGroup(*KEY, step_down=True))
    everybody_again(core)

    core.ask(m.RebalanceGroup(*KEY, step_down=True))
    everybody_again(core)

    assert core.leader_id == "m0"


def test_who_is_alone_leads_on() -> None:
    core = a_stable_group(members=1)

    core.ask(m.RebalanceGroup(*KEY, step_down=True))
    everybody_again(core)

    assert (core.leader_id, core.generation_id) == ("m0", 2)


def test_a_static_leader_restarted_meanwhile_does_not_lead_again() -> None:
    core = a_stable_group(members=2, static=2)
    core.ask(m.RebalanceGroup(*KEY, step_down=True))

    core.send(a_join(new="m0-again", instance="i0"))
    core.send(a_join("m1", instance="i1"))

    assert core.leader_id == "m1"


def test_a_join_phase_goes_on_while_the_leader_steps_down() -> None:
    core = a_group_in_a_join_phase(members=2)
    reason = core.group.rebalance_reason

    assert core.ask(m.RebalanceGroup(*KEY, "hurry", True)).error is ErrorCode.NONE
    core.send(a_join("m0"))

    assert core.last("generation_completed").reason == reason
    assert core.leader_id == "m1"


@pytest.mark.parametrize(
    ("core", "step_down", "error"),
    [
        (an_empty_shard(), False, ErrorCode.GROUP_ID_NOT_FOUND),
        (an_empty_group(), False, ErrorCode.INVALID_REQUEST),
        (an_empty_group(), True, ErrorCode.INVALID_REQUEST),
    ],
)
def test_where_nobody_is_there_is_nothing_to_agree(core: Core, step_down: bool, error: ErrorCode) -> None:
    assert core.ask(m.RebalanceGroup(*KEY, step_down=step_down)).error is error


def test_a_description_says_who_is_waited_for_and_until_when() -> None:
    core = a_stable_group(members=3)
    core.send(a_join("m2", protocols=(("range", b"changed"),)))

    joining = described(core)

    assert [(member.member_id, member.awaited) for member in joining.members] == [
        ("m0", True),
        ("m1", True),
        ("m2", False),
    ]
    assert joining.phase_deadline_ms == core.now_ms + REBALANCE_MS


def test_in_the_sync_phase_who_parks_its_sync_is_not_waited_for() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    core.send(a_sync("m1", 1))

    syncing = described(core)

    assert [(member.member_id, member.awaited) for member in syncing.members] == [("m0", True), ("m1", False)]
    assert syncing.phase_deadline_ms == core.now_ms + REBALANCE_MS
