"""The two promises of `sticky`: as balanced as single moves can make it, and nothing moves without need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.core.assignors import MemberSubscription, TopicPartition, assign
from tests.conformance.assignor_properties import Outcome, holds
from tests.unit.assignors.worlds import Group, deterministic, groups, subsets


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
@given(groups(), st.data())
def test_changed_subscriptions_end_balanced_without_crossing(group: Group, data: st.DataObject) -> None:
    settled = group.holding(group.assign("sticky"), generation=9)
    members = [
        MemberSubscription(m.member_id, None, data.draw(subsets), m.owned_partitions, m.generation)
        for m in settled.members
    ]

    after = sticky(Group(group.partitions_per_topic, members))

    assert all(holds(name, after) for name in ("valid", "complete", "balanced", "no-2-cycle"))


def test_a_partition_that_must_move_goes_back_to_who_last_had_it() -> None:
    owned = [TopicPartition("t", number) for number in range(4)]
    members = [
        MemberSubscription("a", topics=("t", "u")),
        MemberSubscription("b", topics=("t",), owned_partitions=owned, generation=2),
        MemberSubscription("c", topics=("t",), owned_partitions=owned[:1], generation=1),
    ]

    shares = assign("sticky", {"t": 4}, members)

    assert owned[0] in shares["c"]
