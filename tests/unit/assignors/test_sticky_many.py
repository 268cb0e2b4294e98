"""The two promises of `sticky` over ten thousand groups each: balance, and not one move more than that needs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from rota.core.assignors import TopicPartition
from tests.conformance.assignor_properties import Outcome, holds, kept
from tests.unit.assignors.worlds import Group, small_group, small_groups_bytes

pytestmark = pytest.mark.slow
ten_thousand = settings(derandomize=True, deadline=None, max_examples=10_000, database=None)


def sticky(group: Group) -> Outcome:
    return Outcome(group.partitions_per_topic, group.members, group.assign("sticky"))


@ten_thousand
@given(small_groups_bytes)
def test_no_single_move_improves_balance_or_returns_home(data: bytes) -> None:
    outcome = sticky(small_group(data))

    assert all(holds(name, outcome) for name in ("valid", "complete", "balanced", "no-2-cycle"))
    assert not list(_needless_moves(outcome))


@ten_thousand
@given(small_groups_bytes)
def test_equal_subscribers_keep_as_much_as_balance_allows(data: bytes) -> None:
    outcome = sticky(small_group(data, equal=True))

    assert holds("fully-balanced", outcome)
    assert kept(outcome) == _most_that_can_be_kept(outcome)


def _needless_moves(outcome: Outcome) -> list[TopicPartition]:
    """Partitions that could return to their owner and leave the group no less balanced than it is."""
    return [
        partition
        for partition, owner in outcome.effective_owners.items()
        if outcome.loads[outcome.holders[partition]] > outcome.loads[owner]
    ]


def _most_that_can_be_kept(outcome: Outcome) -> int:
    """Each member keeps the floor of the average, and one more as long as there are extras."""
    floor, extras = divmod(len(outcome.holders), len(outcome.before))
    owned = dict.fromkeys(outcome.loads, 0)
    for owner in outcome.effective_owners.values():
        owned[owner] += 1
    above = sum(count > floor for count in owned.values())
    return sum(min(count, floor) for count in owned.values()) + min(above, extras)
