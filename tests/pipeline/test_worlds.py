"""A strategy that is asked by number assigns as it does by name, whatever happened to the group before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rota.core.assignors import MemberSubscription, assign
from rota.core.assignors.forecast import Partitions
from rota.pipeline.worlds import Outcome, Seats, World
from tests.unit.assignors.worlds import deterministic

BY_NAME = "{}(prefer=balance)"
"""The same strategy; a name with options is not asked by number."""

members = st.dictionaries(st.sampled_from([f"m{n}" for n in range(7)]), st.none() | st.just("static"))
counts = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 7), min_size=1).map(Partitions)
steps = st.lists(st.tuples(members, counts, st.sampled_from(["sticky", "cooperative-sticky", "redundant"])), max_size=9)


def seats_of(instance_ids: Mapping[str, str | None]) -> Seats:
    return Seats.of([(m, instance_id and f"instance-{9 - int(m[1:])}") for m, instance_id in instance_ids.items()])


def described(outcome: Outcome) -> tuple[Any, ...]:
    after = outcome.after
    return outcome.change, outcome.rounds, outcome.units, outcome.paused_units, after.imbalance, after.stddev


@deterministic
@given(steps)
def test_sticky_strategies_assign_by_number_as_by_name(history: list[tuple[Any, Partitions, str]]) -> None:
    by_number, by_name = World(), World()

    for instance_ids, partitions, name in history:
        seats = seats_of(instance_ids)
        slow = name if name == "redundant" else BY_NAME.format(name)
        assert described(by_number.step(name, partitions, seats)) == described(by_name.step(slow, partitions, seats))
        assert by_number.named().held == by_name.named().held


@deterministic
@given(st.lists(st.tuples(members, counts, st.sampled_from(["range", "roundrobin"])), max_size=5))
def test_other_strategies_assign_by_count_as_by_name(history: list[tuple[Any, Partitions, str]]) -> None:
    world = World()

    for instance_ids, partitions, name in history:
        seats, topics = seats_of(instance_ids), tuple(partitions.counts)
        world.step(name, partitions, seats)
        asked = [MemberSubscription(m, instance_id, topics) for m, instance_id in seats.instance_ids.items()]
        assert world.named().shares == assign(name, partitions.counts, asked)


def test_a_static_member_keeps_its_share_under_another_id() -> None:
    world, partitions = World(), Partitions({"a": 4})
    world.step("sticky", partitions, seats_of({"m1": "static", "m2": None}))

    world.rename("m1", "m3")

    assert (world.held_by("m1"), world.held_by("m3")) == (0, 2)
    assert world.step("sticky", partitions, seats_of({"m3": "static", "m2": None})).change.moves == 0
