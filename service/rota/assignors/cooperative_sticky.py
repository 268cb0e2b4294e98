"""`cooperative-sticky` (KIP-429): the sticky assignment, reached without anybody stopping what it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.assignors.model import MemberSubscription, PartitionRacks, Shares
from rota.assignors.sticky import StickyPlan, plan


def cooperative_sticky(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
) -> Shares:
    """A partition that moves is given to nobody yet: its holder sees it gone, gives it up and rejoins.

    That second rebalance, in which nobody claims the partition any more, hands it out.
    """
    target = plan(partitions_per_topic, members, partition_racks)
    return target.named([_without_claimed_by_others(target, rank) for rank in range(len(target.members))])


def _without_claimed_by_others(target: StickyPlan, rank: int) -> list[int]:
    """What the member owned effectively and keeps, and what is new to it and claimed by no other member."""
    claims = target.claims
    return [
        number
        for number in target.shares[rank]
        if claims.owners[number] == rank or not claims.is_claimed_by_another(number, rank)
    ]
