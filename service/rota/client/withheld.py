"""Partitions that a leader withholds under a cooperative strategy, and claims that it ignores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rota.core.assignors import MemberSubscription, TopicPartition

Claim = tuple[str, TopicPartition]
"""A member, by its instance id if it has one, and a partition that it claims to hold."""

PATIENCE = 2
"""After this many assignments that gave claimants time to revoke withheld partitions, a claim is ignored."""


class WithheldPartitions:
    """Remembers this member's assignments as the leader, and the partitions that it withheld because of claims.

    A cooperative strategy assigns a claimed partition to no other member before its claimant has revoked it. A claim is
    false if it names a generation in which this leader did not assign the partition to its claimant, or a future one.
    An older claim may be true, if its claimant has not received the last assignment. It is accepted until `PATIENCE`
    assignments have not changed it.
    """

    def __init__(self) -> None:
        self._generation_id = -1
        self._received_id = -1
        """The last generation in which another leader assigned a share to this member."""
        self._given: dict[str, Sequence[TopicPartition]] = {}
        self._withheld: tuple[Claim, ...] = ()
        self._unchanged: Counter[Claim] = Counter()

    def believed(self, generation_id: int, members: Sequence[MemberSubscription]) -> list[MemberSubscription]:
        """Return the members for the strategy in the generation `generation_id`, without false claims."""
        return [
            member if claims is member.owned_partitions else replace(member, owned_partitions=claims)
            for member in members
            for claims in [self._credible(generation_id, member)]
        ]

    def note_assignment(
        self,
        generation_id: int,
        members: Sequence[MemberSubscription],
        shares: Mapping[str, Sequence[TopicPartition]],
    ) -> None:
        """Note that this member has assigned a generation.

        If it already had a share of that generation, another member has assigned it, and the coordinator accepts no
        second assignment while the group is frozen: the others' assignments are then unknown.
        """
        given = {_identity(member): shares.get(member.member_id, ()) for member in members}
        if generation_id == self._generation_id:
            # After a second assignment, the coordinator may have accepted either of the two.
            given = {identity: (*former, *given.get(identity, ())) for identity, former in self._given.items()}
        if generation_id == self._received_id:
            generation_id, given = -1, {}
        self._generation_id, self._given = generation_id, given
        self._withheld = tuple(
            (_identity(member), each)
            for member in members
            for each in {*member.owned_partitions}.difference(shares.get(member.member_id, ()))
        )
        self._unchanged = Counter({claim: self._unchanged[claim] for claim in self._withheld if self._unchanged[claim]})

    def note_received(self, generation_id: int) -> None:
        """Note that this member has received its share of a generation."""
        if generation_id != self._generation_id:
            self._received_id = generation_id

    def note_rest(self) -> None:
        """Note that the claimants have had time to revoke the withheld partitions."""
        self._unchanged.update(self._withheld)

    def _credible(self, generation_id: int, member: MemberSubscription) -> Collection[TopicPartition]:
        claims, identity = member.owned_partitions, _identity(member)
        if member.claim_generation >= generation_id:
            return ()
        if member.claim_generation == self._generation_id:
            given = set(self._given.get(identity, ()))
            claims = claims if given.issuperset(claims) else tuple(each for each in claims if each in given)
        if self._unchanged:
            claims = tuple(each for each in claims if self._unchanged[identity, each] < PATIENCE)
        return claims


def _identity(member: MemberSubscription) -> str:
    """Return an identity that survives the restart of a static member."""
    return member.group_instance_id or member.member_id
