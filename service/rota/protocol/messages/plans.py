"""Plans: what a rebalance of a group would do under a hypothesis. Nothing of it happens."""

from __future__ import annotations

from rota.protocol.errors import ErrorCode
from rota.protocol.frozen import frozen
from rota.protocol.messages.base import NO_GENERATION, GroupRequest
from rota.protocol.messages.offsets import TopicPartitions


@frozen
class TopicCount:
    """A topic with so many partitions."""

    topic: str
    partitions: int


@frozen
class PlanGroup(GroupRequest):
    """Plan the next rebalance of a Stable `consumer` group. With no hypothesis: what a rebalance now would do.

    `without` are member ids or instance ids of members that leave. `more_members` join, with the subscription that most
    members have. `topics` have other partition counts. `strategy` replaces the group's; empty: it stays.
    """

    without: tuple[str, ...] = ()
    more_members: int = 0
    topics: tuple[TopicCount, ...] = ()
    strategy: str = ""


@frozen
class PlannedMember:
    """A member before and after. `fate` is `stays`, `leaves` or `joins`; a member that joins has a made-up id.

    `pauses`: the partitions of `before` on which it stops its work until the rebalance is over, or for good. Partitions
    of a member that leaves stand in `moved` and `unowned` instead.
    """

    member_id: str
    group_instance_id: str | None = None
    fate: str = "stays"
    before: tuple[TopicPartitions, ...] = ()
    after: tuple[TopicPartitions, ...] = ()
    pauses: tuple[TopicPartitions, ...] = ()


@frozen
class PlannedMove:
    """Partitions of one topic that go from one member to another."""

    topic: str
    partitions: tuple[int, ...]
    from_member_id: str
    to_member_id: str


@frozen
class SnapshotMember:
    """A member of a settled generation: its bytes for the chosen protocol, and the names of all that it lists."""

    member_id: str
    group_instance_id: str | None
    protocols: tuple[str, ...]
    metadata: bytes
    assignment: bytes


@frozen
class GroupSnapshot:
    """What a plan is made of, beside the topics. Members are in the order of joining."""

    generation_id: int
    leader_id: str
    protocol_name: str
    members: tuple[SnapshotMember, ...]
    quarantined: tuple[str, ...] = ()
    """Units that the coordinator leaves out of each assignment, as `orders/3`."""


@frozen
class PlanReply:
    """The group before and after.

    `moves` counts the partitions that go from one member to another, `moved` lists them. `least_moves` is the fewest
    that any assignment needs whose largest share is no larger than the planned one's, and whose smallest is no smaller:
    exact where all members subscribe to the same topics, and otherwise a lower bound. `rounds` is the number of join
    phases: 0 where the members stay in their generation. An imbalance is the partitions of the fullest member less
    those of the emptiest.
    """

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    """The generation that the plan begins with."""
    protocol_name: str = ""
    """The strategy now."""
    planned_protocol_name: str = ""
    """The strategy of the plan."""
    rounds: int = 0
    moves: int = 0
    least_moves: int = 0
    imbalance_before: int = 0
    imbalance_after: int = 0
    members: tuple[PlannedMember, ...] = ()
    moved: tuple[PlannedMove, ...] = ()
    unowned: tuple[TopicPartitions, ...] = ()
    """Partitions without a member after the rebalance."""
    notes: tuple[str, ...] = ()
    """What the plan assumes, for people."""
    snapshot: GroupSnapshot | None = None
    """From the group to the planner of its owner; not on a wire."""
