"""A member of a group with copies goes: a standby is promoted at once, without a join phase."""

from __future__ import annotations

import json
from collections import Counter

from rota.protocol import messages as m
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import GROUP_ID, NAMESPACE, SESSION_MS, Core, a_heartbeat, a_leave, a_sync
from tests.unit.group.served import DOCUMENTS, Listed, a_served_group, asks_for_assignment, finish

COPIES: Listed = (("server:redundant(2)", DOCUMENTS),)
Roles = dict[str, set[int]]


def a_group_with_copies(members: int = 3) -> Core:
    core = a_served_group(COPIES, members)
    finish(core)
    for member_id in core.ids:
        core.ask(a_sync(member_id, core.generation_id))
    return core


def shares(core: Core) -> tuple[Roles, Roles]:
    """What each member has, and of what it has the active copy."""
    read = {member_id: json.loads(member.assignment) for member_id, member in core.group.members.items()}
    return (
        {member_id: set(values["topics"].get("documents", ())) for member_id, values in read.items()},
        {member_id: set(values["active"].get("documents", ())) for member_id, values in read.items()},
    )


def test_the_standbys_of_a_leaving_member_are_promoted_at_once() -> None:
    core = a_group_with_copies()
    held, active = shares(core)

    core.ask(a_leave("m1"))

    assert core.group.state == "Stable"
    assert core.generation_id == 2
    held_now, active_now = shares(core)
    for member_id in ("m0", "m2"):
        assert held_now[member_id] == held[member_id]
        assert active_now[member_id] >= active[member_id]
    assert active_now["m0"] | active_now["m2"] == {0, 1, 2, 3}
    assert not active_now["m0"] & active_now["m2"]
    synced = core.last("assignment_synced")
    assert (synced.resync, synced.cause, synced.by) == (True, Cause.MEMBER_LEFT, "m1")
    assert synced.reason.startswith("m1 left")


def test_the_others_work_on_and_fetch_their_roles() -> None:
    core = a_group_with_copies()
    parked = core.send(m.Heartbeat(NAMESPACE, GROUP_ID, "m0", 1, wait_ms=1_000))

    core.ask(a_leave("m1"))

    assert core.answer(parked).generation_id == 2
    assert core.ask(a_heartbeat("m2", 1)).generation_id == 2, "it is told to sync, not to join"
    assert json.loads(core.ask(a_sync("m2", 2)).assignment)["active"]["documents"]


def test_the_missing_copies_follow_without_a_join_phase() -> None:
    core = a_group_with_copies()
    core.ask(a_leave("m1"))
    assert asks_for_assignment(core)
    _, promoted = shares(core)

    finish(core)

    held, active = shares(core)
    assert core.group.state == "Stable"
    assert Counter(number for share in held.values() for number in share) == dict.fromkeys(range(4), 2)
    assert active == promoted
    assert "rebalance_started" not in core.kinds()[core.kinds().index("member_left") :]


def test_a_standby_takes_over_from_a_leader_that_expires() -> None:
    core = a_group_with_copies()
    core.advance(SESSION_MS - 1)
    for member_id in ("m1", "m2"):
        core.ask(a_heartbeat(member_id, 1))

    core.advance(1)

    assert list(core.group.members) == ["m1", "m2"]
    assert (core.group.state, core.group.leader_id) == ("Stable", "m1")
    assert core.last("assignment_synced").cause == Cause.MEMBER_EXPIRED
    assert core.ask(a_heartbeat("m0", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_two_that_go_one_after_the_other_leave_all_to_the_third() -> None:
    core = a_group_with_copies()
    core.ask(a_leave("m1"))
    finish(core)

    core.ask(a_leave("m0"))

    _, active = shares(core)
    assert active == {"m2": {0, 1, 2, 3}}


def test_a_group_without_copies_rebalances_as_before() -> None:
    core = a_served_group(members=3)
    finish(core)

    core.ask(a_leave("m1"))

    assert core.group.state == "PreparingRebalance"
