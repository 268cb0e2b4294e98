"""Which claims a leader believes under a cooperative strategy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rota.client.consumer_protocol import WithheldPartitions
from rota.core.assignors import MemberSubscription, TopicPartition

HELD, OTHER = TopicPartition("t", 2), TopicPartition("t", 3)


def a_member(claims: Sequence[TopicPartition], generation_id: int) -> MemberSubscription:
    return MemberSubscription("b", topics=("t",), owned_partitions=tuple(claims), generation=generation_id)


def believed(leader: WithheldPartitions, claimant: MemberSubscription) -> list[TopicPartition]:
    """What the leader believes of it in the generation after its claims."""
    (seen,) = leader.believed(claimant.claim_generation + 1, [claimant])
    return list(seen.owned_partitions)


def test_a_claim_beside_the_leaders_own_assignment_is_false() -> None:
    leader = WithheldPartitions()
    leader.note_assignment(13, [a_member((), 12)], {"b": [OTHER]})
    leader.note_received(13)

    assert believed(leader, a_member([HELD, OTHER], 13)) == [OTHER]


@pytest.mark.parametrize("times", [1, 2])
def test_claims_of_a_generation_assigned_by_another_are_believed(times: int) -> None:
    """A static leader came back to a frozen group, which takes no second assignment."""
    leader = WithheldPartitions()
    leader.note_received(13)
    for _ in range(times):
        leader.note_assignment(13, [a_member((), 12)], {"b": [OTHER]})
        leader.note_received(13)

    assert believed(leader, a_member([HELD], 13)) == [HELD]


def test_claims_beside_either_of_two_own_assignments_are_false() -> None:
    leader = WithheldPartitions()
    leader.note_assignment(13, [a_member((), 12)], {"b": [OTHER]})
    leader.note_received(13)
    leader.note_assignment(13, [a_member([OTHER], 13)], {"b": [HELD]})

    assert believed(leader, a_member([HELD, OTHER, TopicPartition("t", 4)], 13)) == [HELD, OTHER]
