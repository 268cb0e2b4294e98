"""What a leader withholds under a cooperative strategy, and which claims it stops believing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rota.assignors import MemberSubscription, TopicPartition

Claim = tuple[str, TopicPartition]
"""A member, by its instance id where it has one, and a partition that it says it holds."""

PATIENCE = 2
"""After this many assignments in which claimants had time to revoke withheld partitions, a claim is ignored."""


class WithheldPartitions:
    """Remembers what this member assigned as the leader, and which partitions it withheld because of a claim.

    A cooperative strategy gives a claimed partition to no other member before its claimant has given it up. A claim is
    false if its claimant says that it was assigned the partition in a generation in which this leader did not assign
    it, or in one that has not been yet. An older claim may be honest: its claimant has not received the last
    assignment. It is believed until `PATIENCE` assignments have changed nothing.
    """

    def __init__(self) -> None:
        self._generation_id = -1
        self._received_id = -1
        """The last generation that this member was assigned a share of by another one."""
        self._given: dict[str, Sequence[TopicPartition]] = {}
        self._withheld: tuple[Claim, ...] = ()
        self._unchanged: Counter[Claim] = Counter()

    def believed(self, generation_id: int, members: Sequence[MemberSubscription]) -> list[MemberSubscription]:
        """The members as the strategy should see them in the generation `generation_id`: without false claims."""
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
        """This member has assigned a generation.

        If it had a share of that generation before, another member has assigned it, and the coordinator takes no second
        assignment while the group is frozen: then nothing is known of what the others have been given.
        """
        given = {_identity(member): shares.get(member.member_id, ()) for member in members}
        if generation_id == self._generation_id:
            # Assigned once more: either of the two assignments may be the one that the coordinator has taken.
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
        """This member has received its share of a generation."""
        if generation_id != self._generation_id:
            self._received_id = generation_id

    def note_rest(self) -> None:
        """The claimants have had time to revoke the withheld partitions."""
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
    """What stays the same when a static member restarts."""
    return member.group_instance_id or member.member_id
