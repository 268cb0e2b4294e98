"""Each rebalance and each group that becomes empty has a code for its cause, whatever names members have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rota.core.group import records as r
from rota.core.group.records import wrong_cause
from rota.protocol import messages as m
from rota.protocol.causes import Cause
from tests.unit.group.driver import (
    DELAY_MS,
    GROUP_ID,
    KEY,
    NAMESPACE,
    REBALANCE_MS,
    SESSION_MS,
    Core,
    a_group_awaiting_its_assignment,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_shard,
)


def silent(core: Core) -> None:
    core.advance(SESSION_MS - 1)
    core.ask(a_heartbeat("m1", 1))
    core.advance(1)


DONE_TO_A_STABLE_GROUP: dict[Cause, Callable[[Core], object]] = {
    Cause.MEMBER_LEFT: lambda core: core.ask(a_leave("m0")),
    Cause.MEMBER_REMOVED: lambda core: core.ask(a_leave("m0", by_admin=True)),
    Cause.MEMBER_EXPIRED: silent,
    Cause.METADATA_CHANGED: lambda core: core.send(a_join("m1", protocols=(("range", b"other"),))),
    Cause.LEADER_REJOINED: lambda core: core.send(a_join("m0")),
    Cause.TOPICS_CHANGED: lambda core: core.send(replace(a_join("m0"), reason="the topics changed")),
    Cause.REQUESTED: lambda core: core.ask(m.RebalanceGroup(*KEY, "the topics changed")),
    Cause.STEP_DOWN: lambda core: core.ask(m.RebalanceGroup(*KEY, step_down=True)),
    Cause.ASSIGNMENT_OUTDATED: lambda core: core.ask(a_sync("m0", 1, m0=b"x", gone=b"y")),
}


def cause_of_last(core: Core, kind: str) -> str:
    record = core.last(kind)
    assert isinstance(record, r.RebalanceStarted | r.GroupEmptied | r.GenerationCompleted | r.LeaderChanged)
    return record.cause


@pytest.mark.parametrize("cause", DONE_TO_A_STABLE_GROUP)
def test_a_rebalance_has_the_code_of_its_cause(cause: Cause) -> None:
    core = a_stable_group()

    DONE_TO_A_STABLE_GROUP[cause](core)

    assert cause_of_last(core, "rebalance_started") == cause
    assert core.ask(m.DescribeGroup(NAMESPACE, GROUP_ID)).rebalance_cause == cause


def test_a_failed_assignment_and_a_late_sync_have_codes() -> None:
    failed, late = a_group_awaiting_its_assignment(), a_group_awaiting_its_assignment()

    failed.ask(replace(a_sync("m0", 1), leader_error="no topic"))
    late.send(a_sync("m1", 1))
    while late.group.state == "CompletingRebalance":
        late.ask(a_heartbeat("m0", 1))
        late.advance(1_000)

    assert cause_of_last(failed, "rebalance_started") == "assignment_failed"
    assert cause_of_last(late, "rebalance_started") == "sync_timeout"


def test_the_generation_and_its_leader_have_the_rebalances_code() -> None:
    core = a_stable_group()
    core.ask(a_leave("m0"))
    core.send(a_join("m1"))

    assert cause_of_last(core, "generation_completed") == cause_of_last(core, "leader_changed") == "member_left"


def test_a_client_id_cannot_change_a_cause() -> None:
    core = an_empty_shard()
    core.ask(a_join(new="a expired: no heartbeat-0c5e"))
    core.send(a_join("a expired: no heartbeat-0c5e"))

    assert cause_of_last(core, "rebalance_started") == "member_joined"


# --- groups that become empty ---------------------------------------------------------------------------


def last_member_expires(core: Core) -> None:
    core.advance(SESSION_MS)


def last_member_leaves(core: Core) -> None:
    core.ask(a_leave("m0"))


def last_member_is_removed(core: Core) -> None:
    core.ask(a_leave("m0", by_admin=True))


def last_members_do_not_rejoin(core: Core) -> None:
    core.ask(a_leave("m0"))
    while core.group.members:
        core.ask(a_heartbeat("m1", 1))
        core.advance(1_000)


def last_members_leave_one_by_one(core: Core) -> None:
    core.ask(a_leave("m0"))
    core.ask(a_leave("m1"))


@pytest.mark.parametrize(
    ("members", "end", "cause", "by"),
    [
        (1, last_member_is_removed, "member_removed", "m0"),
        (1, last_member_expires, "member_expired", "m0"),
        (2, last_member_expires, "member_expired", "m1"),
        (1, last_member_leaves, "member_left", "m0"),
        (2, last_members_do_not_rejoin, "member_expired", "m1"),
        (2, last_members_leave_one_by_one, "member_left", "m1"),
    ],
)
def test_an_empty_group_says_how_its_last_member_went(
    members: int, end: Callable[[Core], None], cause: str, by: str
) -> None:
    core = a_stable_group(members=members)

    end(core)

    emptied = core.last("group_emptied")
    assert isinstance(emptied, r.GroupEmptied)
    assert (emptied.cause, emptied.by) == (cause, by)
    described = core.ask(m.DescribeGroup(NAMESPACE, GROUP_ID))
    assert (described.rebalance_cause, described.rebalance_reason) == (cause, emptied.reason)
    said = {"member_expired": "expired: ", "member_left": "left", "member_removed": "was removed"}
    assert f"{by} {said[cause]}" in emptied.reason


@pytest.mark.parametrize(
    ("by_admin", "cause", "reason"),
    [(False, Cause.MEMBER_LEFT, "member m0 left"), (True, Cause.MEMBER_REMOVED, "member m0 was removed")],
)
def test_a_group_that_is_left_in_its_initial_delay_has_a_cause(by_admin: bool, cause: Cause, reason: str) -> None:
    core = a_group_in_its_initial_delay(members=1)
    core.ask(a_leave("m0", by_admin=by_admin))
    core.advance(DELAY_MS + REBALANCE_MS)

    emptied = core.last("group_emptied")
    assert (emptied.cause, emptied.reason, emptied.by) == (cause, reason, "m0")


def test_a_new_owner_names_the_departure_before_it() -> None:
    core = a_stable_group(members=1)
    core.send(a_join(new="newcomer", instance="i9"))
    core.advance(SESSION_MS // 2)
    core.ask(a_join(new="late"))  # The join phase waits for it.
    core.advance(SESSION_MS // 2)
    expired = core.last("member_expired")

    core.restart()
    core.advance(REBALANCE_MS)

    emptied = core.last("group_emptied")
    assert isinstance(emptied, r.GroupEmptied)
    assert (emptied.cause, emptied.by, core.group.state) == ("member_expired", "m0", "Empty")
    assert emptied.reason == f"member m0 expired: {expired.reason}"


# --- the rule -------------------------------------------------------------------------------------------


JOINED = a_stable_group(members=1).last("member_joined")


@pytest.mark.parametrize(
    ("record", "former"),
    [
        (r.RebalanceStarted("", "", "Stable"), None),
        (r.RebalanceStarted("", "", "Stable", Cause.OTHER), None),
        (r.RebalanceStarted("", "", "Stable", Cause.MEMBER_EXPIRED), JOINED),
        (r.RebalanceStarted("", "", "Stable", Cause.ASSIGNMENT_FAILED), JOINED),
        (r.RebalanceStarted("", "", "Stable", Cause.UNIT_FAILED), JOINED),
        (r.MemberExpired("m", None, "", Cause.MEMBER_LEFT), None),
        (r.MemberLeft("m", None, ""), None),
        (r.GroupEmptied(2, "", Cause.MEMBER_LEFT), r.MemberExpired("m", None, "", Cause.MEMBER_EXPIRED)),
        (r.GroupEmptied(2, "", Cause.MEMBER_LEFT), JOINED),
    ],
)
def test_a_code_that_the_lines_before_contradict_is_found(record: r.Record, former: r.Record | None) -> None:
    assert wrong_cause(record, former)


@pytest.mark.parametrize(
    ("record", "former"),
    [
        (r.MemberLeft("m", None, "", Cause.MEMBER_LEFT), None),
        (r.MemberLeft("m", None, "", Cause.UNIT_FAILED), None),
        (r.RebalanceStarted("", "", "Stable", Cause.UNIT_FAILED), r.MemberLeft("m", None, "", Cause.UNIT_FAILED)),
        (r.MemberExpired("m", None, "", Cause.SYNC_TIMEOUT), JOINED),
        (r.MemberRemoved("m", None, "", Cause.GROUP_FULL), None),
        (r.GroupEmptied(2, "", Cause.MEMBER_LEFT), r.MemberLeft("m", None, "", Cause.MEMBER_LEFT)),
        (r.GroupEmptied(2, "", Cause.MEMBER_LEFT), None),
        (r.RebalanceStarted("", "", "Stable", Cause.MEMBER_JOINED), JOINED),
        (r.RebalanceStarted("", "", "Stable", Cause.REQUESTED), JOINED),
        (JOINED, None),
    ],
)
def test_a_code_that_fits_the_lines_before_is_right(record: r.Record, former: r.Record | None) -> None:
    assert wrong_cause(record, former) == ""
