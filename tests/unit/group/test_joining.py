"""Joining: which members are admitted, which wait, and their answers (protocol.md §3, §8, §9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    LIMITS,
    SESSION_MS,
    Core,
    a_group_awaiting_its_assignment,
    a_group_in_its_initial_delay,
    a_join,
    a_stable_group,
    a_sync,
    an_empty_shard,
)


def test_members_that_offer_the_same_share_it_in_memory() -> None:
    core = an_empty_shard()
    for number, metadata in enumerate((b"m", b"n", b"m")):
        core.send(a_join(new=f"m{number}", instance=f"i{number}", protocols=(("range", bytes([*metadata])),)))

    first, second, third = (each.image.protocols for each in core.group.members.values())

    assert (first[0].metadata, second[0].metadata) == (b"m", b"n")
    assert first is third


def test_refused_first_join_leaves_no_group_behind() -> None:
    core = an_empty_shard()

    reply = core.ask(a_join(new="m0", protocols=()))

    assert reply.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert core.shard.groups == {}


def test_a_rejected_protocol_is_named_beside_the_common_ones() -> None:
    core = a_stable_group(members=2)

    reply = core.ask(a_join(new="x", protocols=(("sticky", b""), ("roundrobin", b""))))

    assert reply.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "all its members list the protocol 'range'; " in reply.detail
    assert "this member offers the protocols 'sticky', 'roundrobin'; " in reply.detail


def test_the_text_of_a_rejected_join_is_short_and_printable() -> None:
    core = a_stable_group(members=1)
    names = tuple((f"{number}\n" + "x" * 10_000, b"") for number in range(60))

    detail = core.ask(a_join(new="x", protocol_type="y" * 10_000, protocols=names)).detail

    assert len(detail) < 1_000
    assert detail.isprintable()
    assert "and 55 more" in detail


def test_a_join_without_protocols_is_answered_with_what_it_lacks() -> None:
    lacking = "a join needs a protocol type and at least one protocol"

    assert an_empty_shard().ask(a_join(new="x", protocols=())).detail == lacking
    assert a_stable_group(members=1).ask(a_join(new="x", protocols=())).detail == lacking


def test_a_pending_id_delays_the_join_phase_for_its_session() -> None:
    core = a_stable_group(members=1)
    core.ask(a_join(new="late"))

    call = core.send(a_join("m0"))
    assert core.is_parked(call)
    core.advance(SESSION_MS)

    assert core.answer(call).generation_id == 2


def test_pending_id_that_brings_an_instance_id_is_refused() -> None:
    core = an_empty_shard()
    core.ask(a_join(new="m0"))

    assert core.ask(a_join("m0", instance="i0")).error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("build", "member"), [(an_empty_shard, ""), (a_stable_group, "m0")])
def test_a_join_lists_each_protocol_once(build: Callable[[], Core], member: str) -> None:
    """Listed twice it would count as that of two members, and no protocol would be common to all."""
    core = build()
    before = core.shard.image()

    reply = core.ask(a_join(member, instance="x", protocols=(("sticky", b""), ("range", b"a"), ("range", b"b"))))

    assert (reply.error, reply.member_id) == (ErrorCode.INVALID_REQUEST, member)
    assert reply.detail == "this member lists the protocol 'range' more than once"
    assert core.shard.image() == before


def test_a_changed_rejoin_fails_syncs_that_await_the_assignment() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    parked = core.send(a_sync("m1", 1))

    core.send(a_join("m1", protocols=(("range", b"other"),)))

    assert core.answer(parked).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.deadline_ms("m1") is None, "its join is parked, so it lives"


def test_a_parked_join_is_pending_when_its_time_is_over() -> None:
    core = a_group_in_its_initial_delay(members=1)
    (call,) = core.unanswered

    core.wait_is_over(call)

    assert (core.answer(call).pending, core.answer(call).member_id) == (True, "m0")
    assert core.group.members["m0"].joined
    assert core.deadline_ms("m0") == core.now_ms + SESSION_MS


def test_static_member_finds_its_place_in_a_full_group() -> None:
    core = a_stable_group(members=2, static=2, limits=dataclasses.replace(LIMITS, group_max_size=2))

    assert core.ask(a_join(new="again", instance="i1")).member_id == "again"


def test_a_leader_may_give_the_groups_protocol_up() -> None:
    core = an_empty_shard()
    for instance in ("a", "b"):
        core.send(a_join(new=instance, instance=instance, protocols=(("x", b""), ("y", b""))))
    core.let_the_join_phase_end()
    core.ask(a_sync("a", 1, "a"))

    core.send(a_join("a", instance="a", protocols=(("y", b""),)))
    core.send(a_join("b", instance="b", protocols=(("x", b""), ("y", b""))))

    assert (core.generation_id, core.group.protocol_name) == (2, "y")
