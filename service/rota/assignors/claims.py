"""Who effectively owned what before: the members' claims, of which only the one of the highest generation counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rota.assignors.model import MemberSubscription
from rota.assignors.numbering import NOBODY, Numbering


@dataclass(frozen=True, slots=True)
class Claims:
    """Previous owners by rank (the position of a member in the order of the member ids).

    `owners[number]` is the effective previous owner or `NOBODY`. `contested` holds only the partitions that several
    members claim, with all who do; if two of them share the highest generation, nobody is the owner.
    """

    owners: list[int]
    contested: Mapping[int, tuple[int, ...]]

    def is_free_for(self, number: int, rank: int) -> bool:
        """Whether nobody else has to give the partition up first: the member owned it, or no other says it holds it."""
        owner = self.owners[number]
        return owner == rank or (owner == NOBODY and number not in self.contested)

    def after(self, shares: Sequence[Sequence[int]]) -> Claims:
        """What is claimed when everybody was given as much of its share as is free for it, and gave up the rest."""
        owners = [NOBODY] * len(self.owners)
        for rank, share in enumerate(shares):
            for number in share:
                if self.is_free_for(number, rank):
                    owners[number] = rank
        return Claims(owners, {})


def read_claims(numbering: Numbering, members: Sequence[MemberSubscription]) -> Claims:
    """Settle the claims of all members; those to partitions that are gone (a topic shrank) count for nothing."""
    owners = [NOBODY] * numbering.total
    contested: dict[int, tuple[int, ...]] = {}
    nothing = range(0)
    for rank, member in enumerate(members):
        last_topic, run, size = "", nothing, 0
        for topic, partition in member.owned_partitions:
            if topic != last_topic:
                last_topic, run = topic, numbering.numbers.get(topic, nothing)
                size = len(run)
            if not 0 <= partition < size:
                continue
            number = run[partition]
            owner = owners[number]
            if owner == NOBODY:
                owners[number] = rank
            elif rank not in (claimants := contested.get(number, (owner,))):
                contested[number] = (*claimants, rank)
    for number, claimants in contested.items():
        owners[number] = _effective_owner(claimants, members)
    return Claims(owners, contested)


def _effective_owner(claimants: Sequence[int], members: Sequence[MemberSubscription]) -> int:
    highest = max(members[rank].claim_generation for rank in claimants)
    winners = [rank for rank in claimants if members[rank].claim_generation == highest]
    return winners[0] if len(winners) == 1 else NOBODY
