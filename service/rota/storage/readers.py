"""The readers of the journal and their positions: pruning waits for the readers in `journal_readers`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rota.storage.engine import single_engine
from rota.storage.errors import store_errors
from rota.storage.identity import read_incarnation
from rota.storage.migrate import check_schema, refuse_missing, usable
from rota.storage.schema import journal_readers, shards, store_clock_ms
from rota.storage.urls import parse_store_url


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of the journal: the last event of each shard that it has read."""

    name: str
    positions: Mapping[int, int]
    updated_at_ms: int
    unread: int
    """Lines of the journal that it has not read yet."""
    other_journal: bool
    """Its positions are of another journal, before this store was made anew: here it has read nothing."""

    def read(self, shard_id: int) -> int:
        """The last line of that shard that it has read; 0 if none."""
        return self.positions.get(shard_id, 0)


async def list_readers(store_url: str) -> list[Reader]:
    """All registered readers of the journal, by name."""
    async with usable(parse_store_url(store_url), writes=False) as connection:
        return await readers_of(connection)


async def register_reader(store_url: str, name: str) -> bool:
    """Let pruning wait for the new reader `name`; False if it is registered already."""
    async with usable(parse_store_url(store_url), writes=True) as connection:
        engine = postgresql if connection.dialect.name == "postgresql" else sqlite
        before_first = await connection.execute(select(shards.c.shard_id, shards.c.first_seq - 1))
        insert = engine.insert(journal_readers).values(
            reader=name,
            incarnation=await read_incarnation(connection),
            positions=json.dumps({str(shard_id): seq for shard_id, seq in before_first}),
            updated_at_ms=store_clock_ms(),
        )
        added = await connection.execute(insert.on_conflict_do_nothing().returning(journal_readers.c.reader))
        return added.first() is not None


async def forget_reader(store_url: str, name: str) -> bool:
    """Let pruning not wait for `name` any more; False if no reader has that name."""
    async with usable(parse_store_url(store_url), writes=True) as connection:
        gone = delete(journal_readers).where(journal_readers.c.reader == name).returning(journal_readers.c.reader)
        return (await connection.execute(gone)).first() is not None


async def readers_of(connection: AsyncConnection) -> list[Reader]:
    incarnation = await read_incarnation(connection)
    heads = await connection.execute(select(shards.c.shard_id, shards.c.first_seq, shards.c.last_seq))
    spans: dict[int, tuple[int, int]] = {row[0]: (row[1], row[2]) for row in heads}
    rows = await connection.execute(select(journal_readers).order_by(journal_readers.c.reader))
    return [
        _reader(row.reader, row.incarnation == incarnation, row.positions, row.updated_at_ms, spans) for row in rows
    ]


@asynccontextmanager
async def opened(store_url: str, *, writes: bool) -> AsyncIterator[AsyncEngine]:
    """A store with this release's schema, which a service may have open."""
    location = parse_store_url(store_url)
    refuse_missing(location)
    engine = single_engine(location, writes=writes)
    try:
        with store_errors():
            async with engine.connect() as connection:
                await check_schema(connection, location)
        yield engine
    finally:
        await engine.dispose()


def _reader(
    name: str, same_journal: bool, positions: str, updated_at_ms: int, spans: Mapping[int, tuple[int, int]]
) -> Reader:
    read = {int(shard_id): int(seq) for shard_id, seq in json.loads(positions).items()} if same_journal else {}
    unread = sum(max(0, last - max(read.get(shard_id, 0), first - 1)) for shard_id, (first, last) in spans.items())
    return Reader(name, read, updated_at_ms, unread, not same_journal)
