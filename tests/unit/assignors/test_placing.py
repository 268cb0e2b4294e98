"""The strategies in which partitions or members are not all alike: what each promises beside validity."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.assignors import MemberSubscription, Shares, TopicPartition, assign
from tests.conformance.assignor_properties import Outcome, holds, moved
from tests.unit.assignors.worlds import RACKS, TOPICS, Group, deterministic, groups, small_group, small_groups_bytes

weights = st.fixed_dictionaries({topic: st.lists(st.integers(0, 20), max_size=9) for topic in TOPICS})
capacities = st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=7, max_size=7)


def outcome(group: Group, name: str) -> Outcome:
    return Outcome(group.partitions_per_topic, group.members, group.assign(name))


def with_capacities(group: Group, given_capacities: list[float]) -> Group:
    members = [replace(m, capacity=c) for m, c in zip(group.members, given_capacities, strict=False)]
    return replace(group, members=members)


def with_racks(group: Group, data: st.DataObject) -> Group:
    members = [replace(member, rack=data.draw(st.sampled_from(RACKS))) for member in group.members]
    racks = {
        topic: [data.draw(st.sets(st.sampled_from(["r1", "r2", "r3"]), max_size=2)) for _ in range(count)]
        for topic, count in group.partitions_per_topic.items()
    }
    return Group(group.partitions_per_topic, members, racks)


# --- redundant --------------------------------------------------------------------------------------


@deterministic
@given(groups(), st.integers(1, 4))
def test_redundant_puts_a_partition_on_n_subscribers_or_all(group: Group, n: int) -> None:
    before = outcome(group, f"redundant({n})")

    copies = Counter(partition for share in before.shares.values() for partition in share)
    wanted = {
        TopicPartition(topic, number): min(n, len(before.subscribers(topic)))
        for topic, count in group.partitions_per_topic.items()
        for number in range(count)
        if before.subscribers(topic)
    }
    assert copies == wanted
    for member_id, share in before.shares.items():
        assert len(set(share)) == len(share), "never twice on one member"
        assert {partition.topic for partition in share} <= before.topics_of[member_id]


@deterministic
@given(groups(equal=True), st.integers(1, 4))
def test_redundant_is_balanced_and_comes_to_rest(group: Group, n: int) -> None:
    shares = group.assign(f"redundant({n})")

    loads = [len(share) for share in shares.values()]
    assert max(loads) - min(loads) <= 1
    assert group.holding(shares, generation=9).assign(f"redundant({n})") == shares


def test_redundant_replaces_lost_copies_and_keeps_the_rest() -> None:
    group = Group({"t": 50}, [MemberSubscription(f"m{index}", topics=("t",)) for index in range(10)])
    before = group.assign("redundant(2)")

    after = group.holding(before, generation=1).without("m0").assign("redundant(2)")

    stayed = sum(len(set(before[member_id]) & set(share)) for member_id, share in after.items())
    assert stayed >= 88, "of 90: where both copies of two partitions cross, one has to make room"


def test_redundant_takes_no_memory_for_copies_without_members() -> None:
    """A member may list a strategy with any number of copies, and the server computes it."""
    group = Group({"t": 2}, [MemberSubscription(f"m{index}", topics=("t",)) for index in range(3)])

    tracemalloc.start()
    shares = group.assign("redundant(3000000)")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [len(share) for share in shares.values()] == [2, 2, 2]
    assert peak_bytes < 1_000_000


def rounds_to_rest(group: Group, n: int) -> list[Shares]:
    """The shares of each round of `cooperative-redundant`, until no member revokes or gets anything."""
    rounds: list[Shares] = [{member.member_id: list(member.owned_partitions) for member in group.members}]
    while len(rounds) < 2 or rounds[-1] != rounds[-2]:
        assert len(rounds) < 20, "copies go round and round"
        held = group.holding(rounds[-1], generation=len(rounds))
        rounds.append({member: sorted(share) for member, share in held.assign(f"cooperative-redundant({n})").items()})
    return rounds


def holders(shares: Shares) -> dict[TopicPartition, set[str]]:
    found: dict[TopicPartition, set[str]] = {}
    for member_id, share in shares.items():
        for place in share:
            found.setdefault(place, set()).add(member_id)
    return found


@deterministic
@given(groups(equal=True, fresh=True), groups(equal=True), st.integers(2, 4))
def test_copies_move_while_a_holder_stays_and_never_exceed_n(before: Group, after: Group, n: int) -> None:
    held = before.assign(f"redundant({n})")
    joined = [replace(each, owned_partitions=tuple(held.get(each.member_id, ()))) for each in after.members]
    group = replace(after, partitions_per_topic=before.partitions_per_topic, members=joined)
    topics = set(group.members[0].topics)

    rounds = rounds_to_rest(group, n)

    for earlier, later in pairwise(rounds):
        was, is_now = holders(earlier), holders(later)
        for place in was.keys() | is_now.keys():
            former, given_now = was.get(place, set()), is_now.get(place, set())
            assert not former or place.topic not in topics or former & given_now, "none of the holders stays"
            assert len(former | given_now) <= max(n, len(former)), "more than n at work while one revokes"
    assert_settled(group, rounds[-1], n)


def assert_settled(group: Group, shares: Shares, n: int) -> None:
    """All copies are there, and as many on each member as on any other."""
    topics = set(group.members[0].topics)
    wanted = min(n, len(group.members)) * sum(group.partitions_per_topic.get(topic, 0) for topic in topics)
    loads = [len(share) for share in shares.values()]
    assert sum(loads) == wanted
    assert max(loads) - min(loads) <= 1


def test_a_lone_holder_of_all_passes_copies_on_in_two_steps() -> None:
    group = Group({"t": 9}, [MemberSubscription(f"m{index}", topics=("t",)) for index in range(3)])
    alone = {"m0": [TopicPartition("t", number) for number in range(9)], "m1": [], "m2": []}

    rounds = rounds_to_rest(group.holding(alone, generation=1), 2)

    sizes = [sorted(map(len, shares.values())) for shares in rounds]
    assert sizes[0] == [0, 0, 9]
    assert sum(sizes[1]) == 18, "the free copies are given at once"
    assert sizes[-1] == [6, 6, 6]
    assert len(sizes) <= 5, "the last round is the one that changes nothing"


# --- copartitioned ----------------------------------------------------------------------------------


@deterministic
@given(groups())
def test_copartitioned_never_parts_topics_of_equal_counts(group: Group) -> None:
    after = outcome(group, "copartitioned")

    holders: dict[tuple[tuple[str, ...], int], set[str]] = {}
    for partition, holder in after.holders.items():
        holders.setdefault((tuple(after.subscribers(partition.topic)), partition.partition), set()).add(holder)
    assert all(len(together) == 1 for together in holders.values())


@deterministic
@given(groups())
def test_copartitioned_moves_nothing_when_nothing_changed(group: Group) -> None:
    shares = group.assign("copartitioned")

    assert group.holding(shares, generation=9).assign("copartitioned") == shares


def test_copartitioned_keeps_bundles_when_a_member_leaves() -> None:
    group = Group({"a": 6, "b": 6}, [MemberSubscription(f"m{index}", topics=("a", "b")) for index in range(3)])
    before = group.assign("copartitioned")

    after = group.holding(before, generation=1).without("m2").assign("copartitioned")

    assert {member_id: len(share) for member_id, share in after.items()} == {"m0": 6, "m1": 6}
    assert all(set(before[member_id]) <= set(share) for member_id, share in after.items())


# --- rack-aware -------------------------------------------------------------------------------------


@deterministic
@given(groups(), st.data())
def test_rack_aware_leaves_nothing_needlessly_outside_its_racks(group: Group, data: st.DataObject) -> None:
    group = with_racks(group, data)
    rack_of = {member.member_id: member.rack for member in group.members}

    after = outcome(group, "rack-aware")

    assert group.partition_racks is not None
    for partition, holder in after.holders.items():
        racks = group.partition_racks[partition.topic][partition.partition]
        if any(rack_of[member_id] in racks for member_id in after.subscribers(partition.topic)):
            assert rack_of[holder] in racks


def test_rack_aware_prefers_locality_and_sticky_does_not() -> None:
    members = [MemberSubscription("a", topics=("t",), rack="r1"), MemberSubscription("b", topics=("t",), rack="r2")]
    racks = {"t": [["r1"], ["r1"], ["r1"], ["r2"]]}

    loads = {
        name: [len(s) for s in assign(name, {"t": 4}, members, racks).values()] for name in ("rack-aware", "sticky")
    }

    assert loads == {"rack-aware": [3, 1], "sticky": [2, 2]}


# --- weighted ---------------------------------------------------------------------------------------


@deterministic
@given(groups(), weights, capacities)
def test_no_single_move_would_level_the_weights_better(
    group: Group, topic_weights: dict[str, list[int]], given_capacities: list[float]
) -> None:
    group = with_capacities(group, given_capacities)
    after = Outcome(group.partitions_per_topic, group.members, weigh(group, topic_weights))
    capacity = {member.member_id: member.capacity for member in group.members}
    loads = {
        member_id: sum(weight_of(partition, topic_weights) for partition in share)
        for member_id, share in after.shares.items()
    }

    assert all(holds(name, after) for name in ("valid", "complete"))
    for partition, holder in after.holders.items():
        weight = weight_of(partition, topic_weights)
        for other in after.subscribers(partition.topic) if weight else ():
            if other != holder:
                new_level = (loads[other] + weight) / capacity[other]
                assert new_level >= loads[holder] / capacity[holder] * (1 - 1e-6)


@deterministic
@given(small_groups_bytes, weights, st.integers(0, 5))
def test_the_churn_budget_is_never_overdrawn(data: bytes, topic_weights: dict[str, list[int]], budget: int) -> None:
    group = small_group(data)

    after = Outcome(group.partitions_per_topic, group.members, weigh(group, topic_weights, f"(max_moves={budget})"))

    assert all(holds(name, after) for name in ("valid", "complete"))
    assert moved(after) <= budget


@deterministic
@given(groups(equal=True), weights)
def test_small_rebalances_come_to_rest(group: Group, topic_weights: dict[str, list[int]]) -> None:
    shares = weigh(group, topic_weights, "(max_moves=1)")
    for generation in range(10, 60):
        group = group.holding(shares, generation)
        former, shares = shares, weigh(group, topic_weights, "(max_moves=1)")
        if shares == former:
            break

    assert weigh(group, topic_weights) == shares, "and then nothing is left to move, budget or not"


def test_a_hot_partition_is_alone_and_a_big_machine_carries_more() -> None:
    members = [MemberSubscription("big", topics=("t",), capacity=3.0), MemberSubscription("small", topics=("t",))]

    hot = assign("weighted", {"t": 4}, [members[1], replace(members[0], capacity=1.0)], None, {"t": [9, 1, 1, 1]})
    mixed = assign("weighted", {"t": 8}, members)

    assert sorted(map(len, hot.values())) == [1, 3]
    assert {member_id: len(share) for member_id, share in mixed.items()} == {"big": 6, "small": 2}


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        assign("weighted", {"t": 1}, [MemberSubscription("m", topics=("t",))], None, {"t": [weight]})


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("nan"), float("inf")])
def test_a_member_that_carries_nothing_is_refused(capacity: float) -> None:
    with pytest.raises(ValueError, match="capacity"):
        MemberSubscription("m", capacity=capacity)


def weigh(group: Group, topic_weights: dict[str, list[int]], options: str = "") -> Shares:
    return assign(f"weighted{options}", group.partitions_per_topic, group.members, None, topic_weights)


def weight_of(partition: TopicPartition, topic_weights: dict[str, list[int]]) -> int:
    given_weights = topic_weights[partition.topic]
    return given_weights[partition.partition] if partition.partition < len(given_weights) else 1
