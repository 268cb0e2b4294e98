"""What every assignor promises."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.assignors import (
    STRATEGIES,
    MemberSubscription,
    UnknownAssignor,
    assign,
    strategy,
)
from tests.conformance.assignor_properties import Outcome, holds
from tests.unit.assignors.worlds import RACKS, Group, deterministic, groups

SIMPLE = {name for name, each in STRATEGIES.items() if not each.has_rules and each.own is None}
COPIES = {name for name, each in STRATEGIES.items() if each.copies}
names = st.sampled_from(sorted(SIMPLE - COPIES))
"""All that give each partition to one member."""


def outcome(group: Group, name: str) -> Outcome:
    return Outcome(group.partitions_per_topic, group.members, group.assign(name))


@deterministic
@given(names, groups())
def test_nothing_is_granted_twice_unasked_or_unknown(name: str, group: Group) -> None:
    assert holds("valid", outcome(group, name))


@deterministic
@given(st.sampled_from(sorted(SIMPLE - COPIES - {"cooperative-sticky"})), groups())
def test_everything_that_somebody_asks_for_is_given(name: str, group: Group) -> None:
    assert holds("complete", outcome(group, name))


@deterministic
@given(names, groups(), st.randoms(use_true_random=False))
def test_the_order_of_the_members_makes_no_difference(name: str, group: Group, chance: random.Random) -> None:
    members = list(group.members)
    chance.shuffle(members)

    assert Group(group.partitions_per_topic, members).assign(name) == group.assign(name)


@deterministic
@given(names, groups())
def test_shares_are_in_order(name: str, group: Group) -> None:
    assert all(share == sorted(share) for share in group.assign(name).values())


@deterministic
@given(st.sampled_from(["roundrobin", "sticky"]), groups(equal=True))
def test_equal_subscribers_differ_by_one_partition_at_most(name: str, group: Group) -> None:
    assert holds("fully-balanced", outcome(group, name))


@deterministic
@given(names, groups(), st.data())
def test_racks_change_shares_but_no_promise_of_an_assignor(name: str, group: Group, data: st.DataObject) -> None:
    members = [
        MemberSubscription(
            member.member_id,
            topics=member.topics,
            owned_partitions=member.owned_partitions,
            generation=member.generation,
            rack=data.draw(st.sampled_from(RACKS)),
        )
        for member in group.members
    ]
    racks = {
        topic: data.draw(st.lists(st.sets(st.sampled_from(["r1", "r2", "r3"])), max_size=count))
        for topic, count in group.partitions_per_topic.items()
    }

    result = outcome(Group(group.partitions_per_topic, members, racks), name)

    assert holds("valid", result)
    if name == "cooperative-sticky":
        assert holds("two-phase", result)
    else:
        assert holds("complete", result)
    if name == "sticky":
        assert holds("balanced", result)


def test_range_keeps_partition_n_of_two_topics_together() -> None:
    members = [MemberSubscription(f"m{index}", topics=("orders", "payments")) for index in range(3)]

    shares = assign("range", {"orders": 7, "payments": 7}, members)

    for share in shares.values():
        orders, payments = ([p.partition for p in share if p.topic == topic] for topic in ("orders", "payments"))
        assert orders == payments


def test_a_group_without_members_has_no_shares() -> None:
    assert {name: assign(name, {"t": 3}, []) for name in SIMPLE} == {name: {} for name in SIMPLE}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("sticky(prefer=luck)", "prefer=luck"),
        ("sticky(n=2)", "its options: prefer"),
        ("range(n=2)", "its options: none"),
        ("redundant(0)", "redundant has no option '0'"),
        ("weighted(max_moves=-1)", "max_moves=-1"),
        ("redundant(2", "no assignor"),
        ("cooperative-redundant(1)", "cooperative-redundant has no option '1'"),
        ("by-topic(t=redundant(0))", "redundant has no option '0'"),
        ("by-topic(t=by-topic(*=range))", "no rules inside of rules"),
        ("by-topic(t=cooperative-redundant)", "use cooperative-by-topic"),
        ("cooperative-by-topic(t=redundant(2), *=range)", "use cooperative-redundant"),
        ("cooperative-by-topic(*=redundant)", "use cooperative-redundant"),
    ],
)
def test_an_option_that_is_not_one_is_refused(name: str, why: str) -> None:
    with pytest.raises(UnknownAssignor, match=why):
        strategy(name)


def test_options_are_part_of_the_name() -> None:
    members = [MemberSubscription(f"m{index}", topics=("t",)) for index in range(4)]

    for name in ("redundant(3)", "redundant(n=3)", "redundant( n = 3 )"):
        assert sum(map(len, assign(name, {"t": 4}, members).values())) == 12


@pytest.mark.parametrize(
    "name", ["by-topic(a=redundant(3), *=range)", "cooperative-by-topic(a=cooperative-redundant(3), *=sticky)"]
)
def test_a_rule_may_have_a_strategy_with_options(name: str) -> None:
    members = [MemberSubscription(f"m{index}", topics=("a", "b")) for index in range(4)]

    shares = assign(name, {"a": 2, "b": 4}, members)

    assert sorted(place.topic for share in shares.values() for place in share) == ["a"] * 6 + ["b"] * 4


def test_two_members_of_the_same_id_are_refused() -> None:
    with pytest.raises(ValueError, match="member_id"):
        assign("range", {"t": 1}, [MemberSubscription("m"), MemberSubscription("m")])
