"""KIP-54: its examples, and its two alternatives to balance first."""

from __future__ import annotations

from hypothesis import given

from rota.assignors import MemberSubscription, Shares, TopicPartition, assign
from tests.conformance.assignor_properties import Outcome, holds, kept, moved
from tests.unit.assignors.worlds import Group, deterministic, groups


def after_sticky(group: Group) -> Outcome:
    return Outcome(group.partitions_per_topic, group.members, group.assign("sticky"))


def test_one_of_three_equal_members_leaves_and_five_shares_stay() -> None:
    topics = {f"t{index}": 2 for index in range(4)}
    group = Group(topics, [MemberSubscription(f"C{index}", topics=tuple(topics)) for index in range(3)])

    after = after_sticky(group.holding(group.assign("sticky"), generation=1).without("C1"))

    assert kept(after) == 5
    assert holds("fully-balanced", after)


def test_the_narrowest_member_leaves_and_five_shares_stay() -> None:
    subscriptions = {"C0": ("t0",), "C1": ("t0", "t1"), "C2": ("t0", "t1", "t2")}
    members = [MemberSubscription(member_id, topics=topics) for member_id, topics in subscriptions.items()]
    group = Group({"t0": 1, "t1": 2, "t2": 3}, members)

    after = after_sticky(group.holding(group.assign("sticky"), generation=1).without("C0"))

    assert kept(after) == 5
    assert after.shares["C1"] == [("t0", 0), ("t1", 0), ("t1", 1)]


def test_a_third_member_joins_two_and_three_shares_are_preserved() -> None:
    group = Group({"t0": 2, "t1": 2}, [MemberSubscription(f"C{index}", topics=("t0", "t1")) for index in range(2)])
    settled = group.holding(group.assign("sticky"), generation=1)

    after = after_sticky(settled.joined_by(MemberSubscription("C2", topics=("t0", "t1"))))

    assert kept(after) == 3
    assert holds("fully-balanced", after)


def test_where_round_robin_starves_one_each_member_has_two() -> None:
    counts = {"t1": 2, "t2": 1, "t3": 2, "t4": 1, "t5": 2}
    odd = ("t1", "t3", "t5")
    members = [
        MemberSubscription(f"C{index}", topics=odd if index in (2, 3) else tuple(counts)) for index in (1, 2, 3, 4)
    ]

    assert sorted(map(len, assign("roundrobin", counts, members).values())) == [0, 2, 3, 3]
    assert sorted(map(len, assign("sticky", counts, members).values())) == [2, 2, 2, 2]


@deterministic
@given(groups())
def test_fair_only_gives_what_a_group_that_never_was_would_get(group: Group) -> None:
    nothing: Shares = {member.member_id: [] for member in group.members}

    assert group.assign("sticky(prefer=fairness-only)") == group.holding(nothing, generation=-1).assign("sticky")


@deterministic
@given(groups())
def test_sticky_first_moves_nothing_that_somebody_could_keep(group: Group) -> None:
    after = Outcome(group.partitions_per_topic, group.members, group.assign("sticky(prefer=stickiness)"))

    assert all(holds(name, after) for name in ("valid", "complete"))
    assert moved(after) == 0


def test_sticky_first_gives_a_newcomer_only_what_is_free() -> None:
    owned = [TopicPartition("t", number) for number in range(4)]
    members = [MemberSubscription("a", None, ("t",), owned, 1), MemberSubscription("b", topics=("t",))]

    assert assign("sticky(prefer=stickiness)", {"t": 6}, members) == {"a": owned, "b": [("t", 4), ("t", 5)]}


@deterministic
@given(groups())
def test_a_cooperative_group_moves_nothing_too_early(group: Group) -> None:
    for prefer in ("balance", "fairness-only", "stickiness"):
        shares = group.assign(f"cooperative-sticky(prefer={prefer})")
        assert holds("two-phase", Outcome(group.partitions_per_topic, group.members, shares))
