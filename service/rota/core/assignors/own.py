"""Strategies of the user's own: what one must offer, and what its outcome is checked for.

The shape is that of Kafka's `ConsumerPartitionAssignor`: user data in the subscription, one call that assigns for the
whole group, user data in the assignment, and a call when a member's own assignment has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from rota.core.assignors.model import (
    GroupSubscription,
    TopicPartition,
    UserData,
)
from rota.core.assignors.numbering import withheld

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """The partitions of each member, and what its strategy sends to it beside them. A member left out gets nothing."""

    shares: Mapping[str, Sequence[TopicPartition]]
    user_data: Mapping[str, UserData] = field(default_factory=dict)
    active: Mapping[str, Sequence[TopicPartition]] = field(default_factory=dict)
    """The partitions of which each member has the active copy; empty for strategies without copies. Rota chooses them.
    """


@dataclass(frozen=True, slots=True)
class OwnAssignment:
    """The assignment of one member."""

    generation_id: int
    partitions: Sequence[TopicPartition]
    user_data: UserData | None


class PartitionStrategy(Protocol):
    """A strategy for `consumer` groups. Subclass it, and hand an object to `register_strategy`.

    All members register it, and list its name. `assign` runs in the member that leads, or in the server where members
    list `server:` and the name. It must be pure: the same group gives the same assignment, whatever the order of the
    members. An exception fails the generation for all members, with its text.
    """

    name: str
    """Lower-case letters and hyphens, after a first letter; no built-in one's."""
    cooperative: bool = False
    """Members keep what they hold while they join (KIP-429). A partition that moves is withheld from its new member
    until its holder gave it up: the strategy need not care."""
    exclusive: bool = True
    """No partition has two members. Not so for strategies that assign copies."""

    def subscription_user_data(
        self,
        topics: Collection[str],  # noqa: ARG002
        held: Collection[TopicPartition],  # noqa: ARG002
    ) -> UserData | None:
        """What this member says to the leader's strategy, each time that it joins: `MemberSubscription.user_data`.

        A group rebalances when it changes, so it must not change without a reason.
        """
        return None

    def assign(self, group: GroupSubscription) -> GroupAssignment:
        """The assignment of a generation. It may take its time: it runs in a thread."""
        raise NotImplementedError

    def on_assignment(self, assignment: OwnAssignment) -> None:  # noqa: ARG002
        """This member has been assigned its share: called before the consumer's `on_assigned`, on the event loop."""
        return


class InvalidAssignment(ValueError):
    """A strategy of the user's own returned what cannot be an assignment of its group."""


def own_assignment(strategy: PartitionStrategy, group: GroupSubscription) -> GroupAssignment:
    """What `strategy` assigns, each member included; `InvalidAssignment` where that is none of this group."""
    outcome = strategy.assign(group)
    if not isinstance(outcome, GroupAssignment):
        raise InvalidAssignment(f"strategy {strategy.name!r} returned {type(outcome).__name__}, not a GroupAssignment")
    shares = {member.member_id: list(outcome.shares.get(member.member_id, ())) for member in group.members}
    if fault := _fault(strategy, group, outcome, shares):
        raise InvalidAssignment(f"strategy {strategy.name!r}: {fault}")
    return GroupAssignment(
        withheld(group, shares) if strategy.cooperative else shares,
        dict(outcome.user_data),
    )


def _fault(
    strategy: PartitionStrategy,
    group: GroupSubscription,
    outcome: GroupAssignment,
    shares: Mapping[str, Sequence[TopicPartition]],
) -> str:
    """Why this is no assignment of the group, as a clause; empty if it is one."""
    if strangers := sorted((outcome.shares.keys() | outcome.user_data.keys()) - shares.keys()):
        return f"no member of the group has the id {_some(strangers)}"
    if not all(isinstance(each, UserData) for each in outcome.user_data.values()):
        return "user data must be a UserData"
    for member in group.members:
        topics = frozenset(member.topics)
        for topic, partition in shares[member.member_id]:
            if topic not in topics:
                return f"member {member.member_id} does not subscribe to {topic!r}"
            if not 0 <= partition < group.partitions_per_topic.get(topic, 0):
                return f"topic {topic!r} has no partition {partition}"
    times = Counter(chain.from_iterable(shares.values() if strategy.exclusive else ()))
    if twice := sorted(f"{topic}-{partition}" for (topic, partition), number in times.items() if number > 1):
        return f"assigned more than once: {_some(twice)}"
    return ""


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
