"""`sticky` (KIP-54): as balanced as can be, and of the previous assignment as much as the balance allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rota.assignors.claims import Claims, read_claims
from rota.assignors.even import assign_evenly
from rota.assignors.model import MemberSubscription, PartitionRacks, Shares
from rota.assignors.numbering import Numbering
from rota.assignors.racks import Racks
from rota.assignors.uneven import assign_unevenly


@dataclass(frozen=True, slots=True)
class StickyPlan:
    """Where every partition belongs, before anybody gave up anything. All lists are in the order of the member ids."""

    numbering: Numbering
    members: Sequence[MemberSubscription]
    claims: Claims
    shares: list[list[int]]

    def named(self, shares: Sequence[Sequence[int]]) -> Shares:
        """Numbers as topic partitions, by member id."""
        names = self.numbering.topic_partitions()
        return {
            member.member_id: [names[number] for number in sorted(share)]
            for member, share in zip(self.members, shares, strict=True)
        }


def plan(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None,
) -> StickyPlan:
    """The assignment that both sticky strategies aim for."""
    ordered = sorted(members, key=lambda member: member.member_id)
    numbering = Numbering.of(partitions_per_topic, ordered)
    claims = read_claims(numbering, ordered)
    racks = Racks.of(numbering, ordered, partition_racks)
    subscriptions = {frozenset(member.topics) for member in ordered}
    if len(subscriptions) == 1:
        shares = assign_evenly(numbering, [member.member_id for member in ordered], claims, racks)
    else:
        shares = assign_unevenly(numbering, ordered, claims, racks)
    return StickyPlan(numbering, ordered, claims, shares)


def sticky(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
) -> Shares:
    """Everything is assigned at once, so members must give up all they hold before they rejoin (eager)."""
    target = plan(partitions_per_topic, members, partition_racks)
    return target.named(target.shares)
