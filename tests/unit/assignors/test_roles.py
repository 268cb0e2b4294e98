"""The roles of copies: which of a partition's members has the active one, and which is promoted after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rota.core.assignors import (
    GroupSubscription,
    MemberSubscription,
    TopicPartition,
    active_copies,
    assign_group,
    has_copies,
)
from tests.unit.assignors.worlds import deterministic

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
Places = tuple[TopicPartition, ...]


def member(name: str, owned: Places = (), active: Places = (), generation: int = 1) -> MemberSubscription:
    return MemberSubscription(name, None, ("t",), owned, generation, active_partitions=active)


def of_all(members: list[MemberSubscription]) -> Mapping[str, list[TopicPartition]]:
    """Each member has what it owns."""
    return {each.member_id: list(each.owned_partitions) for each in members}


def test_each_partition_has_one_active_copy() -> None:
    shares = {name: [TopicPartition("t", number) for number in range(4)] for name in ("a", "b")}

    active = active_copies([member("a"), member("b")], shares)

    assert sorted(active["a"] + active["b"]) == shares["a"]
    assert len(active["a"]) == len(active["b"]) == 2


def test_the_active_copy_stays_where_it_is() -> None:
    members = [member("a", (FIRST, SECOND)), member("b", (FIRST, SECOND), (FIRST, SECOND))]

    assert active_copies(members, of_all(members)) == {"a": [], "b": [FIRST, SECOND]}


def test_a_standby_is_promoted_before_a_newcomer() -> None:
    members = [member("a"), member("standby", (FIRST,))]

    assert active_copies(members, {"a": [FIRST], "standby": [FIRST]}) == {"a": [], "standby": [FIRST]}


def test_the_standby_with_the_fewest_active_copies_is_promoted() -> None:
    members = [member("a", (FIRST, SECOND), (FIRST,)), member("b", (FIRST, SECOND))]

    assert active_copies(members, of_all(members)) == {"a": [FIRST], "b": [SECOND]}


def test_no_copy_is_active_before_the_former_one_was_revoked() -> None:
    members = [member("leaves-it", (FIRST,), (FIRST,)), member("standby", (FIRST,))]
    shares: Mapping[str, list[TopicPartition]] = {"leaves-it": [], "standby": [FIRST]}

    assert active_copies(members, shares, withholds=True)["standby"] == []
    assert active_copies(members, shares)["standby"] == [FIRST], "where all members stop before they join"
    without = [member("leaves-it"), members[1]]
    assert active_copies(without, shares, withholds=True)["standby"] == [FIRST]


def test_late_and_empty_claims_count_for_nothing() -> None:
    late = member("late", (FIRST,), (FIRST,), generation=3)
    claims_without = member("claims", (), (FIRST,), generation=9)
    members = [late, claims_without, member("present", (FIRST,), (FIRST,), generation=4)]

    active = active_copies(members, {"late": [FIRST], "claims": [FIRST], "present": [FIRST]})

    assert active == {"late": [], "claims": [], "present": [FIRST]}


def test_strategies_and_rules_with_copies_assign_roles() -> None:
    names = ("redundant", "cooperative-redundant(3)", "by-topic(t=redundant(2), *=range)")

    assert [has_copies(name) for name in (*names, "sticky", "by-topic(*=range)")] == [True] * 3 + [False] * 2
    group = GroupSubscription({"t": 2}, [member("a"), member("b")])
    assert all(sum(map(len, assign_group(name, group).active.values())) == 2 for name in names)
    assert assign_group("sticky", group).active == {}


@deterministic
@given(st.lists(st.sampled_from(("join", "leave", "die")), max_size=8), st.integers(2, 3), st.integers(1, 5), st.data())
def test_never_are_two_copies_active_while_members_come_and_go(
    changes: list[str], n: int, partitions: int, data: st.DataObject
) -> None:
    """`cooperative-redundant`: members work on while they join, and stop what they are not given when they learn it."""
    members = [member("m0"), member("m1")]
    for number, change in enumerate(changes):
        if change == "join":
            members = [*members, member(f"m{number + 2}")]
        elif len(members) > 1:
            gone = data.draw(st.sampled_from(members))
            members = [each for each in members if each is not gone]
        for generation in range(data.draw(st.integers(1, 3))):
            members = next_generation(members, n, partitions, number * 10 + generation)
    for generation in range(20):
        members = next_generation(members, n, partitions, 1_000 + generation)
    assert sorted(place for each in members for place in each.active_partitions) == [
        TopicPartition("t", number) for number in range(partitions)
    ]


def next_generation(
    members: list[MemberSubscription], n: int, partitions: int, generation: int
) -> list[MemberSubscription]:
    """The members in the next generation. Until it has learned its share, each works as it did before."""
    assigned = assign_group(f"cooperative-redundant({n})", GroupSubscription({"t": partitions}, members))
    given = [place for active in assigned.active.values() for place in active]
    assert len(given) == len(set(given))
    for each in members:
        others = {p for name, active in assigned.active.items() if name != each.member_id for p in active}
        assert not others.intersection(each.active_partitions), "another copy is active while this one still works"
        is_kept = set(each.active_partitions) & set(assigned.shares[each.member_id])
        assert is_kept <= set(assigned.active[each.member_id]), "demoted while it has the copy"
    return [
        replace(
            each,
            owned_partitions=tuple(assigned.shares[each.member_id]),
            active_partitions=tuple(assigned.active[each.member_id]),
            generation=generation,
        )
        for each in members
    ]
