"""The journal's lines and today's state as rows of tables: how each kind of row is written, deleted and read back."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ARRAY, Integer, Select, Table, and_, any_, bindparam, case, select, true, union
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.group.rows import (
    NO_QUARANTINE,
    GroupRow,
    GroupState,
    MemberImage,
    MemberRow,
    OffsetRow,
    Quarantine,
    ShardImage,
    SideCommit,
    TopicRow,
    progress_of,
)
from rota.core.replica.ports import JournalEvent, ShardBatch
from rota.protocol.messages import Protocol
from rota.storage.schema import (
    group_events,
    groups,
    members,
    offsets,
    shards,
    side_commits,
    store,
    topics,
)

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

_payload_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


Row = Sequence[Any]


class TableChange(NamedTuple):
    """What a transaction does to one table: `gone` names rows to delete, then `rows` are written.

    Rows hold the table's columns in order, JSON as text; keys those of its primary key. A row with a key that is
    there already replaces it.
    """

    table: Table
    rows: Sequence[Row]
    gone: Sequence[Row] = ()

    def gone_for_good(self) -> list[Row]:
        """The keys in `gone` that `rows` does not write again.

        Postgres does not say what becomes of a row that one statement both deletes and writes.
        """
        if not self.gone:
            return []
        key_size = len(self.table.primary_key)
        written = {tuple(row[:key_size]) for row in self.rows}
        return [key for key in self.gone if tuple(key) not in written]


class JournalPage(NamedTuple):
    """Lines of a shard's journal, and where the journal begins and ends in the same snapshot."""

    first_seq: int
    last_seq: int
    incarnation: str
    """Read only if the journal ends before the line that is asked for."""
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

_dump = json.JSONEncoder(allow_nan=False).encode
"""The text can be encoded whatever it says, half of a character included."""

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


async def load_images(connection: AsyncConnection, shard_ids: Sequence[int]) -> list[ShardImage]:
    """All rows of these shards. What makes them one snapshot is the transaction they are read in."""
    offered: dict[Any, tuple[Protocol, ...]] = {}
    last_seqs = await _read(connection, shards, shard_ids, lambda row: int(row.last_seq))
    group_rows = await _read(connection, groups, shard_ids, _group_row)
    member_rows = await _read(connection, members, shard_ids, lambda row: _member_row(row, offered))
    offset_rows = await _read(connection, offsets, shard_ids, lambda row: OffsetRow(*row[1:]))
    topic_rows = await _read(connection, topics, shard_ids, _topic_row)
    return [
        ShardImage(
            shard_id,
            last_seq=next(iter(last_seqs[shard_id]), 0),
            groups=tuple(group_rows[shard_id]),
            members=tuple(member_rows[shard_id]),
            offsets=progress_of(topic_rows[shard_id], offset_rows[shard_id]),
            topics=tuple(topic_rows[shard_id]),
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
            [(s, *row) for s, c in changes for row in c.offsets],
            [(s, *key) for s, c in changes for key in c.offsets_deleted],
        ),
        TableChange(topics, [_topic_values(s, row) for s, c in changes for row in c.topics]),
        TableChange(side_commits, [], [(s, side_id) for s, c in changes for side_id in c.side_commits_taken]),
    ]


async def _read(
    connection: AsyncConnection, table: Table, shard_ids: Sequence[int], decode: Callable[[Any], Read]
) -> dict[int, list[Read]]:
    """By shard; a shard without such rows has an empty list.

    Rows are in an order of their own, so that two stores with the same rows load the same image.
    """
    of_group = [table.c[name] for name in ("shard_id", "namespace", "group_id", "position") if name in table.c]
    wanted = select(table).where(table.c.shard_id.in_(shard_ids)).order_by(*of_group, *table.primary_key)
    read: dict[int, list[Read]] = {shard_id: [] for shard_id in shard_ids}
    for row in await connection.execute(wanted):
        read[row.shard_id].append(decode(row))
    return read


# Each pair below writes and reads the columns in the order of the table; the shard comes first.


_JSON_OF_GROUP = ("leaving", "quarantine")
_plain_group_values = attrgetter(*[of.name for of in groups.columns if of.name not in ("shard_id", *_JSON_OF_GROUP)])


def _group_values(shard_id: int, row: GroupRow) -> Row:
    leaving = json.dumps(row.leaving) if row.leaving else ""
    quarantine = json.dumps(asdict(row.quarantine)) if row.quarantine != NO_QUARANTINE else ""
    return (shard_id, *_plain_group_values(row), leaving, quarantine)


def _group_row(row: Any) -> GroupRow:
    *plain, leaving, quarantine = row[1:]
    read = tuple((member_id, until_ms) for member_id, until_ms in json.loads(leaving or "[]"))
    values = json.loads(quarantine or "{}")
    lists = {name: tuple(map(tuple, values[name])) for name in ("suspects", "units") if name in values}
    return GroupRow(*[*plain, read, Quarantine(**{**values, **lists})])


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


def _member_row(row: Any, offered: dict[Any, tuple[Protocol, ...]]) -> MemberRow:
    """`offered` are the protocols of members before: most members of a group offer the same, and share them."""
    said = tuple(map(tuple, row.protocols))
    if said not in offered:
        offered[said] = tuple(Protocol(name, b64decode(metadata)) for name, metadata in said)
    image = MemberImage(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.host,
        row.session_timeout_ms,
        row.rebalance_timeout_ms,
        offered[said],
        row.subject,
    )
    return MemberRow(row.namespace, row.group_id, row.position, image, row.assignment, row.takeover)


def _side_commit(values: Sequence[Any]) -> SideCommit:
    shard_id, side_id, namespace, group_id, topic, partition, member_id, *stored = values
    name = (namespace, group_id, topic, partition)
    row = OffsetRow(*name, *stored) if stored[0] is not None else None
    return SideCommit(shard_id, side_id, *name, member_id, row)


def _topic_values(shard_id: int, row: TopicRow) -> Row:
    attributes = json.dumps(row.attributes, ensure_ascii=False)
    return (shard_id, row.namespace, row.topic, row.partitions, attributes, row.revision, row.topic_id)


def _topic_row(row: Any) -> TopicRow:
    _, namespace, topic, partitions, attributes, *counts = row
    return TopicRow(namespace, topic, partitions, tuple((name, value) for name, value in attributes), *counts)
