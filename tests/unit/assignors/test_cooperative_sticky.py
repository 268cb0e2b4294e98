"""`cooperative-sticky`: no member gets a partition that another has yet to give up, and the group comes to rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.core.assignors import MemberSubscription, PartitionRacks, Shares, TopicPartition, assign
from tests.conformance.assignor_properties import Outcome, holds
from tests.unit.assignors.worlds import RACKS, Group, deterministic, groups

FIRST_GENERATION = 5
"""Above all generations that the groups are drawn with."""


def outcome(group: Group) -> Outcome:
    return Outcome(group.partitions_per_topic, group.members, group.assign("cooperative-sticky"))


def rounds(group: Group, most: int) -> list[Outcome]:
    """Every member rejoins with its last assignment, until that does not change any more."""
    outcomes = [outcome(group)]
    for generation in range(FIRST_GENERATION, FIRST_GENERATION + most):
        after = outcome(group.holding(outcomes[-1].shares, generation))
        if after.shares == outcomes[-1].shares:
            return outcomes
        outcomes.append(after)
    raise AssertionError(f"the group does not come to rest within {most} rounds")


@deterministic
@given(groups())
def test_no_round_grants_a_partition_that_another_loses(group: Group) -> None:
    assert all(holds("two-phase", after) for after in rounds(group, most=10))


@deterministic
@given(groups())
def test_every_round_keeps_what_the_sticky_assignment_keeps(group: Group) -> None:
    target, first = group.assign("sticky"), group.assign("cooperative-sticky")

    assert all(set(first[member_id]) <= set(share) for member_id, share in target.items())


@deterministic
@given(groups())
def test_the_group_comes_to_rest_complete_and_balanced(group: Group) -> None:
    final = rounds(group, most=10)[-1]

    assert all(holds(name, final) for name in ("valid", "complete", "balanced"))


def test_a_moving_partition_is_withheld_for_one_round() -> None:
    partitions = [TopicPartition("t", number) for number in range(2)]
    owner = MemberSubscription("a", topics=("t",), owned_partitions=partitions, generation=1)
    newcomer = MemberSubscription("b", topics=("t",))

    first = assign("cooperative-sticky", {"t": 2}, [owner, newcomer])
    second = assign("cooperative-sticky", {"t": 2}, _rejoin(first))

    assert first == {"a": partitions[:1], "b": []}
    assert second == {"a": partitions[:1], "b": partitions[1:]}


def test_a_doubly_claimed_partition_waits_for_both_revokes() -> None:
    contested = (TopicPartition("t", 0),)
    members = [
        MemberSubscription("a", None, ("t",), contested, 1),
        MemberSubscription("b", None, ("t", "u"), contested, 1),
    ]

    first = assign("cooperative-sticky", {"t": 1}, members)
    second = assign("cooperative-sticky", {"t": 1}, _rejoin(first))

    assert first == {"a": [], "b": []}
    assert second == {"a": list(contested), "b": []}


@deterministic
@given(groups(fresh=True), st.data())
def test_a_group_with_racks_comes_to_rest_too(group: Group, data: st.DataObject) -> None:
    """Kafka's does not always: in every round it takes partitions of other racks from their owner."""
    members = [
        MemberSubscription(member.member_id, topics=member.topics, rack=data.draw(st.sampled_from(RACKS)))
        for member in group.members
    ]
    racks = {
        topic: [data.draw(st.sets(st.sampled_from(["r1", "r2", "r3"]), max_size=2)) for _ in range(count)]
        for topic, count in group.partitions_per_topic.items()
    }

    outcomes = rounds(Group(group.partitions_per_topic, members, racks), most=10)

    assert all(holds("two-phase", after) for after in outcomes)
    assert all(holds(name, outcomes[-1]) for name in ("complete", "balanced"))


def test_partitions_outside_of_their_racks_do_not_go_in_a_circle() -> None:
    """They would if every round took them from their owners, whatever the round after it makes of that."""
    members = [
        MemberSubscription("a", topics=("t", "v", "w")),
        MemberSubscription("b", topics=("t", "v", "w"), rack="r2"),
        MemberSubscription("c", topics=("t", "u", "v"), rack="r1"),
    ]
    racks: PartitionRacks = {"t": [["r2"]], "u": [[]], "v": [["r2"], [], []], "w": [[], [], ["r2"], ["r2"]]}

    outcomes = rounds(Group({"t": 1, "u": 1, "v": 3, "w": 4}, members, racks), most=3)

    assert holds("balanced", outcomes[-1])


def test_a_partition_goes_to_the_rack_of_a_newcomer() -> None:
    partitions = [TopicPartition("t", number) for number in range(4)]
    racks = {"t": [["r2"], ["r1"], ["r2"], ["r1"]]}
    owner = MemberSubscription("a", None, ("t",), partitions, 1, "r1")
    newcomer = MemberSubscription("b", None, ("t",), (), 1, "r2")

    outcomes = rounds(Group({"t": 4}, [owner, newcomer], racks), most=2)

    assert outcomes[0].shares == {"a": [partitions[1], partitions[3]], "b": []}
    assert outcomes[-1].shares == {"a": [partitions[1], partitions[3]], "b": [partitions[0], partitions[2]]}


def _rejoin(shares: Shares) -> list[MemberSubscription]:
    return [MemberSubscription(member_id, None, ("t",), share, 2) for member_id, share in shares.items()]
