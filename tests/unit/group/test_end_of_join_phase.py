"""A join phase ends at once when every member has joined, whatever made that so (L3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    LIMITS,
    SESSION_MS,
    Core,
    a_group_in_a_join_phase,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_shard,
)


def _a_phase_that_waits_for_m0() -> Core:
    """Of three members two have joined again."""
    core = a_group_in_a_join_phase(members=3)
    core.send(a_join("m1"))
    return core


def _a_full_phase_that_waits_for_m0() -> Core:
    """As many members have joined as the group takes."""
    core = _a_phase_that_waits_for_m0()
    core.shard.limits = replace(LIMITS, group_max_size=2)
    return core


def _a_phase_that_waits_for_a_pending_id() -> Core:
    core = a_stable_group(members=2)
    core.ask(a_join(new="new"))
    core.send(a_join("m0"))
    core.send(a_join("m1"))
    return core


def _a_full_phase_that_waits_for_a_pending_id() -> Core:
    core = _a_phase_that_waits_for_a_pending_id()
    core.shard.limits = replace(LIMITS, group_max_size=2)
    return core


def _is_silent(core: Core) -> None:
    core.advance(SESSION_MS)


ENDS: dict[str, tuple[Callable[[], Core], Callable[[Core], object]]] = {
    "it joins": (_a_phase_that_waits_for_m0, lambda core: core.send(a_join("m0"))),
    "it leaves": (_a_phase_that_waits_for_m0, lambda core: core.ask(a_leave("m0"))),
    "an administrator removes it": (_a_phase_that_waits_for_m0, lambda core: core.ask(a_leave("m0", by_admin=True))),
    "its session ends": (_a_phase_that_waits_for_m0, _is_silent),
    "the group is full": (_a_full_phase_that_waits_for_m0, lambda core: core.ask(a_join("m0"))),
    "a pending id joins": (_a_phase_that_waits_for_a_pending_id, lambda core: core.send(a_join("new"))),
    "a pending id leaves": (_a_phase_that_waits_for_a_pending_id, lambda core: core.ask(a_leave("new"))),
    "a pending id is void": (_a_phase_that_waits_for_a_pending_id, _is_silent),
    "no room for a pending id": (_a_full_phase_that_waits_for_a_pending_id, lambda core: core.ask(a_join("new"))),
}


@pytest.mark.parametrize(("waits", "happens"), ENDS.values(), ids=ENDS)
def test_join_phase_ends_with_the_last_member_that_it_waits_for(
    waits: Callable[[], Core], happens: Callable[[Core], object]
) -> None:
    core = waits()
    assert core.group.state == "PreparingRebalance"

    happens(core)

    assert (core.group.state, core.generation_id) == ("CompletingRebalance", 2)


def test_a_full_group_does_not_wait_for_the_rejected_member() -> None:
    core = a_stable_group(members=2, limits=replace(LIMITS, group_max_size=2))
    first, newcomer = core.send(a_join("m0")), core.send(a_join(new="new", instance="i"))

    late = core.ask(a_join("m1"))

    assert late.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert core.last("member_removed").reason == "the group is full"
    assert (core.answer(first).generation_id, core.answer(newcomer).generation_id) == (2, 2)
    assert [member.member_id for member in core.answer(first).members] == ["m0", "new"]


def test_a_join_phase_lasts_for_the_longest_rebalance_timeout() -> None:
    core = an_empty_shard()
    core.send(a_join(new="m0", instance="i0", rebalance_ms=2_000))
    core.send(a_join(new="m1", instance="i1", rebalance_ms=8_000))
    core.let_the_join_phase_end()
    core.ask(a_sync("m0", 1, "i0"))
    core.send(a_join("m1", instance="i1", protocols=(("range", b"changed"),), rebalance_ms=4_000))

    core.advance(3_999)
    early = core.group.state
    core.advance(1)

    assert (early, core.group.state) == ("PreparingRebalance", "CompletingRebalance")
