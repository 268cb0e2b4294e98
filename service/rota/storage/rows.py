"""The journal's lines and today's state as rows of tables: how each kind of row is written, deleted and read back."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ARRAY, Integer, Select, and_, any_, bindparam, case, select, true, union
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.group.rows import (
    NO_QUARANTINE,
    GroupRow,
    MemberImage,
    MemberRow,
    OffsetRow,
    Quarantine,
    ShardImage,
    SideCommit,
    TopicRow,
    TopicsRevisionRow,
    progress_of,
)
from rota.group.state import GroupState
from rota.protocol.messages import Protocol
from rota.replica.ports import JournalEvent, ShardBatch
from rota.storage.bulk import Row, TableChange
from rota.storage.schema import (
    group_events,
    groups,
    members,
    offsets,
    shards,
    side_commits,
    store,
    topics,
    topics_revisions,
)
from rota.wire.documents import json_writer

# In the order of JournalEvent's fields.
_EVENT_COLUMNS = (
    group_events.c.seq,
    group_events.c.at,
    group_events.c.namespace,
    group_events.c.group_id,
    group_events.c.generation_id,
    group_events.c.kind,
    group_events.c.reason,
    group_events.c.payload,
    group_events.c.epoch,
)

_payload_text = json_writer(compact=False)


class JournalPage(NamedTuple):
    """Lines of a shard's journal, and where the journal begins and ends in the same snapshot."""

    first_seq: int
    last_seq: int
    incarnation: str
    """Read only where the journal ends before the line that is asked for."""
    events: list[JournalEvent]


async def read_events(
    connection: AsyncConnection,
    shard_id: int,
    after_seq: int,
    limit: int,
    *,
    namespace: str | None = None,
    group_id: str | None = None,
) -> JournalPage:
    """The lines of `ShardStore.read_events`.

    One statement, because Postgres empties a partition by TRUNCATE, which transactions with an older snapshot see at
    once. The connection's transaction must be READ COMMITTED, so that this statement's snapshot is taken after the
    statement has locked the partitions; otherwise lines could be missing while `first_seq` is still the old one.
    """
    lines = _lines(shard_id, after_seq, limit, namespace, group_id).subquery()
    incarnation = case((shards.c.last_seq < after_seq, select(store.c.incarnation).scalar_subquery()))
    wanted = (
        select(shards.c.first_seq, shards.c.last_seq, incarnation, *lines.c)
        .select_from(shards.outerjoin(lines, true()))
        .where(shards.c.shard_id == shard_id)
    )
    rows = (await connection.execute(wanted)).all()
    events = [JournalEvent(*line) for _, _, _, *line in rows if line[0] is not None]
    first_seq, last_seq, found = rows[0][:3] if rows else (1, 0, "")
    # A join promises no order. The lines come in theirs, so this costs next to nothing, unlike another sort in SQL.
    return JournalPage(first_seq, last_seq, found or "", sorted(events, key=attrgetter("seq")))


def _lines(
    shard_id: int, after_seq: int, limit: int, namespace: str | None, group_id: str | None
) -> Select[tuple[Any, ...]]:
    wanted = select(*_EVENT_COLUMNS).where(group_events.c.shard_id == shard_id, group_events.c.seq > after_seq)
    if namespace is not None:
        wanted = wanted.where(group_events.c.namespace == namespace)
    if group_id is not None:
        wanted = wanted.where(group_events.c.group_id == group_id)
    return wanted.order_by(group_events.c.seq).limit(limit)


def journal_lines(batches: Sequence[ShardBatch]) -> TableChange:
    """The batches' events as rows of the journal."""
    return TableChange(group_events, [_values(batch, event) for batch in batches for event in batch.events])


def _values(batch: ShardBatch, event: JournalEvent) -> tuple[Any, ...]:
    return (
        batch.shard_id,
        event.seq,
        event.at_ms,
        batch.epoch,
        event.namespace,
        event.group_id,
        event.generation_id,
        event.kind,
        event.reason,
        _payload_text(event.payload),
    )


Read = TypeVar("Read")

_dump = json_writer(compact=False, ascii_only=True)

_OF_SHARDS = bindparam("of_shards", type_=Integer(), expanding=True)
# Rows come in an order of their own, so that two stores with the same rows load the same image.
_GROUPS = (
    select(*groups.c)
    .where(groups.c.shard_id.in_(_OF_SHARDS))
    .order_by(groups.c.shard_id, groups.c.namespace, groups.c.group_id)
)
_MEMBERS = (
    select(*members.c)
    .where(members.c.shard_id.in_(_OF_SHARDS))
    .order_by(members.c.shard_id, members.c.namespace, members.c.group_id, members.c.position, members.c.member_id)
)
_OFFSETS = (
    select(*offsets.c)
    .where(offsets.c.shard_id.in_(_OF_SHARDS))
    .order_by(offsets.c.shard_id, offsets.c.namespace, offsets.c.group_id, offsets.c.topic, offsets.c.partition)
)
_TOPICS_REVISIONS = (
    select(*topics_revisions.c)
    .where(topics_revisions.c.shard_id.in_(_OF_SHARDS))
    .order_by(topics_revisions.c.shard_id, topics_revisions.c.namespace)
)
_TOPICS = (
    select(*topics.c)
    .where(topics.c.shard_id.in_(_OF_SHARDS))
    .order_by(topics.c.shard_id, topics.c.namespace, topics.c.topic)
)
_OFFSET_KEY = [key.name for key in offsets.primary_key]
_OF_SAME_KEY = and_(*(side_commits.c[name] == offsets.c[name] for name in _OFFSET_KEY))
_SIDE_COMMITS = (
    select(*side_commits.c, *[column for column in offsets.c if not column.primary_key])
    .outerjoin_from(side_commits, offsets, _OF_SAME_KEY)
    .where(side_commits.c.shard_id == any_(bindparam("of_shards", type_=ARRAY(Integer()))))
    .order_by(side_commits.c.shard_id, side_commits.c.id)
)
_NAMESPACES = union(
    select(groups.c.namespace.label("name")).where(groups.c.state != GroupState.DEAD.value),
    select(topics.c.namespace).where(topics.c.partitions > 0),
).order_by("name")
_LAST_SEQS = select(shards.c.shard_id, shards.c.last_seq).where(shards.c.shard_id.in_(_OF_SHARDS))


async def load_images(connection: AsyncConnection, shard_ids: Sequence[int]) -> list[ShardImage]:
    """All rows of these shards. What makes them one snapshot is the transaction they are read in."""
    last_seqs = await _read(connection, _LAST_SEQS, shard_ids, lambda row: row[1])
    groups = await _read(connection, _GROUPS, shard_ids, _group_row)
    members = await _read(connection, _MEMBERS, shard_ids, _Members().row)
    offsets = await _read(connection, _OFFSETS, shard_ids, _offset_row)
    topics = await _read(connection, _TOPICS, shard_ids, _topic_row)
    revisions = await _read(connection, _TOPICS_REVISIONS, shard_ids, _topics_revision_row)
    return [
        ShardImage(
            shard_id,
            last_seq=next(iter(last_seqs[shard_id]), 0),
            groups=tuple(groups[shard_id]),
            members=tuple(members[shard_id]),
            offsets=progress_of(topics[shard_id], offsets[shard_id]),
            topics=tuple(topics[shard_id]),
            topics_revisions=tuple(revisions[shard_id]),
        )
        for shard_id in shard_ids
    ]


async def read_namespaces(connection: AsyncConnection) -> list[str]:
    """Those with topics, or with groups that were not deleted."""
    return list((await connection.scalars(_NAMESPACES)).all())


async def load_side_commits(connection: AsyncConnection, shard_ids: Sequence[int]) -> list[SideCommit]:
    """What users' own transactions committed, each with the row of its offset in the same snapshot."""
    found = await connection.execute(_SIDE_COMMITS, {"of_shards": list(shard_ids)})
    return [_side_commit(values) for values in found.all()]


def state_changes(batches: Sequence[ShardBatch]) -> list[TableChange]:
    """What the batches do to the tables of today's state."""
    changes = [(batch.shard_id, batch.rows) for batch in batches]
    return [
        TableChange(groups, [_group_values(s, row) for s, c in changes for row in c.groups]),
        TableChange(
            members,
            [_member_values(s, row) for s, c in changes for row in c.members],
            [(s, *key) for s, c in changes for key in c.members_deleted],
        ),
        TableChange(
            offsets,
            [_offset_values(s, row) for s, c in changes for row in c.offsets],
            [(s, *key) for s, c in changes for key in c.offsets_deleted],
        ),
        TableChange(
            topics,
            [_topic_values(s, row) for s, c in changes for row in c.topics],
        ),
        TableChange(
            topics_revisions, [_topics_revision_values(s, row) for s, c in changes for row in c.topics_revisions]
        ),
        TableChange(side_commits, [], [(s, side_id) for s, c in changes for side_id in c.side_commits_taken]),
    ]


async def _read(
    connection: AsyncConnection, rows: Select[Any], shard_ids: Sequence[int], decode: Callable[[Sequence[Any]], Read]
) -> dict[int, list[Read]]:
    """By shard; those without such rows have an empty list."""
    read: dict[int, list[Read]] = {shard_id: [] for shard_id in shard_ids}
    for row in await connection.execute(rows, {"of_shards": shard_ids}):
        read[row[0]].append(decode(row))
    return read


# Each pair below writes and reads the columns in the order of the table; the shard comes first.


def _group_values(shard_id: int, row: GroupRow) -> Row:
    return (
        shard_id,
        row.namespace,
        row.group_id,
        row.state,
        row.generation_id,
        row.join_generation_id,
        row.protocol_type,
        row.protocol_name,
        row.leader_id,
        row.state_since_ms,
        row.rebalance_reason,
        row.rebalance_by,
        row.takeovers,
        row.rebalance_cause,
        row.frozen_until_ms,
        row.frozen_reason,
        json.dumps(row.leaving) if row.leaving else "",
        json.dumps(asdict(row.quarantine)) if row.quarantine != NO_QUARANTINE else "",
    )


def _group_row(values: Sequence[Any]) -> GroupRow:
    *plain, leaving, quarantine = values[1:]
    read = tuple((member_id, until_ms) for member_id, until_ms in json.loads(leaving or "[]"))
    return GroupRow(*[*plain, read, _quarantine(quarantine)])


def _quarantine(text: str) -> Quarantine:
    if not text:
        return NO_QUARANTINE
    values = json.loads(text)
    lists = {name: tuple(map(tuple, values[name])) for name in ("suspects", "units")}
    return Quarantine(**{**values, **lists})


def _member_values(shard_id: int, row: MemberRow) -> Row:
    image = row.image
    return (
        shard_id,
        row.namespace,
        row.group_id,
        image.member_id,
        row.position,
        image.group_instance_id,
        image.client_id,
        image.host,
        image.session_timeout_ms,
        image.rebalance_timeout_ms,
        _dump([[each.name, b64encode(each.metadata).decode()] for each in image.protocols]),
        row.assignment,
        row.takeover,
        image.subject,
    )


class _Members:
    """Reads rows of members. What several of them say, as most of a group do, is in memory once."""

    def __init__(self) -> None:
        self._said: dict[Any, Any] = {}

    def row(self, values: Sequence[Any]) -> MemberRow:
        _, namespace, group_id, member_id, position, instance_id, *said = values
        client_id, host, session_ms, rebalance_ms, protocols, assignment, takeover, subject = said
        once = self._said.setdefault
        image = MemberImage(
            member_id=member_id,
            group_instance_id=instance_id,
            client_id=once(client_id, client_id),
            host=once(host, host),
            session_timeout_ms=once(session_ms, session_ms),
            rebalance_timeout_ms=once(rebalance_ms, rebalance_ms),
            protocols=self._protocols(tuple(map(tuple, protocols))),
            subject=once(subject, subject),
        )
        return MemberRow(namespace, group_id, position, image, assignment, takeover)

    def _protocols(self, said: tuple[tuple[str, str], ...]) -> tuple[Protocol, ...]:
        offered: tuple[Protocol, ...] | None = self._said.get(said)
        if offered is None:
            offered = self._said[said] = tuple(Protocol(name, b64decode(metadata)) for name, metadata in said)
        return offered


def _offset_values(shard_id: int, row: OffsetRow) -> Row:
    return (shard_id, *row)


def _offset_row(values: Sequence[Any]) -> OffsetRow:
    return OffsetRow(*values[1:])


def _side_commit(values: Sequence[Any]) -> SideCommit:
    shard_id, side_id, namespace, group_id, topic, partition, member_id, *stored = values
    name = (namespace, group_id, topic, partition)
    row = OffsetRow(*name, *stored) if stored[0] is not None else None
    return SideCommit(shard_id, side_id, *name, member_id, row)


def _topic_values(shard_id: int, row: TopicRow) -> Row:
    attributes = json.dumps(row.attributes, ensure_ascii=False)
    return (shard_id, row.namespace, row.topic, row.partitions, attributes, row.revision, row.topic_id)


def _topic_row(values: Sequence[Any]) -> TopicRow:
    _, namespace, topic, partitions, attributes, *counts = values
    return TopicRow(namespace, topic, partitions, tuple((name, value) for name, value in attributes), *counts)


def _topics_revision_values(shard_id: int, row: TopicsRevisionRow) -> Row:
    return (shard_id, row.namespace, row.revision)


def _topics_revision_row(values: Sequence[Any]) -> TopicsRevisionRow:
    return TopicsRevisionRow(*values[1:])
