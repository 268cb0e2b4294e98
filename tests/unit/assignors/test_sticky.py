"""The two promises of `sticky`: as balanced as single moves can make it, and nothing moves without need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.assignors import MemberSubscription, TopicPartition, assign
from tests.conformance.assignor_properties import Outcome, holds, moved
from tests.unit.assignors.worlds import TOPICS, Group, deterministic, groups, subsets


def sticky(group: Group) -> Outcome:
    return Outcome(group.partitions_per_topic, group.members, group.assign("sticky"))


@deterministic
@given(groups())
def test_no_single_move_would_balance_better(group: Group) -> None:
    assert holds("balanced", sticky(group))


@deterministic
@given(groups())
def test_two_partitions_of_a_topic_never_pass_each_other(group: Group) -> None:
    assert holds("no-2-cycle", sticky(group))


@deterministic
@given(groups())
def test_nothing_moves_when_nothing_changed(group: Group) -> None:
    shares = group.assign("sticky")

    assert group.holding(shares, generation=9).assign("sticky") == shares


@deterministic
@given(groups(equal=True), st.data())
def test_only_the_partitions_of_a_lost_member_move(group: Group, data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from([member.member_id for member in group.members]))
    remaining = group.holding(group.assign("sticky"), generation=9).without(lost)

    assert moved(sticky(remaining)) == 0


@deterministic
@given(groups(equal=True))
def test_a_newcomer_takes_its_share_and_not_one_partition_more(group: Group) -> None:
    settled = group.holding(group.assign("sticky"), generation=9)
    grown = settled.joined_by(MemberSubscription("newcomer", topics=group.members[0].topics))

    after = sticky(grown)

    assert holds("fully-balanced", after)
    assert moved(after) == after.loads["newcomer"]


@deterministic
@given(groups(equal=True), st.sampled_from(TOPICS), st.integers(1, 9))
def test_a_topic_that_grows_takes_nothing_from_anybody(group: Group, topic: str, more: int) -> None:
    settled = group.holding(group.assign("sticky"), generation=9)
    counts = {**group.partitions_per_topic, topic: group.partitions_per_topic.get(topic, 0) + more}

    assert moved(sticky(Group(counts, settled.members))) == 0


@deterministic
@given(groups(), st.data())
def test_changed_subscriptions_end_balanced_without_crossing(group: Group, data: st.DataObject) -> None:
    settled = group.holding(group.assign("sticky"), generation=9)
    members = [
        MemberSubscription(m.member_id, None, data.draw(subsets), m.owned_partitions, m.generation)
        for m in settled.members
    ]

    after = sticky(Group(group.partitions_per_topic, members))

    assert all(holds(name, after) for name in ("valid", "complete", "balanced", "no-2-cycle"))


def test_a_claim_of_a_newer_generation_beats_an_older_one() -> None:
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    stale = MemberSubscription("a", topics=("t",), owned_partitions=(t0, t1), generation=3)
    current = MemberSubscription("b", topics=("t",), owned_partitions=(t0,), generation=4)

    assert assign("sticky", {"t": 2}, [stale, current]) == {"a": [t1], "b": [t0]}


def test_a_partition_that_must_move_goes_back_to_who_last_had_it() -> None:
    owned = [TopicPartition("t", number) for number in range(4)]
    members = [
        MemberSubscription("a", topics=("t", "u")),
        MemberSubscription("b", topics=("t",), owned_partitions=owned, generation=2),
        MemberSubscription("c", topics=("t",), owned_partitions=owned[:1], generation=1),
    ]

    shares = assign("sticky", {"t": 4}, members)

    assert owned[0] in shares["c"]
