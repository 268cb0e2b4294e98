"""The journal: one line a fact, in the transaction of the fact, dense in each shard."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Select, case, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.replica.ports import JournalEvent, ShardBatch
from rota.storage.bulk import TableChange
from rota.storage.schema import group_events, shards, store
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

_dump = json_writer(compact=False)


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
        _dump(event.payload),
    )
