"""The invariants speak up: each is broken on purpose once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rota.core.group.state import EMPTY, PREPARING_REBALANCE, Group
from rota.protocol.fencing_token import LAST_TAKEOVER
from tests.simulation.invariants import check_group
from tests.unit.group.driver import (
    a_commit,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_stable_group,
    a_sync,
    a_tombstone,
    check_shard,
)
from tests.unit.group.test_preemption import a_race


def _set(path: str, value: object) -> Callable[[Group], None]:
    """Break a field of the group, or of its second member."""

    def breach(group: Group) -> None:
        owner = list(group.members.values())[1] if path.startswith("member.") else group
        setattr(owner, path.removeprefix("member."), value)

    return breach


def _forget_support(group: Group) -> None:
    group.support["range"] -= 1


def _forget_static(group: Group) -> None:
    group.static_members.clear()


def _swap_positions(group: Group) -> None:
    first, second = list(group.members.values())[:2]
    first.position, second.position = second.position, first.position


def _make_pending(group: Group) -> None:
    group.pending["m1"] = 1


def _settle_elsewhere(group: Group) -> None:
    assert group.settled is not None
    group.settled = replace(group.settled, generation_id=7)


def _settle_another_leader(group: Group) -> None:
    assert group.settled is not None
    group.settled = replace(group.settled, leader_id="x")


@pytest.mark.parametrize(
    ("breach", "reported"),
    [
        (_set("joined_count", 1), "joined_count is 1, but 0 have joined"),
        (_forget_support, "support is"),
        (_forget_static, "static members are {}"),
        (_swap_positions, "do not follow the order of joining"),
        (_set("member.position", 0), "do not follow the order of joining"),
        (_set("next_position", 1), "next_position 1 is taken"),
        (_set("leader_id", "x"), "leader 'x' of members"),
        (_set("generation_leader_id", "m1"), "but the generation was given to 'm1'"),
        (_make_pending, "are pending and members at once"),
        (_set("state", EMPTY), "Empty with members"),
        (_set("protocol_name", "x"), "is not listed by all members"),
        (_set("join_deadline_ms", 5), "Stable with join deadline 5"),
        (_set("state", PREPARING_REBALANCE), "with join deadline None"),
        (_set("initial", True), "an initial join phase in Stable"),
        (_set("pending_sync", {"x": None}), "are awaited to sync but are no members"),
        (_set("sync_deadline_ms", 5), "0 have not synced, with sync deadline 5"),
        (_set("join_generation_id", 9), "above generation 1"),
        (_set("settled", None), "the store does not know it"),
        (_settle_elsewhere, "but 7 is settled"),
        (_settle_another_leader, "but 'x' is settled"),
        (_set("member.joined", True), "has joined in Stable"),
        (_set("member.join_call", 1), "parks a join without having joined"),
        (_set("member.sync_call", 1), "parks a sync in Stable"),
        (_set("member.session_deadline_ms", None), "it could stay for ever"),
        (_set("member.session_armed_ms", None), "its timer rings at None"),
        (_set("member.settled", None), "is not settled in Stable"),
    ],
)
def test_breach_is_reported(breach: Callable[[Group], None], reported: str) -> None:
    group = a_stable_group(members=2, static=1).group
    assert check_group(group) == []

    breach(group)

    assert any(reported in rule for rule in check_group(group)), check_group(group)


def test_heartbeat_parked_in_a_join_phase_is_reported() -> None:
    group = a_group_in_a_join_phase(members=2).group
    group.members["m0"].heartbeat_call = 1

    assert any("parks a heartbeat in PreparingRebalance" in rule for rule in check_group(group))


def test_join_phase_that_outlasts_the_last_join_is_reported() -> None:
    group = a_group_in_a_join_phase(members=2).group
    group.members["m0"].joined, group.joined_count = True, 2

    assert any("every member has joined, but the join phase goes on" in rule for rule in check_group(group))


def test_deadline_of_a_parked_member_is_reported() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    core.send(a_sync("m1", 1))
    core.group.members["m1"].session_deadline_ms = 99_999

    assert any("although a parked call proves that it lives" in rule for rule in check_group(core.group))


def test_a_leaders_sync_that_the_others_do_not_get_is_reported() -> None:
    group = a_group_awaiting_its_assignment(members=2).group
    group.members["m0"].sync_call = 1

    assert any("the leader has synced, but the members wait" in rule for rule in check_group(group))


@pytest.mark.parametrize(
    ("first", "second", "of", "is_reported"),
    [(1, 1, 1, True), (1, 2, 1, True), (1, 2, 2, False), (LAST_TAKEOVER, LAST_TAKEOVER, LAST_TAKEOVER, False)],
)
def test_successors_with_the_same_token_are_reported(first: int, second: int, of: int, is_reported: bool) -> None:
    group = a_stable_group(members=2, static=2).group
    group.members["m0"].takeover, group.members["m1"].takeover, group.takeovers = first, second, of

    assert any(f"of {of} takeovers" in rule for rule in check_group(group)) is is_reported


def test_a_candidate_without_a_timer_is_reported() -> None:
    group = a_race(1, 5).group
    group.preempt_at_ms = 7

    assert any("m1 is to lead from" in rule for rule in check_group(group))


def test_group_under_another_s_name_is_reported() -> None:
    core = a_stable_group(members=1)
    core.shard.groups[("default", "h")] = core.group

    assert any("holds the group" in rule for rule in check_shard(core.shard))


def test_generation_below_that_of_the_tombstone_is_reported() -> None:
    core = a_stable_group(members=1)
    core.shard.tombstones[("default", "g")] = a_tombstone(5)

    assert any("below that of its tombstone" in rule for rule in check_shard(core.shard))


def test_a_protocol_that_the_only_member_lacks_is_reported() -> None:
    group = a_stable_group(members=1).group
    group.protocol_name = "x"

    assert any("is not listed by all members" in each for each in check_group(group))


def test_an_unknown_group_with_offsets_is_reported() -> None:
    core = a_stable_group(members=1)
    core.ask(a_commit("m0", 1))
    core.group.settled = core.group.members["m0"].settled = None

    assert any("knows its members or offsets" in each for each in check_group(core.group))
