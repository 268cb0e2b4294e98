"""Plans: what a rebalance of a group would do under a hypothesis. Nothing of it happens."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from rota.protocol.messages.base import NO_GENERATION, GroupRequest, Reply
from rota.protocol.messages.offsets import TopicPartitions
from rota.protocol.values import INTERNAL, AtMost, Int64, LongText, PartitionCount, Text, Topic, Within, doc


class TopicCount(Struct, frozen=True):
    """A topic with so many partitions."""

    topic: Topic
    partitions: Annotated[PartitionCount, doc("May only grow.")]


class PlanGroup(GroupRequest, frozen=True):
    """Plan the next rebalance of a Stable `consumer` group. With no hypothesis: what a rebalance now would do.

    `without` are member ids or instance ids of members that leave. `more_members` join, with the subscription that most
    members have. `topics` have other partition counts. `strategy` replaces the group's; empty: it stays.
    """

    without: Annotated[
        tuple[LongText, ...], AtMost("group_max_size"), doc("Members that leave, by member or instance id.")
    ] = ()
    more_members: Annotated[
        Int64, Within(0, "group_max_size"), doc("So many join, subscribed as most members are.")
    ] = 0
    topics: Annotated[tuple[TopicCount, ...], doc("Topics with other partition counts than they have now.")] = ()
    strategy: Annotated[Text, doc("Another strategy, such as `cooperative-sticky`; empty: the group's own.")] = ""


class PlannedMember(Struct, frozen=True):
    """A member before and after. `fate` is `stays`, `leaves` or `joins`; a member that joins has a made-up id.

    `pauses`: the partitions of `before` on which it stops its work until the rebalance is over, or for good. Partitions
    of a member that leaves stand in `moved` and `unowned` instead.
    """

    member_id: str
    group_instance_id: str | None = None
    fate: Annotated[str, doc("stays, leaves or joins.")] = "stays"
    before: tuple[TopicPartitions, ...] = ()
    after: tuple[TopicPartitions, ...] = ()
    pauses: Annotated[
        tuple[TopicPartitions, ...], doc("On these it stops its work: until the rebalance, or for good.")
    ] = ()


class PlannedMove(Struct, frozen=True):
    """Partitions of one topic that go from one member to another."""

    topic: str
    partitions: tuple[Int64, ...]
    from_member_id: str
    to_member_id: str


class SnapshotMember(Struct, frozen=True):
    """A member of a settled generation: its bytes for the chosen protocol, and the names of all that it lists."""

    member_id: str
    group_instance_id: str | None
    protocols: tuple[str, ...]
    metadata: bytes
    assignment: bytes


class GroupSnapshot(Struct, frozen=True):
    """What a plan is made of, beside the topics. Members are in the order of joining."""

    generation_id: Int64
    leader_id: str
    protocol_name: str
    members: tuple[SnapshotMember, ...]
    quarantined: tuple[str, ...] = ()
    """Units that the coordinator leaves out of each assignment, as `orders/3`."""


class PlanReply(Reply, frozen=True):
    """The group before and after.

    `moves` counts the partitions that go from one member to another, `moved` lists them. `least_moves` is the fewest
    that any assignment needs whose largest share is no larger than the planned one's, and whose smallest is no smaller:
    exact where all members subscribe to the same topics, and otherwise a lower bound. `rounds` is the number of join
    phases: 0 where the members stay in their generation. An imbalance is the partitions of the fullest member less
    those of the emptiest.
    """

    generation_id: Annotated[Int64, doc("The one that the plan begins with.")] = NO_GENERATION
    protocol_name: Annotated[str, doc("The strategy now.")] = ""
    planned_protocol_name: Annotated[str, doc("The strategy of the plan.")] = ""
    rounds: Annotated[Int64, doc("Join phases: 0 if the members stay in their generation.")] = 0
    moves: Annotated[Int64, doc("Partitions that go from one member to another.")] = 0
    least_moves: Annotated[Int64, doc("The fewest for shares no larger and no smaller than the planned ones.")] = 0
    imbalance_before: Annotated[Int64, doc("Partitions of the fullest member less those of the emptiest.")] = 0
    imbalance_after: Annotated[Int64, doc("The same after the rebalance.")] = 0
    members: tuple[PlannedMember, ...] = ()
    moved: tuple[PlannedMove, ...] = ()
    unowned: Annotated[tuple[TopicPartitions, ...], doc("Partitions without a member after the rebalance.")] = ()
    notes: Annotated[tuple[str, ...], doc("What the plan assumes, for people.")] = ()
    snapshot: Annotated[GroupSnapshot | None, INTERNAL] = None
    """From the group to the planner of its owner; not on a wire."""
