"""Racks of members and partitions (KIP-881), for the assignors that try to keep reads within one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rota.core.assignors.model import MemberSubscription, PartitionRacks
from rota.core.assignors.numbering import Numbering


def racks_matter(member_racks: Iterable[str | None], partition_racks: Collection[frozenset[str]]) -> bool:
    """Racks help only if some member's rack has replicas at all, and not every partition is in every rack."""
    everywhere = frozenset[str]().union(*partition_racks)
    reachable = any(rack in everywhere for rack in member_racks if rack)
    return reachable and any(racks != everywhere for racks in partition_racks)


def racks_of_topic(topic: str, count: int, partition_racks: PartitionRacks | None) -> list[frozenset[str]]:
    """The racks of each partition; those without given racks are in no rack."""
    named = [frozenset(racks) for racks in (partition_racks or {}).get(topic, ())[:count]]
    return named + [frozenset()] * (count - len(named))


@dataclass(frozen=True, slots=True)
class Racks:
    """The rack of each member by rank (None where it has none) and the racks of each partition by number."""

    of_members: Sequence[str | None]
    of_partitions: Sequence[frozenset[str]]

    @staticmethod
    def of(
        numbering: Numbering, members: Sequence[MemberSubscription], partition_racks: PartitionRacks | None
    ) -> Racks | None:
        """None where the racks make no difference."""
        of_members = [member.rack or None for member in members]
        if not partition_racks or not any(of_members):
            return None
        of_partitions: list[frozenset[str]] = []
        for topic, numbers in numbering.numbers.items():
            of_partitions += racks_of_topic(topic, len(numbers), partition_racks)
        return Racks(of_members, of_partitions) if racks_matter(of_members, of_partitions) else None

    def mismatch(self, rank: int, number: int) -> bool:
        """Whether the partition has no replica in the member's rack; a member without a rack is at home everywhere."""
        rack = self.of_members[rank]
        return rack is not None and rack not in self.of_partitions[number]

    def match(self, rank: int, number: int) -> bool:
        """Whether the member's rack is known and has a replica of the partition."""
        return self.of_members[rank] in self.of_partitions[number]

    def members_near(self, number: int) -> int:
        """How many members the partition could go to within their racks."""
        return sum(rack in self.of_partitions[number] for rack in self.of_members)

    def mismatches(self, shares: Sequence[Sequence[int]]) -> int:
        """How many partitions the shares (by rank) put out of reach of their member's rack."""
        return sum(self.mismatch(rank, number) for rank, share in enumerate(shares) for number in share)
