"""After a store went back: no generation is granted that was granted before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rota.core.group.join import MOST_GENERATIONS_AHEAD
from rota.core.group.state import Result
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DeleteGroup, JoinGroup
from tests.unit.group.driver import (
    DELAY_MS,
    GROUP_ID,
    NAMESPACE,
    Core,
    a_commit,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    a_tombstone,
    an_empty_group,
    an_empty_shard,
    everybody_again,
)

FLOOR = 70


def raise_floor(core: Core, floor: int = FLOOR) -> None:
    result = Result(core.now_ms, core.shard.limits)
    core.shard.raise_generations(result, floor, {})
    core._take(result)


@pytest.mark.parametrize("build", [a_stable_group, a_group_awaiting_its_assignment, a_group_in_a_join_phase])
def test_a_floor_has_the_members_agree_on_a_later_generation(build: type[Core]) -> None:
    core = build()
    raise_floor(core)

    assert core.group.state == "PreparingRebalance"
    assert {core.ask(a_heartbeat(each, 1)).error for each in core.ids} == {ErrorCode.ILLEGAL_GENERATION}
    assert core.ask(a_commit(core.ids[0], 1)).error is ErrorCode.ILLEGAL_GENERATION
    everybody_again(core)
    assert core.generation_id > FLOOR


def test_a_floor_binds_a_group_whose_first_members_are_joining() -> None:
    core = a_group_in_its_initial_delay()
    raise_floor(core)

    core.let_the_join_phase_end()

    assert core.generation_id == FLOOR + 1


def test_a_floor_of_a_group_with_offsets_alone_folds_alike() -> None:
    core = an_empty_shard()
    core.ask(a_commit("", -1))
    raise_floor(core)

    core.send(a_join(new="m0", instance="i0"))

    assert core.generation_id == FLOOR


def test_a_floor_not_above_the_generation_changes_nothing() -> None:
    core = a_stable_group()
    lines = len(core.journal)

    raise_floor(core, 1)

    assert len(core.journal) == lines
    assert core.ask(a_heartbeat("m0", 1)).error is ErrorCode.NONE
    core.send(a_join(new="m9", instance="i9"))
    assert "generation_raised" not in core.kinds()


def test_the_journal_says_from_where_a_generation_was_raised() -> None:
    core = a_stable_group()
    lost = (("generation", 60, 1), ("t/0", 9, -1))
    result = Result(core.now_ms, core.shard.limits)

    core.shard.raise_generations(result, FLOOR, {core.group.key: lost})
    core._take(result)

    raised = core.last("generation_raised")
    assert (raised.generation_id, raised.former_generation_id, raised.lost) == (FLOOR, 1, lost)


def test_new_groups_begin_above_the_floor() -> None:
    core = an_empty_shard()
    raise_floor(core)

    core.send(a_join(new="m0", instance="i0"))
    core.advance(DELAY_MS)

    assert core.generation_id == FLOOR + 1


def test_an_empty_group_goes_on_above_the_floor() -> None:
    core = an_empty_group()
    raise_floor(core)

    core.ask(a_join(new="m1"))
    assert core.generation_id < FLOOR
    core.send(a_join("m1"))
    core.advance(DELAY_MS)

    assert core.generation_id == FLOOR + 1


def test_a_new_owner_finds_a_raised_group_empty_as_it_was() -> None:
    core = an_empty_group()
    raise_floor(core)
    core.send(a_join(new="m1", instance="i1"))

    core.restart()

    assert (core.group.state, core.generation_id, core.group.members) == ("Empty", FLOOR, {})


def test_a_deleted_group_begins_again_above_the_floor() -> None:
    core = an_empty_group()
    core.ask(DeleteGroup(NAMESPACE, GROUP_ID))
    raise_floor(core)

    core.send(a_join(new="m1", instance="i1"))
    core.advance(DELAY_MS)

    assert core.generation_id == FLOOR + 1


def test_a_new_owner_loads_a_raised_group_without_a_generation() -> None:
    core = a_stable_group()
    raise_floor(core)
    core.restart()

    assert (core.group.state, core.generation_id) == ("PreparingRebalance", FLOOR)
    assert core.ask(a_sync("m0", 1)).error is not ErrorCode.NONE


def test_a_floor_binds_a_group_whose_members_are_all_gone() -> None:
    """Only newcomers were in its join phase, which a new owner forgets: the phase ends without a member."""
    core = a_stable_group(members=1)
    core.ask(a_join(new="m9"))
    core.send(a_join("m9"))
    core.ask(a_join(new="m8"))
    core.ask(a_leave("m0"))
    core.restart()
    assert (core.group.state, core.group.members) == ("PreparingRebalance", {})

    raise_floor(core)
    core.advance(1_000)

    assert (core.group.state, core.generation_id) == ("Empty", FLOOR + 1)


def test_the_highest_generation_is_a_groups_or_the_floor() -> None:
    core = a_stable_group()
    core.checking = False
    assert core.shard.highest_generation == 1
    core.shard.tombstones["default", "gone"] = a_tombstone(9)
    assert core.shard.highest_generation == 9
    raise_floor(core)
    assert core.shard.highest_generation == FLOOR


def test_a_member_that_held_a_later_generation_raises_the_groups() -> None:
    core = a_stable_group()

    core.ask(a_join(new="m9"))
    core.send(replace(a_join("m9"), last_generation_id=6))

    assert core.ask(a_heartbeat("m0", 1)).error is ErrorCode.ILLEGAL_GENERATION
    everybody_again(core)
    assert core.generation_id == 8, "one above a number that no member has held"


@pytest.mark.parametrize("member_id", ["m0", "m1"])
def test_a_known_member_that_held_a_later_generation_raises_it(member_id: str) -> None:
    core = a_stable_group()

    core.send(replace(a_join(member_id), last_generation_id=6))

    assert core.group.state == "PreparingRebalance"
    assert core.generation_id == 7


def test_a_static_member_that_held_a_later_generation_raises_it() -> None:
    core = a_stable_group(static=1)

    core.send(replace(a_join(new="m9", instance="i0"), last_generation_id=6))

    assert core.generation_id == 7


@pytest.mark.parametrize("held", [-1, 0, 1])
def test_a_generation_that_is_not_later_raises_nothing(held: int) -> None:
    core = a_stable_group()

    reply = core.ask(replace(a_join("m1"), last_generation_id=held))

    assert (reply.error, reply.generation_id, core.group.state) == (ErrorCode.NONE, 1, "Stable")


@pytest.mark.parametrize(
    "request_",
    [a_join(new="m9"), a_join("stranger"), a_join("m1", instance="i0")],
    ids=["given an id", "unknown", "fenced"],
)
def test_a_client_that_is_not_admitted_raises_nothing(request_: JoinGroup) -> None:
    core = a_stable_group(static=1)

    core.ask(replace(request_, last_generation_id=6))

    assert core.generation_id == 1


def test_a_generation_far_ahead_is_ignored_with_a_warning() -> None:
    core = a_stable_group()
    request = replace(a_join("m1"), last_generation_id=1 + MOST_GENERATIONS_AHEAD + 1)

    result = core.shard.handle(request, 1_000, core.now_ms)

    assert core.generation_id == 1
    assert result.warning == f"member m1 claims generation {MOST_GENERATIONS_AHEAD + 2}, the group is in 1: ignored"


def test_the_furthest_generation_raises_without_a_warning() -> None:
    core = a_stable_group()
    furthest = 1 + MOST_GENERATIONS_AHEAD

    result = core.shard.handle(replace(a_join("m1"), last_generation_id=furthest), 1_000, core.now_ms)

    assert (core.generation_id, result.warning) == (furthest + 1, "")


def test_a_new_groups_member_that_is_far_ahead_raises_nothing() -> None:
    core = an_empty_shard()

    core.send(replace(a_join(new="m0", instance="i0"), last_generation_id=MOST_GENERATIONS_AHEAD + 1))

    assert "generation_raised" not in core.kinds()


@pytest.mark.parametrize(("held", "raised"), [(FLOOR - 5, FLOOR), (FLOOR - 1, FLOOR), (FLOOR, FLOOR + 1)])
def test_the_floor_counts_where_a_member_names_a_number_below_it(held: int, raised: int) -> None:
    core = an_empty_group()
    raise_floor(core)

    core.send(replace(a_join(new="m1", instance="i1"), last_generation_id=held))

    assert core.generation_id == raised


def test_members_leave_a_raised_group_empty_above_the_floor() -> None:
    core = a_stable_group()
    raise_floor(core)

    core.ask(a_leave("m0", "m1"))

    assert (core.group.state, core.generation_id) == ("Empty", FLOOR + 1)
