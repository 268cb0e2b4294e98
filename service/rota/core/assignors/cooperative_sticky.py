"""`cooperative-sticky` (KIP-429): the sticky assignment, reached without stopping work on kept partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.core.assignors.model import MemberSubscription, PartitionRacks, Shares
from rota.core.assignors.sticky import Prefer, plan


def cooperative_sticky(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
    *,
    prefer: Prefer = Prefer.BALANCE,
) -> Shares:
    """A partition that moves is not assigned yet: its holder sees it missing, revokes it and rejoins.

    The second rebalance, in which no member claims the partition any more, assigns it.
    """
    target = plan(partitions_per_topic, members, partition_racks, prefer)
    return target.named([target.claims.free_for(rank, share) for rank, share in enumerate(target.shares)])
