"""KIP-54: its examples, and its two alternatives to balance first."""

from __future__ import annotations

from hypothesis import given

from rota.core.assignors import MemberSubscription, Shares, TopicPartition, assign
from tests.conformance.assignor_properties import Outcome, holds, moved
from tests.unit.assignors.worlds import Group, deterministic, groups


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
