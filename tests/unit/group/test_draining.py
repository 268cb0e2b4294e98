"""Permissions to leave: at most so many members leave at once."""

from __future__ import annotations

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DescribeGroup, DrainMember, DrainReply, FreezeGroup
from tests.unit.group.driver import (
    GROUP_ID,
    NAMESPACE,
    Core,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    everybody_again,
)

GRANT_MS = 8_000


def drain(core: Core, member_id: str = "", instance: str | None = None, max_leaving: int = 1) -> DrainReply:
    reply = core.ask(
        DrainMember(NAMESPACE, GROUP_ID, member_id, instance, max_leaving, GRANT_MS, "its node is drained")
    )
    assert isinstance(reply, DrainReply)
    return reply


def test_one_member_at_a_time_may_leave() -> None:
    core = a_stable_group(members=3)

    first, second = drain(core, "m1"), drain(core, "m2")

    assert (first.granted, first.until_ms, first.leaving) == (True, core.now_ms + GRANT_MS, ("m1",))
    assert (second.granted, second.leaving) == (False, ("m1",))
    assert second.why_not == "1 of at most 1 members are leaving: m1"
    assert core.ask(DescribeGroup(NAMESPACE, GROUP_ID)).leaving == ("m1",)
    assert core.last("leave_granted").reason == "its node is drained"


def test_the_same_member_may_ask_again_and_others_up_to_a_cap() -> None:
    core = a_stable_group(members=4)

    assert [drain(core, "m1").granted for _ in range(2)] == [True, True]
    assert [drain(core, each, max_leaving=2).granted for each in ("m2", "m3")] == [True, False]


def test_the_next_may_leave_when_the_firsts_share_has_moved() -> None:
    core = a_stable_group(members=3)
    drain(core, "m1")

    core.ask(a_leave("m1"))
    during = drain(core, "m2")
    everybody_again(core)
    before_assignment = drain(core, "m2")
    core.send(a_sync(core.leader_id, core.generation_id, m0=b"x", m2=b"y"))

    assert (during.granted, during.why_not) == (False, "the group rebalances: m1 left")
    assert (before_assignment.granted, drain(core, "m2").granted) == (False, True)


def test_a_permission_that_is_not_used_ends() -> None:
    core = a_stable_group(members=3)
    drain(core, "m1")
    core.advance(GRANT_MS - 1)
    assert not drain(core, "m2").granted

    core.advance(1)
    for member_id in core.ids:
        core.ask(a_heartbeat(member_id, 1))

    assert core.ask(DescribeGroup(NAMESPACE, GROUP_ID)).leaving == ()
    assert drain(core, "m2").leaving == ("m2",)


def test_a_returning_static_member_is_not_leaving_any_more() -> None:
    core = a_stable_group(members=2, static=1)
    instance = next(iter(core.group.static_members))
    assert drain(core, instance=instance).granted
    other = next(each for each in core.group.members if each != core.group.static_members[instance])
    assert not drain(core, other).granted

    core.send(a_join(new="again", instance=instance))

    assert core.group.leaving == {}


def test_no_member_may_leave_while_the_group_is_frozen() -> None:
    core = a_stable_group(members=2)
    core.ask(FreezeGroup(NAMESPACE, GROUP_ID, 5_000, "a deploy"))

    assert drain(core, "m1").why_not == "the group is frozen for 5 s more (a deploy)"


def test_unknown_members_and_groups_are_errors() -> None:
    core = a_stable_group(members=1)

    assert drain(core, "stranger").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert drain(core, instance="stranger").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert drain(a_stable_group(static=2), "m0", "i1").error is ErrorCode.FENCED_INSTANCE_ID
    unknown = core.ask(DrainMember(NAMESPACE, "unknown", "m0"))
    assert unknown.error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_new_generation_ends_no_permission_and_no_freeze() -> None:
    core = a_stable_group(members=3)
    drain(core, "m1")
    core.ask(FreezeGroup(NAMESPACE, GROUP_ID, 60_000, "a deploy"))
    core.ask(a_leave("m2"))
    everybody_again(core)
    core.ask(a_sync("m0", 2, m0=b"x", m1=b"y"))
    before = core.ask(DescribeGroup(NAMESPACE, GROUP_ID))
    assert (before.leaving, before.frozen_until_ms, before.frozen_reason, before.rebalance_cause) == (
        ("m1",),
        core.now_ms + 60_000,
        "a deploy",
        "member_left",
    )

    core.restart()

    assert core.ask(DescribeGroup(NAMESPACE, GROUP_ID)) == before


def test_a_new_owner_knows_which_members_may_leave() -> None:
    core = a_stable_group(members=3)
    drain(core, "m1")

    core.restart()

    assert not drain(core, "m2").granted
