"""The assignors by the name that members list among their protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rota.assignors.cooperative_sticky import cooperative_sticky
from rota.assignors.model import Assignor, MemberSubscription, PartitionRacks, Shares
from rota.assignors.range import range_assignor
from rota.assignors.roundrobin import roundrobin
from rota.assignors.sticky import sticky

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {
        "range": range_assignor,
        "roundrobin": roundrobin,
        "sticky": sticky,
        "cooperative-sticky": cooperative_sticky,
    }
)


class UnknownAssignor(ValueError):
    """No assignor has that name; the message lists those that exist."""


def assignor(name: str) -> Assignor:
    """The assignor called `name`, or `UnknownAssignor`."""
    try:
        return ASSIGNORS[name]
    except KeyError:
        raise UnknownAssignor(f"no assignor {name!r}; there are {', '.join(ASSIGNORS)}") from None


def assign(
    name: str,
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
) -> Shares:
    """Who gets what by the assignor called `name`. The same input gives the same result, whatever the order of members.

    `cooperative-sticky` withholds what another member must give up first: the group rebalances once more after that.
    Racks, where they are given, are heeded by all but `roundrobin`.
    """
    if len({member.member_id for member in members}) != len(members):
        raise ValueError("two members have the same member_id")
    return assignor(name)(partitions_per_topic, members, partition_racks)
