"""Progress: committing, reading, deleting and expiring offsets (protocol.md §3, §8.12, §8.13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rota.core.group.maintenance import release_units
from rota.core.group.records import IN_USERS_TRANSACTION, CommittedOffset, OffsetsCommitted, OffsetsDeleted
from rota.core.group.rows import OffsetRow, SideCommit
from rota.core.group.sessions import check_generation, is_in_generation, renew_session, report_fenced, why
from rota.core.group.state import COMPLETING_REBALANCE, EMPTY, STABLE, Group, Result, record
from rota.core.types import subscribed_topics
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    DeleteOffsets,
    DeleteOffsetsReply,
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    PartitionResult,
)

_NONE = ErrorCode.NONE
TOPIC_DELETED = "topic deleted"


def check_commit(group: Group, request: CommitOffsets) -> ErrorCode:
    """Return the error of this commit, or NONE. A negative generation is an administrator's, for an Empty group only.

    A newcomer is not rejected as UNKNOWN_MEMBER_ID: it would take a new id, while its own waits in the join phase.
    """
    member_id, instance_id = request.member_id, request.group_instance_id
    if request.is_standalone:
        if group.state is EMPTY:
            return _NONE
        if not member_id and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    error = check_generation(group, member_id, instance_id, request.generation_id, request.subject)
    if error is not _NONE:
        return error
    if not is_in_generation(group, member_id):
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is COMPLETING_REBALANCE else _NONE


def commit_offsets(result: Result, group: Group, request: CommitOffsets) -> CommitReply:
    """Record progress and renew the session. One partition's bad metadata does not spoil the others."""
    error = check_commit(group, request)
    if error is not _NONE:
        instance_id = request.group_instance_id
        detail = why(error, group, instance_id)
        if request.is_standalone:
            detail = f"it has {len(group.members)} members, and an administrator sets offsets only while it has none"
        report_fenced(result, group, "commit", error, request.member_id, instance_id, request.generation_id)
        return CommitReply(error, detail)
    answers, accepted = [], []
    most_chars = result.limits.offset_metadata_max_chars
    for o in request.offsets:
        topic, partition, metadata, expires_at_ms = o.topic, o.partition, o.metadata, o.retention_time_ms
        if len(metadata) > most_chars:
            answers.append(PartitionResult(topic, partition, ErrorCode.OFFSET_METADATA_TOO_LARGE))
            continue
        if o.topic_id is not None and o.topic_id != group.topic_id(topic):
            answers.append(PartitionResult(topic, partition, ErrorCode.UNKNOWN_TOPIC))
            continue
        answers.append(PartitionResult(topic, partition))
        if expires_at_ms is not None:
            expires_at_ms += result.now_ms
        accepted.append(CommittedOffset(topic, partition, o.offset, o.leader_epoch, metadata, None, expires_at_ms))
    if accepted:
        record(result, group, OffsetsCommitted(request.member_id, tuple(accepted)))
    member = group.members.get(request.member_id)
    if member is not None:
        renew_session(result, group, member)
    return CommitReply(partitions=tuple(answers))


def fetch_offsets(group: Group, request: FetchOffsets) -> FetchReply:
    """Read progress in any state, of any group: where nothing was committed the offset is -1."""
    keys: Iterable[tuple[str, int]] = sorted(group.offsets)
    if request.topics is not None:
        keys = [(wanted.topic, partition) for wanted in request.topics for partition in wanted.partitions]
    return FetchReply(offsets=tuple(_fetched(group, key) for key in keys))


def forget_topic(result: Result, group: Group, topic: str) -> bool:
    """Delete the group's progress in a topic and release its quarantined units. Whether there was any progress."""
    partitions = tuple(key for key in group.offsets if key[0] == topic)
    if partitions:
        record(result, group, OffsetsDeleted(partitions, TOPIC_DELETED))
    units = tuple(unit for unit in group.quarantine.names if unit.rpartition("/")[0] == topic)
    if units:
        release_units(result, group, units, TOPIC_DELETED)
    return bool(partitions)


def delete_offsets(result: Result, group: Group, request: DeleteOffsets) -> DeleteOffsetsReply:
    """Delete offsets, of topics without a subscriber in the group."""
    if group.state is not EMPTY and group.protocol_type != "consumer":
        return DeleteOffsetsReply(ErrorCode.NON_EMPTY_GROUP)
    answers = []
    gone: dict[tuple[str, int], None] = {}
    for wanted in request.topics:
        subscribed = is_subscribed(group, wanted.topic)
        for partition in wanted.partitions:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else _NONE
            answers.append(PartitionResult(wanted.topic, partition, error))
            if error is _NONE and (wanted.topic, partition) in group.offsets:
                gone[(wanted.topic, partition)] = None
    if gone:
        record(result, group, OffsetsDeleted(tuple(gone), "request"))
    return DeleteOffsetsReply(partitions=tuple(answers))


def is_subscribed(group: Group, topic: str) -> bool:
    """Return whether a member of the group reads this topic. It may, if a subscription cannot be parsed."""
    topics = group_topics(group)
    if topics is None:
        return group.protocol_type == "consumer" and group.state is not EMPTY
    return topic in topics


def group_topics(group: Group) -> frozenset[str] | None:
    """What the members of a consumer group read; None if that is not known."""
    if not group.protocol_name or not group.members:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        mine = subscribed_topics(group.protocol_type, member.image.metadata_for(group.protocol_name))
        if mine is None:
            return None
        topics |= mine
    return frozenset(topics)


def expired_offsets(group: Group, now_ms: int, limits: Limits) -> tuple[list[tuple[str, int]], bool]:
    """The expired offsets, and whether none is left after them.

    The server's retention counts, of a group without a type, from each offset's own commit; of one that has had
    members, from when it became Empty, or from the commit where that came after the retention was over. An offset whose
    commit named a retention expires when that is over instead.
    While a consumer group is Stable, only topics that no member reads expire. Otherwise none.
    """
    retention_ms = limits.offsets_retention_ms
    candidates, empty_since_ms = group.offsets.items(), None
    if group.protocol_type and group.state is EMPTY:
        empty_since_ms = group.state_since_ms
    elif group.protocol_type:
        topics = group_topics(group) if group.state is STABLE else None
        if topics is None:
            return [], not group.offsets
        candidates = {key: row for key, row in candidates if key[0] not in topics}.items()
    over = [key for key, row in candidates if _expires_at_ms(row, empty_since_ms, retention_ms) <= now_ms]
    return over, len(over) == len(group.offsets)


def _expires_at_ms(row: OffsetRow, empty_since_ms: int | None, retention_ms: int) -> int:
    if row.expires_at_ms is not None:
        return row.expires_at_ms
    if empty_since_ms is None or row.committed_at_ms >= empty_since_ms + retention_ms:
        return row.committed_at_ms + retention_ms
    return empty_since_ms + retention_ms


def _fetched(group: Group, key: tuple[str, int]) -> FetchedOffset:
    row = group.offsets.get(key)
    if row is None:
        return FetchedOffset(*key, topic_id=group.topic_id(key[0]))
    return FetchedOffset(*row[2:])


# --- committed in users' own transactions ------------------------------------------------------


def take_in(result: Result, groups: Mapping[tuple[str, str], Group], commits: Sequence[SideCommit]) -> None:
    """Record what users' own transactions committed in the store, past the owner (protocol.md §3, ADR 15).

    The offsets count as they stand in the store: there, the order of transactions has decided which came last.

    What memory is about to write comes after all of them, so it stays. A group that is not there any more takes its
    offsets with it.
    """
    last: dict[tuple[str, str, str, int], SideCommit] = {}
    for commit in commits:
        last[(commit.namespace, commit.group_id, commit.topic, commit.partition)] = commit
    found: dict[tuple[str, str, str], list[OffsetRow]] = {}
    for commit in last.values():
        group = groups.get((commit.namespace, commit.group_id))
        if group is None or commit.row is None or (commit.topic, commit.partition) in group.dirty_offsets:
            continue
        if commit.row.topic_id < group.topic_id(commit.topic):
            continue
        found.setdefault((commit.namespace, commit.group_id, commit.member_id), []).append(commit.row)
    for (namespace, group_id, member_id), rows in found.items():
        _record_taken_in(result, groups[(namespace, group_id)], member_id, rows)


def _record_taken_in(result: Result, group: Group, member_id: str, rows: list[OffsetRow]) -> None:
    offsets = tuple(
        CommittedOffset(
            row.topic,
            row.partition,
            row.offset,
            row.leader_epoch,
            row.metadata,
            row.committed_at_ms,
            row.expires_at_ms,
        )
        for row in rows
    )
    record(result, group, OffsetsCommitted(member_id, offsets, IN_USERS_TRANSACTION))
    for row in rows:
        # The store has it already, and may have a later one by now, which must not be overwritten.
        del group.dirty_offsets[(row.topic, row.partition)]
