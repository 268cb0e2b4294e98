"""What a cooperative strategy assigns to no member yet, because another must give it up first (KIP-429)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.core.assignors.claims import read_claims
from rota.core.assignors.model import MemberSubscription, Shares, TopicPartition
from rota.core.assignors.numbering import Numbering


def withheld(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    shares: Mapping[str, Sequence[TopicPartition]],
) -> Shares:
    """The shares without the partitions that another member holds: it rejoins without them, and they are free then."""
    ordered = sorted(members, key=lambda member: member.member_id)
    numbering = Numbering.of(partitions_per_topic, ordered)
    claims = read_claims(numbering, ordered)
    numbered = [
        [numbering.numbers[topic][partition] for topic, partition in shares[member.member_id]] for member in ordered
    ]
    return numbering.named(ordered, [claims.free_for(rank, numbers) for rank, numbers in enumerate(numbered)])
