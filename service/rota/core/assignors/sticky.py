"""`sticky` (KIP-54): as balanced as possible, and as close to the previous assignment as the balance allows.

The KIP's two alternatives are options: fair only (the previous assignment counts for nothing), and sticky first (owned
partitions never move, only those without an owner are distributed fairly).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rota.core.assignors.claims import Claims, read_claims
from rota.core.assignors.even import assign_evenly
from rota.core.assignors.model import MemberSubscription, PartitionRacks, Shares
from rota.core.assignors.numbering import NOBODY, Numbering
from rota.core.assignors.racks import Racks
from rota.core.assignors.uneven import assign_unevenly


class Prefer(StrEnum):
    """What comes first where balance and stickiness are at odds."""

    BALANCE = "balance"
    FAIRNESS_ONLY = "fairness-only"
    STICKINESS = "stickiness"


@dataclass(frozen=True, slots=True)
class StickyPlan:
    """The target of every partition, before any member revokes one. All lists are in the order of the member ids."""

    numbering: Numbering
    members: Sequence[MemberSubscription]
    claims: Claims
    shares: list[list[int]]

    def named(self, shares: Sequence[Sequence[int]]) -> Shares:
        """Numbers as topic partitions, by member id."""
        return self.numbering.named(self.members, shares, self.claims.names)


def plan(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None,
    prefer: Prefer = Prefer.BALANCE,
) -> StickyPlan:
    """The assignment that both sticky strategies aim for."""
    ordered = sorted(members, key=lambda member: member.member_id)
    numbering = Numbering.of(partitions_per_topic, ordered)
    claims = read_claims(numbering, ordered)
    racks = Racks.of(numbering, ordered, partition_racks)
    if prefer is not Prefer.BALANCE:
        return StickyPlan(numbering, ordered, claims, _one_sided(numbering, ordered, claims, racks, prefer))
    shares = _shares(numbering, ordered, claims, racks)
    if racks is not None:
        shares = _moved_into_racks(numbering, ordered, claims, racks, shares)
    return StickyPlan(numbering, ordered, claims, shares)


def _one_sided(
    numbering: Numbering,
    members: Sequence[MemberSubscription],
    claims: Claims,
    racks: Racks | None,
    prefer: Prefer,
) -> list[list[int]]:
    """One of the two for its own sake. `claims` stay what a cooperative group still has to give up."""
    if prefer is Prefer.STICKINESS:
        return assign_unevenly(numbering, members, claims, racks, move_owned=False)
    return _shares(numbering, members, Claims([NOBODY] * numbering.total, {}), racks)


def _moved_into_racks(
    numbering: Numbering,
    members: Sequence[MemberSubscription],
    claims: Claims,
    racks: Racks,
    shares: list[list[int]],
) -> list[list[int]]:
    """Take partitions from owners outside of their racks, if that ends with more in their racks; else `shares`.

    Kafka takes it in every round, in the hope for better. A cooperative group could go round in circles by that, so
    the assignment after the owners' revocation is computed first.
    """
    moved = _shares(numbering, members, _without_mismatches(claims, racks), racks)
    settled = _shares(numbering, members, claims.after(moved), racks)
    return moved if racks.mismatches(settled) < racks.mismatches(shares) else shares


def _shares(
    numbering: Numbering, members: Sequence[MemberSubscription], claims: Claims, racks: Racks | None
) -> list[list[int]]:
    if len({frozenset(member.topics) for member in members}) == 1:
        return assign_evenly(numbering, [member.member_id for member in members], claims, racks)
    return assign_unevenly(numbering, members, claims, racks)


def _without_mismatches(claims: Claims, racks: Racks) -> Claims:
    owners = [
        NOBODY if owner != NOBODY and racks.mismatch(owner, number) else owner
        for number, owner in enumerate(claims.owners)
    ]
    return Claims(owners, claims.contested)


def sticky(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
    *,
    prefer: Prefer = Prefer.BALANCE,
) -> Shares:
    """Everything is assigned at once, so members must give up all they hold before they rejoin (eager)."""
    target = plan(partitions_per_topic, members, partition_racks, prefer)
    return target.named(target.shares)
