"""Quarantine: a unit that fells its holders in a row is left out of assignments until it is released."""

from __future__ import annotations

from typing import Any

import pytest

from rota.core.assignors import TopicPartition
from rota.core.assignors.work import WorkItem, WorkShare
from rota.core.group.assignment import shares_of
from rota.core.group.state import Timer, TimerKind
from rota.core.types import consumer, units_of, without_units
from rota.core.types.worker import config_offset_in, decode_share, encode_share
from rota.protocol.causes import Cause
from rota.protocol.defaults import QUARANTINE_WINDOW_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    DescribeGroup,
    FreezeGroup,
    LeaveGroup,
    LeavingMember,
    QuarantineGroup,
    QuarantineReply,
    RebalanceGroup,
    SyncGroup,
)
from tests.unit.group.driver import (
    KEY,
    NAMESPACE,
    SESSION_MS,
    Core,
    a_heartbeat,
    a_join,
    a_leave,
    a_sync,
    an_empty_shard,
)
from tests.unit.group.served import a_served_group, candidates, finish, hand_in, join, the_job

PROTOCOLS = (("range", b'{"topics": ["t"]}'),)
POISON = "t/0"


def share(*numbers: int) -> bytes:
    return consumer.encode_plain_assignment([TopicPartition("t", number) for number in numbers])


def let_join(core: Core, *names: str) -> None:
    """All present members and these newcomers are in the next generation, which is not assigned yet."""
    for name in names:
        core.ask(a_join(new=name, protocols=PROTOCOLS, protocol_type="consumer"))
    for name in [*core.group.members, *names]:
        core.send(a_join(name, protocols=PROTOCOLS, protocol_type="consumer"))
    while core.group.state == "PreparingRebalance":
        core.advance(100)


def assign(core: Core, **shares: bytes) -> None:
    """The leader assigns, and all members fetch their shares."""
    core.send(SyncGroup(*KEY, core.leader_id, core.generation_id, assignments=tuple(shares.items())))
    for name in list(core.group.members):
        core.send(a_sync(name, core.generation_id))


def a_group(members: int = 3, after_falls: int = 2, **rule: int) -> Core:
    """`m0` holds `t/0`, `m1` holds `t/1`, and so on."""
    core = an_empty_shard()
    names = [f"m{number}" for number in range(members)]
    let_join(core, *names)
    assign(core, **{name: share(number) for number, name in enumerate(names)})
    assert quarantine(core, after_falls=after_falls, **rule).error is ErrorCode.NONE
    return core


def quarantine(core: Core, **change: Any) -> Any:
    return core.ask(QuarantineGroup(*KEY, **change))


def expire(core: Core, *names: str) -> None:
    """These members fall silent, and the others go on; the sessions are over when this returns."""
    for _ in range(SESSION_MS // 1_000 + 1):
        core.advance(1_000)
        for name in [each for each in core.group.members if each not in names]:
            core.ask(a_heartbeat(name, core.generation_id))
    assert not set(names) & set(core.group.members)


def held(core: Core) -> dict[str, set[str]]:
    return {name: set(units_of("consumer", member.assignment)) for name, member in core.group.members.items()}


def a_poisoned_group() -> Core:
    """`t/0` has felled `m0`, then `m1`; `m2` leads, and the generation waits for its assignment."""
    core = a_group()
    expire(core, "m0")
    let_join(core)
    assign(core, m1=share(0, 1), m2=share(2))
    expire(core, "m1")
    return core


def test_a_plan_begins_with_the_units_that_are_left_out() -> None:
    core = a_poisoned_group()
    let_join(core)
    assign(core, m2=share(0, 1, 2))

    assert core.ask(DescribeGroup(*KEY)).quarantined == (POISON,)


def test_a_unit_that_felled_its_holders_in_a_row_is_left_out() -> None:
    core = a_group()
    expire(core, "m0")
    let_join(core)
    assign(core, m1=share(0), m2=share(1, 2))
    assert core.last("units_suspected").suspects[0][:2] == (POISON, 1)
    expire(core, "m1")

    let_join(core)
    assign(core, m2=share(0, 1, 2))

    assert held(core) == {"m2": {"t/1", "t/2"}}
    assert core.ask(DescribeGroup(*KEY)).quarantined == (POISON,)
    record = core.last("units_quarantined")
    assert (record.units, record.until_ms, record.cause) == ((POISON,), 0, Cause.MEMBER_EXPIRED)
    assert record.reason.startswith("2 holders in a row fell; the last was m1: m1: no heartbeat")


def test_the_suspect_is_the_unit_that_all_fallen_holders_had() -> None:
    core = a_poisoned_group()

    let_join(core)

    assert core.group.quarantine.names == (POISON,)
    assert [unit for unit, *_ in core.group.quarantine.suspects] == ["t/1"]


def test_groups_without_a_rule_quarantine_nothing() -> None:
    core = a_group(after_falls=0)
    for _ in range(2):
        expire(core, core.leader_id)
        let_join(core)
        assign(core, **{core.leader_id: share(0, 1, 2)})

    assert "units_suspected" not in core.kinds()


@pytest.mark.parametrize(("members", "suspects"), [(4, []), (5, [("t/0", 1), ("t/1", 1)])])
def test_members_that_fall_at_once_are_evidence_if_more_stay(members: int, suspects: list[tuple[str, int]]) -> None:
    core = a_group(members)

    expire(core, "m0", "m1")
    let_join(core)

    assert [each[:2] for each in core.group.quarantine.suspects] == suspects


def test_a_member_that_a_new_owner_has_never_seen_is_no_evidence() -> None:
    core = a_group()
    core.restart()

    expire(core, "m0")
    let_join(core)

    assert core.group.quarantine.suspects == ()


def test_a_member_that_was_seen_after_a_failover_is_evidence() -> None:
    core = a_group()
    core.restart()
    core.advance(1_000)
    core.ask(a_heartbeat("m0", core.generation_id))

    expire(core, "m0")
    let_join(core)

    assert core.group.quarantine.suspects[0][:2] == (POISON, 1)


@pytest.mark.parametrize(("way", "line"), [("leaves", "m1 left in order: t/0"), ("hands over", "m1 gave them up: t/0")])
def test_a_holder_that_survives_a_suspect_acquits_it(way: str, line: str) -> None:
    core = a_group()
    expire(core, "m0")
    let_join(core)
    assign(core, m1=share(0, 1), m2=share(2))

    if way == "leaves":
        core.ask(a_leave("m1"))
    else:
        core.send(a_join("m1", protocols=(("range", b'{"topics": ["t", "u"]}'),), protocol_type="consumer"))
        let_join(core)
        assign(core, m1=share(1), m2=share(0, 2))

    assert core.group.quarantine.suspects == ()
    assert (core.last("units_suspected").member_id, core.last("units_suspected").reason) == ("m1", line)


def test_a_second_holder_that_leaves_in_order_acquits_the_unit() -> None:
    core = a_group(after_falls=1)
    assign(core, m0=share(0, 1), m1=share(0), m2=share(2))

    core.ask(LeaveGroup(*KEY, (LeavingMember("m0", reason="its work failed", failed_unit=POISON),)))
    core.ask(a_leave("m1"))
    let_join(core)

    assert core.group.quarantine.names == ()


def test_a_removal_by_an_administrator_says_nothing() -> None:
    core = a_group()
    expire(core, "m0")
    let_join(core)
    assign(core, m1=share(0, 1), m2=share(2))

    core.ask(a_leave("m1", by_admin=True))
    let_join(core)

    assert [each[:2] for each in core.group.quarantine.suspects] == [(POISON, 1)]


def test_a_report_names_the_one_unit_and_counts_in_an_outage() -> None:
    core = a_group(after_falls=1)
    leaving = (LeavingMember("m0", None, "its work raised", failed_unit=POISON),)

    core.ask(LeaveGroup(*KEY, leaving))
    assert core.group.rebalance_reason == "m0 left: its work on t/0 failed"
    expire(core, "m1", "m2")

    assert core.group.quarantine.names == (POISON,)
    assert core.last("units_quarantined").cause == Cause.UNIT_FAILED
    assert core.last("member_left").cause == Cause.UNIT_FAILED
    assert core.last("units_quarantined").reason.endswith("the last was m0: its work raised")


def test_a_report_of_a_unit_that_is_not_held_counts_nothing() -> None:
    core = a_group(after_falls=1)

    core.ask(LeaveGroup(*KEY, (LeavingMember("m0", None, "", failed_unit="t/1"),)))
    let_join(core)

    assert (core.group.quarantine.names, core.group.quarantine.suspects) == ((), ())


def test_a_lost_connection_is_a_fall() -> None:
    core = a_group(after_falls=1)
    core.advance(2_000)

    core.ask(LeaveGroup(*KEY, (LeavingMember("m0", None, "its stream is lost"),), silent_for_ms=1_000))
    let_join(core)

    assert core.group.quarantine.names == (POISON,)


def test_more_suspects_than_may_be_quarantined_stay_assigned() -> None:
    core = a_group(members=2, after_falls=1)
    assign(core, m0=share(0, 1), m1=share(2))
    expire(core, "m0")

    let_join(core)
    assign(core, m1=share(0, 1, 2))

    assert (core.group.quarantine.names, held(core)) == ((), {"m1": {"t/0", "t/1", "t/2"}})
    assert quarantine(core, max_units=2).max_units == 2
    expire(core, "m1")
    assert core.group.quarantine.names == ()  # Three are due.


def test_falls_of_a_lone_holder_count_across_empty_groups() -> None:
    core = a_group(members=1)
    expire(core, "m0")
    let_join(core, "n0")
    assign(core, n0=share(0))
    expire(core, "n0")
    assert core.group.state == "Empty"

    let_join(core, "n1")
    assign(core, n1=share(0, 1))

    assert held(core) == {"n1": {"t/1"}}


@pytest.mark.parametrize(
    ("apart_ms", "quarantined", "suspected"),
    [(QUARANTINE_WINDOW_MS - 1, (POISON,), []), (QUARANTINE_WINDOW_MS, (), [(POISON, 1)])],
)
def test_falls_are_in_a_row_for_so_long(
    apart_ms: int, quarantined: tuple[str, ...], suspected: list[tuple[str, int]]
) -> None:
    core = a_group()
    expire(core, "m0")
    let_join(core)
    assign(core, m1=share(0, 1), m2=share(2))
    core.checking = False
    end_ms = core.group.quarantine.suspects[0][2] + apart_ms
    while core.now_ms < end_ms:
        core.advance(min(5_000, end_ms - core.now_ms))
        for name in core.group.members:
            core.ask(a_heartbeat(name, core.generation_id))

    core.ask(LeaveGroup(*KEY, (LeavingMember("m1", failed_unit=POISON),)))
    let_join(core)

    assert core.group.quarantine.names == quarantined
    assert [each[:2] for each in core.group.quarantine.suspects] == suspected


def test_a_unit_below_the_number_of_falls_is_only_suspected() -> None:
    core = a_group(members=4, after_falls=3)
    for name in ("m0", "m1"):
        assign(core, **{each: share(0) if each == name else b"" for each in core.group.members})
        expire(core, name)
        let_join(core)

    assert core.group.quarantine.names == ()
    assert [each[:2] for each in core.group.quarantine.suspects] == [(POISON, 2)]


@pytest.mark.parametrize(("units", "more"), [(5, ""), (6, " and 1 more")])
def test_a_line_names_at_most_five_units(units: int, more: str) -> None:
    core = a_group(members=2)
    assign(core, m0=share(*range(units)), m1=share(9))

    expire(core, "m0")
    let_join(core)

    assert core.last("units_suspected").reason == f"m0 fell with t/0, t/1, t/2, t/3, t/4{more}"


def test_a_released_unit_is_assigned_again() -> None:
    core = a_poisoned_group()
    let_join(core)
    assign(core, m2=share(0, 1, 2))

    released = quarantine(core, release=(POISON,), reason="the document is fixed")

    assert (released.error, released.quarantined, core.group.state) == (ErrorCode.NONE, (), "PreparingRebalance")
    assert (core.last("rebalance_started").cause, core.last("units_released").units) == (
        Cause.UNITS_RELEASED,
        (POISON,),
    )
    let_join(core)
    assign(core, m2=share(0, 1, 2))
    assert held(core) == {"m2": {"t/0", "t/1", "t/2"}}


def release_timers(core: Core) -> list[Timer]:
    return [timer for *_, timer in core._timers if timer.kind is TimerKind.RELEASE]


def test_a_new_owner_releases_a_unit_when_its_time_is_over() -> None:
    core = a_poisoned_group()
    quarantine(core, release_after_ms=60_000)
    let_join(core)
    until_ms = core.last("units_quarantined").until_ms
    assert until_ms == core.now_ms + 60_000
    assert release_timers(core) == [Timer(TimerKind.RELEASE, *KEY, "", until_ms)]
    assign(core, m2=share(0, 1, 2))
    core.restart()
    assert release_timers(core) == [Timer(TimerKind.RELEASE, *KEY, "", until_ms)]
    assert held(core) == {"m2": {"t/1", "t/2"}}

    for _ in range(61):
        core.advance(1_000)
        if core.group.state == "Stable":
            core.ask(a_heartbeat("m2", core.generation_id))

    assert core.group.quarantine.names == ()
    assert core.last("units_released").reason == "their time in quarantine is over"


def test_a_unit_due_while_there_was_no_owner_is_released_soon() -> None:
    core = a_poisoned_group()
    quarantine(core, release_after_ms=60_000)
    let_join(core)
    core.now_ms += 90_000

    core.restart()

    assert release_timers(core) == [Timer(TimerKind.RELEASE, *KEY, "", core.now_ms + 1)]


def test_only_units_whose_time_is_over_are_released() -> None:
    core = a_group(members=5, after_falls=1, max_units=3)
    for name, release_after_ms in (("m0", 0), ("m1", 30_000), ("m2", 60_000)):
        quarantine(core, release_after_ms=release_after_ms)
        core.ask(LeaveGroup(*KEY, (LeavingMember(name, failed_unit=f"t/{name[1]}"),)))
        let_join(core)
        assign(core, **{each: share(int(each[1])) for each in core.group.members})
    assert [*core.group.quarantine.names] == ["t/0", "t/1", "t/2"]

    for _ in range(30):
        core.advance(1_000)
        for each in core.group.members:
            core.ask(a_heartbeat(each, core.generation_id))

    assert [*core.group.quarantine.names] == ["t/0", "t/2"]


def test_a_release_waits_for_the_end_of_a_freeze() -> None:
    core = a_poisoned_group()
    let_join(core)
    assign(core, m2=share(0, 1, 2))
    core.ask(FreezeGroup(*KEY, 5_000))

    quarantine(core, release=(POISON,))
    assert core.group.state == "Stable"
    core.advance(5_000)

    assert core.group.state == "PreparingRebalance"


def test_the_servers_assignments_leave_the_unit_out_as_well() -> None:
    core = a_served_group(members=2)
    finish(core)
    quarantine(core, after_falls=1, max_units=2)
    gone = next(name for name, units in held(core).items() if "documents/0" in units)
    units = held(core)[gone]
    stays = next(name for name in core.group.members if name != gone)
    for _ in range(SESSION_MS // 1_000 + 1):
        core.advance(1_000)
        core.ask(a_heartbeat(stays, core.generation_id))
    core.send(a_join(stays, protocols=(("server:sticky", b'{"topics": ["documents"]}'),), protocol_type="consumer"))

    finish(core)
    assert held(core)[stays] == {"documents/0", "documents/1", "documents/2", "documents/3"} - units

    generation_id = core.generation_id
    finish(core, the_job(core))
    assert (core.group.state, core.generation_id) == ("Stable", generation_id)


def test_a_holder_acquits_what_an_assignment_takes_from_it() -> None:
    core = a_served_group(members=3)
    finish(core)
    quarantine(core, after_falls=2)
    expire(core, "m0")
    join(core, "m1")
    join(core, "m2")
    finish(core)
    suspected = core.group.quarantine.suspects
    first, second = shares_of(core.group).values()

    core.ask(RebalanceGroup(*KEY))
    join(core, "m1")
    join(core, "m2")
    hand_in(core, {"m1": second, "m2": first})

    assert suspected
    assert core.group.quarantine.suspects == ()


def test_the_rule_is_changed_in_parts_and_its_end_acquits() -> None:
    core = a_group()
    expire(core, "m0")
    let_join(core)
    changed = quarantine(core, max_units=4)
    assert (changed.after_falls, changed.max_units, changed.release_after_ms) == (2, 4, 0)
    assert core.ask(DescribeGroup(*KEY)).quarantine_after == 2

    quarantine(core, after_falls=0)

    assert core.group.quarantine.suspects == ()
    assert core.ask(DescribeGroup(*KEY)).quarantine_after == 0


def test_a_new_owner_keeps_the_rule_the_suspects_and_the_units() -> None:
    core = a_poisoned_group()
    let_join(core)
    assign(core, m2=share(0, 1, 2))
    assert quarantine(core, max_units=2) == QuarantineReply(ErrorCode.NONE, "", 2, 2, 0, (POISON,))
    before = (core.group.quarantine.names, core.group.quarantine)

    core.restart()

    assert (core.group.quarantine.names, core.group.quarantine) == before
    assert release_timers(core) == []


def test_wrong_requests_are_errors() -> None:
    core = a_group()
    unknown = core.ask(QuarantineGroup(NAMESPACE, "unknown", 2))
    strange = quarantine(core, release=("t/9",))
    election = quarantine(candidates(), after_falls=2)

    assert unknown.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert (strange.error, strange.detail) == (ErrorCode.INVALID_REQUEST, "t/9 is not quarantined")
    assert election.detail == "shares of type 'leader' have no units that could be quarantined"


def test_kafkas_bytes_keep_their_user_data() -> None:
    places = (TopicPartition("t", 0), TopicPartition("t", 1))
    full = consumer.encode_assignment(consumer.Assignment(places, b"more"))

    left = consumer.decode_assignment(without_units("consumer", full, frozenset({POISON})))

    assert (left.partitions, left.user_data) == ((TopicPartition("t", 1),), b"more")
    assert without_units("consumer", full, frozenset({"u/0"})) is full


def test_work_of_connect_workers_is_left_out_by_name() -> None:
    full = encode_share(WorkShare((WorkItem("c"), WorkItem("c", 0))), 7)

    left = without_units("worker", full, frozenset({"c/0"}))

    assert units_of("worker", full) == {"c/-1", "c/0"}
    assert (decode_share(left).run, config_offset_in(left)) == ((WorkItem("c"),), 7)


def test_an_empty_group_with_a_rule_is_not_swept() -> None:
    core = a_group(members=1)
    core.ask(a_leave("m0"))

    assert core.sweep() == 0
    quarantine(core, after_falls=0)

    assert core.sweep() == 1
