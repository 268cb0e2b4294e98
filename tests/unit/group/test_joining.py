"""Joining: which members are admitted, which wait, and their answers (protocol.md §3, §8, §9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    DELAY_MS,
    LIMITS,
    REBALANCE_MS,
    SESSION_MS,
    Core,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_shard,
    everybody_again,
)


def test_dynamic_newcomer_is_given_an_id_to_come_back_with() -> None:
    core = an_empty_shard()

    reply = core.ask(a_join(new="m0"))

    assert (reply.error, reply.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "m0")
    assert list(core.group.pending) == ["m0"]


def test_static_newcomer_is_admitted_in_one_step() -> None:
    core = an_empty_shard()

    call = core.send(a_join(new="m0", instance="i0"))

    assert core.is_parked(call)
    assert list(core.group.members) == ["m0"]


def test_members_that_offer_the_same_share_it_in_memory() -> None:
    core = an_empty_shard()
    for number, metadata in enumerate((b"m", b"n", b"m")):
        core.send(a_join(new=f"m{number}", instance=f"i{number}", protocols=(("range", bytes([*metadata])),)))

    first, second, third = (each.image.protocols for each in core.group.members.values())

    assert (first[0].metadata, second[0].metadata) == (b"m", b"n")
    assert first is third


def test_members_that_say_the_same_share_their_numbers() -> None:
    core = an_empty_shard()
    for number, session_ms in enumerate(("12000", "13000", "12000")):
        core.send(a_join(new=f"m{number}", instance=f"i{number}", session_ms=int(session_ms)))

    first, second, third = (each.image for each in core.group.members.values())

    assert (first.session_timeout_ms, second.session_timeout_ms) == (12_000, 13_000)
    assert first.session_timeout_ms is third.session_timeout_ms


def test_first_generation_begins_when_the_initial_delay_is_over() -> None:
    core = a_group_in_its_initial_delay(members=1)

    core.advance(DELAY_MS - 1)
    assert core.group.state == "PreparingRebalance"
    core.advance(1)

    assert (core.group.state, core.generation_id) == ("CompletingRebalance", 1)


def test_initial_delay_is_extended_while_newcomers_arrive() -> None:
    core = a_group_in_its_initial_delay(members=1)

    core.advance(DELAY_MS - 100)
    core.send(a_join(new="late", instance="late"))
    core.advance(100)
    assert core.group.state == "PreparingRebalance"
    core.advance(DELAY_MS)

    assert list(core.group.members) == ["m0", "late"]
    assert core.group.state == "CompletingRebalance"


def test_leader_gets_the_members_and_followers_do_not() -> None:
    core = a_group_in_its_initial_delay(members=2)
    leader, follower = list(core.unanswered)

    core.advance(DELAY_MS * 3)

    assert [member.member_id for member in core.answer(leader).members] == ["m0", "m1"]
    assert core.answer(follower).members == ()
    assert core.answer(follower).leader_id == "m0"


def test_join_with_an_unknown_id_does_not_disturb_the_group() -> None:
    core = a_stable_group(members=2)

    reply = core.ask(a_join("stranger"))

    assert reply.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert core.group.state == "Stable"


def test_refused_first_join_leaves_no_group_behind() -> None:
    core = an_empty_shard()

    reply = core.ask(a_join(new="m0", protocols=()))

    assert reply.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert core.shard.groups == {}


def test_another_protocol_type_is_refused() -> None:
    core = a_stable_group(members=1)

    reply = core.ask(a_join(new="x", protocol_type="consumer"))

    assert reply.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert reply.detail == (
        "group 'g' has the protocol type 'worker' (Connect workers) and the protocol 'range';"
        " this member offers the protocol 'range' of the protocol type 'consumer' (consumers and worker pools);"
        " use another group name"
    )


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


def test_session_timeout_out_of_bounds_is_refused() -> None:
    core = an_empty_shard()

    reply = core.ask(a_join(new="m0", session_ms=1))

    assert reply.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert "1000 to 1800000" in reply.detail


def test_join_without_a_group_id_is_refused() -> None:
    core = an_empty_shard()

    assert core.ask(replace(a_join(new="m0"), group_id="")).error is ErrorCode.INVALID_GROUP_ID


def test_newcomer_makes_a_stable_group_agree_anew() -> None:
    core = a_stable_group(members=2)

    core.ask(a_join(new="m2"))
    core.send(a_join("m2"))

    assert core.group.state == "PreparingRebalance"
    assert core.group.rebalance_reason == "member m2 joined"
    assert core.group.rebalance_by == "m2"


def test_join_phase_ends_when_everybody_has_joined_again() -> None:
    core = a_group_in_a_join_phase(members=3)

    calls = [core.send(a_join(member_id)) for member_id in ("m0", "m1")]

    assert [core.answer(call).generation_id for call in calls] == [2, 2]


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


def test_a_dynamic_member_that_does_not_rejoin_is_removed() -> None:
    core = a_group_in_a_join_phase(members=3)
    core.send(a_join("m0"))

    for _ in range(REBALANCE_MS // 5_000):
        core.advance(5_000)
        if core.group.state == "PreparingRebalance":
            core.ask(a_heartbeat("m1", 1))

    assert list(core.group.members) == ["m0", "m2"]
    assert core.last("member_expired").reason == "did not rejoin within the rebalance timeout"


def test_an_unchanged_follower_rejoins_the_current_generation() -> None:
    core = a_stable_group(members=2)

    reply = core.ask(a_join("m1"))

    assert (reply.generation_id, core.group.state) == (1, "Stable")
    assert reply.assignment is None, "it fetches its share by a sync, where the leader assigns"


def test_a_follower_with_other_metadata_starts_a_rebalance() -> None:
    core = a_stable_group(members=2)

    core.send(a_join("m1", protocols=(("range", b"other"),)))

    assert core.group.rebalance_reason == "member m1 changed its metadata"


def test_leader_that_rejoins_always_starts_a_rebalance() -> None:
    core = a_stable_group(members=2)

    core.send(a_join("m0"))

    assert core.group.rebalance_reason == "leader m0 joined again"


def test_an_unchanged_rejoin_repeats_the_generation() -> None:
    core = a_group_awaiting_its_assignment(members=2)

    leader, follower = core.ask(a_join("m0")), core.ask(a_join("m1"))

    assert (leader.generation_id, follower.generation_id) == (1, 1)
    assert len(leader.members) == 2


def test_a_changed_rejoin_fails_syncs_that_await_the_assignment() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    parked = core.send(a_sync("m1", 1))

    core.send(a_join("m1", protocols=(("range", b"other"),)))

    assert core.answer(parked).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.deadline_ms("m1") is None, "its join is parked, so it lives"


def test_a_later_join_of_a_member_replaces_the_parked_one() -> None:
    core = a_group_in_its_initial_delay(members=1)
    (first,) = core.unanswered

    second = core.send(a_join("m0"))

    assert core.answer(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.is_parked(second)


def test_a_parked_join_is_pending_when_its_time_is_over() -> None:
    core = a_group_in_its_initial_delay(members=1)
    (call,) = core.unanswered

    core.wait_is_over(call)

    assert (core.answer(call).pending, core.answer(call).member_id) == (True, "m0")
    assert core.group.members["m0"].joined
    assert core.deadline_ms("m0") == core.now_ms + SESSION_MS


def test_who_stops_polling_is_dropped_after_its_session() -> None:
    core = a_group_in_a_join_phase(members=2)
    (call,) = core.unanswered

    core.hang_up(call)
    core.advance(SESSION_MS - 1)
    core.ask(a_heartbeat("m0", 1))
    core.advance(1)

    assert "m1" not in core.group.members


def test_parked_join_outlives_the_session_timeout() -> None:
    core = a_group_in_a_join_phase(members=2)

    core.advance(SESSION_MS - 1)
    core.ask(a_heartbeat("m0", 1))
    core.advance(SESSION_MS - 1)

    assert "m1" in core.group.members


def test_full_group_turns_newcomers_away() -> None:
    core = a_stable_group(members=2, limits=dataclasses.replace(LIMITS, group_max_size=2))

    assert core.ask(a_join(new="m2")).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_static_member_finds_its_place_in_a_full_group() -> None:
    core = a_stable_group(members=2, static=2, limits=dataclasses.replace(LIMITS, group_max_size=2))

    assert core.ask(a_join(new="again", instance="i1")).member_id == "again"


def test_protocol_that_most_members_prefer_is_chosen() -> None:
    core = an_empty_shard()
    for instance, names in (("a", "xy"), ("b", "yx"), ("c", "yx")):
        core.send(a_join(new=instance, instance=instance, protocols=tuple((name, b"") for name in names)))

    core.let_the_join_phase_end()

    assert core.group.protocol_name == "y"


def test_tie_goes_to_the_earliest_member() -> None:
    core = an_empty_shard()
    for instance, names in (("a", "yx"), ("b", "xy")):
        core.send(a_join(new=instance, instance=instance, protocols=tuple((name, b"") for name in names)))

    core.let_the_join_phase_end()

    assert core.group.protocol_name == "y"


def test_a_leader_may_give_the_groups_protocol_up() -> None:
    core = an_empty_shard()
    for instance in ("a", "b"):
        core.send(a_join(new=instance, instance=instance, protocols=(("x", b""), ("y", b""))))
    core.let_the_join_phase_end()
    core.ask(a_sync("a", 1, "a"))

    core.send(a_join("a", instance="a", protocols=(("y", b""),)))
    core.send(a_join("b", instance="b", protocols=(("x", b""), ("y", b""))))

    assert (core.generation_id, core.group.protocol_name) == (2, "y")


def test_next_leader_is_the_earliest_member_that_joined() -> None:
    core = a_group_in_a_join_phase(members=3)
    core.ask(a_leave("m0"))

    core.send(a_join("m1"))

    assert core.leader_id == "m1"
    assert core.last("leader_changed").leader_id == "m1"


def test_group_forgets_its_protocol_type_when_it_is_empty() -> None:
    core = a_stable_group(members=1)
    core.ask(a_leave("m0"))

    core.ask(a_join(new="c", protocol_type="consumer"))
    core.send(a_join("c", protocol_type="consumer"))

    assert core.group.protocol_type == "consumer"


def test_everybody_rejoining_makes_one_generation() -> None:
    core = a_stable_group(members=4)

    calls = everybody_again(core)

    assert {core.answer(call).generation_id for call in calls.values()} == {2}
    assert core.kinds().count("generation_completed") == 2
