"""The journal: one line a fact, in the transaction of the fact, dense in each shard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, Integer, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.runtime.ports import JournalEvent, ShardBatch
from rota.storage.batches import last_seq
from rota.storage.bulk import TableWriter, given_rows
from rota.storage.leases import lock_in_order
from rota.storage.schema import group_events, shards

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


class Journal:
    """The statements that write and read `group_events`."""

    def __init__(self, dialect: str) -> None:
        columns = {"shard_id": Integer(), "epoch": BigInteger(), "first_seq": BigInteger(), "last_seq": BigInteger()}
        self._next = given_rows(dialect, "next", columns)
        following = lock_in_order(
            self._next,
            shards.c.epoch == self._next.table.c.epoch,
            shards.c.last_seq == self._next.table.c.first_seq - 1,
        )
        self._advance = (
            update(shards)
            .where(shards.c.shard_id == following.c.shard_id)
            .values(last_seq=following.c.last_seq)
            .returning(shards.c.shard_id)
        )
        # A line is written once: one that is there already is a broken invariant and must fail.
        self._events = TableWriter(group_events, dialect, replace=False)

    async def advance(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
        """Move the end of each batch's shard; returns those that moved.

        The others have a new owner or a journal that ends elsewhere. Those that moved stay locked until the
        transaction ends, so that nobody can claim them between this check and the commit.
        """
        ends = [(batch.shard_id, batch.epoch, batch.first_seq, last_seq(batch)) for batch in batches]
        return set((await connection.scalars(self._advance, self._next.bind(ends))).all())

    async def write(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> None:
        await self._events.insert(connection, [_values(batch, event) for batch in batches for event in batch.events])

    async def read(
        self,
        connection: AsyncConnection,
        shard_id: int,
        after_seq: int,
        limit: int,
        *,
        namespace: str | None,
        group_id: str | None,
    ) -> list[JournalEvent]:
        wanted = select(*_EVENT_COLUMNS).where(group_events.c.shard_id == shard_id, group_events.c.seq > after_seq)
        if namespace is not None:
            wanted = wanted.where(group_events.c.namespace == namespace)
        if group_id is not None:
            wanted = wanted.where(group_events.c.group_id == group_id)
        rows = (await connection.execute(wanted.order_by(group_events.c.seq).limit(limit))).all()
        return [JournalEvent(*row) for row in rows]


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
        json.dumps(event.payload, ensure_ascii=False, allow_nan=False),
    )
