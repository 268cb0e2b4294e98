"""The journal: one line a fact, in the transaction of the fact, dense in each shard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.replica.ports import JournalEvent, ShardBatch
from rota.storage.bulk import TableChange
from rota.storage.schema import group_events

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

# json.dumps would make an encoder for each line, which costs more than most payloads.
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


async def read_events(
    connection: AsyncConnection,
    shard_id: int,
    after_seq: int,
    limit: int,
    *,
    namespace: str | None = None,
    group_id: str | None = None,
) -> list[JournalEvent]:
    """The lines of `ShardStore.read_events`."""
    wanted = select(*_EVENT_COLUMNS).where(group_events.c.shard_id == shard_id, group_events.c.seq > after_seq)
    if namespace is not None:
        wanted = wanted.where(group_events.c.namespace == namespace)
    if group_id is not None:
        wanted = wanted.where(group_events.c.group_id == group_id)
    rows = (await connection.execute(wanted.order_by(group_events.c.seq).limit(limit))).all()
    return [JournalEvent(*row) for row in rows]


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
