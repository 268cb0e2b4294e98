"""Today's durable state, one row a thing: what the store keeps, and all that a shard is loaded from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rota.protocol.messages import Protocol


class GroupState(StrEnum):
    """The states of a group, with what each answers while it lasts.

    EMPTY                 no members. Joins start a rebalance, syncs and heartbeats are UNKNOWN_MEMBER_ID,
                          administrators may commit offsets and delete the group.
    PREPARING_REBALANCE   the join phase. Joins park, heartbeats and syncs are REBALANCE_IN_PROGRESS,
                          the old generation may still commit.
    COMPLETING_REBALANCE  the sync phase. Syncs park until the leader's, heartbeats are ok, commits are
                          REBALANCE_IN_PROGRESS.
    STABLE                every member can get its assignment. Syncs and heartbeats are answered at once.
    DEAD                  deleted; only its generation is remembered.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class MemberImage:
    """What a member said of itself when it last joined."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    subject: str = ""
    """The caller that joined, as access rules name it; empty if the server has no rules."""

    def metadata_for(self, protocol_name: str) -> bytes:
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The rule for units that fell their holders, the suspects, and the units that assignments leave out (ADR 81)."""

    after_falls: int = 0
    """So many holders in a row must have fallen; 0: no unit is quarantined."""
    max_units: int = 1
    """So many units may be quarantined at once."""
    release_after_ms: int = 0
    """0: until an administrator releases them."""
    suspects: tuple[tuple[str, int, int], ...] = ()
    """Units, each with its number of falls in a row, and the time of the last one."""
    units: tuple[tuple[str, int], ...] = ()
    """Quarantined units, each with the time of its release; 0: an administrator releases it."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit for unit, _until_ms in self.units)


NO_QUARANTINE = Quarantine()


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group, or the tombstone of one (`state` is Dead): the generation outlives the group."""

    namespace: str
    group_id: str
    state: str
    generation_id: int
    join_generation_id: int
    """The generation of the last join phase; resyncs count up from it."""
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    state_since_ms: int = 0
    rebalance_reason: str = ""
    rebalance_by: str = ""
    takeovers: int = 0
    """How many static members of this generation another member id has taken over since it began."""
    rebalance_cause: str = ""
    """The code beside `rebalance_reason`; empty if the group has had no rebalance."""
    frozen_until_ms: int | None = None
    """Until when the group is, or was, frozen; None if it never was, or an administrator ended that."""
    frozen_reason: str = ""
    leaving: tuple[tuple[str, int], ...] = ()
    """Members that may leave, each with the time when its permission is void."""
    quarantine: Quarantine = NO_QUARANTINE


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of the last completed generation. `position` orders members by when they joined."""

    namespace: str
    group_id: str
    position: int
    image: MemberImage
    assignment: bytes
    takeover: int = 0
    """Its number among the takeovers of its generation: a part of its fencing token. 0: it took no place over."""


class OffsetRow(NamedTuple):
    namespace: str
    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None
    """Where its commit named a retention: when that ends. Otherwise the server's retention counts."""
    topic_id: int = 0
    """The `TopicRow.topic_id` that this is progress of. The progress of an earlier topic does not count."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A registered topic, or the tombstone of one (`partitions` is 0), which every shard keeps for its groups."""

    namespace: str
    topic: str
    partitions: int
    attributes: tuple[tuple[str, str], ...]
    revision: int = 0
    """The number of its last change among those of all topics of the namespace. A tombstone keeps it."""
    topic_id: int = 0
    """Tells topics of one name apart: the revision of the last deletion; 0: no topic of this name was ever deleted."""


def progress_of(topics: Iterable[TopicRow], offsets: Iterable[OffsetRow]) -> tuple[OffsetRow, ...]:
    """The offsets of a shard that are not of deleted topics.

    A user's transaction that commits at the very moment when the shard forgets its topic leaves a row behind.
    """
    known = {(row.namespace, row.topic): row.topic_id for row in topics if row.topic_id}
    return tuple(row for row in offsets if row.topic_id >= known.get((row.namespace, row.topic), 0))


@dataclass(frozen=True, slots=True)
class SideCommit:
    """Progress that a user's own transaction committed in the store, past the shard's owner, and its row as it stands.

    The row may be of a later commit than this one, or None if the offset is deleted again.
    """

    shard_id: int
    side_id: int
    namespace: str
    group_id: str
    topic: str
    partition: int
    member_id: str
    row: OffsetRow | None


@dataclass(slots=True)
class RowChanges:
    """Rows to write in one transaction. Each list names a row at most once.

    `members_deleted` is applied before `members`, because a replaced member may keep its place.
    """

    groups: list[GroupRow] = field(default_factory=list)
    members_deleted: list[tuple[str, str, str]] = field(default_factory=list)
    """(namespace, group_id, member_id)"""
    members: list[MemberRow] = field(default_factory=list)
    offsets_deleted: list[tuple[str, str, str, int]] = field(default_factory=list)
    """(namespace, group_id, topic, partition)"""
    offsets: list[OffsetRow] = field(default_factory=list)
    topics: list[TopicRow] = field(default_factory=list)
    side_commits_taken: list[int] = field(default_factory=list)
    """What the owner knows of by now."""


@dataclass(frozen=True, slots=True)
class ShardImage:
    """All rows of a shard, as they stand after the journal's entry `last_seq`."""

    shard_id: int
    last_seq: int = 0
    groups: tuple[GroupRow, ...] = ()
    members: tuple[MemberRow, ...] = ()
    offsets: tuple[OffsetRow, ...] = ()
    topics: tuple[TopicRow, ...] = ()
