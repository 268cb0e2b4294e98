"""The roles of copies: of the members that have a partition, one is active, and the others are standbys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rota.core.assignors.model import MemberSubscription, Shares, TopicPartition


def active_copies(
    members: Sequence[MemberSubscription],
    shares: Mapping[str, Collection[TopicPartition]],
    *,
    withholds: bool = False,
) -> Shares:
    """The active copies of each member, out of its share.

    The active copy stays active for as long as its member has it. After that a standby is promoted, before a member
    that is new to the partition: the one with the fewest active copies. `withholds`: members work on while they join,
    so that no copy is active until the former active member has revoked its own and has joined again.
    """
    held = {member.member_id: frozenset(member.owned_partitions) for member in members}
    former: dict[TopicPartition, str] = {}
    for member in sorted(members, key=lambda member: (member.claim_generation, member.member_id)):
        for place in held[member.member_id].intersection(member.active_partitions):
            former[place] = member.member_id
    holders: dict[TopicPartition, list[str]] = {}
    for member_id in sorted(shares):
        for place in shares[member_id]:
            holders.setdefault(place, []).append(member_id)
    active: Shares = {member_id: [] for member_id in shares}
    vacant = []
    for place in sorted(holders):
        if former.get(place) in holders[place]:
            active[former[place]].append(place)
        elif not (withholds and place in former):
            vacant.append(place)
    for place in vacant:
        heirs = [(place not in held[each], len(active[each]), each) for each in holders[place]]
        active[min(heirs)[-1]].append(place)
    return active
