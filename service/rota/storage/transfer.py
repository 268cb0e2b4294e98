"""`rota db copy`: the whole of an embedded store in a database of Postgres, where several replicas may serve it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import BigInteger, Table, func, insert, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.replica.ports import RELEASED, StoreRefused
from rota.protocol.ids import NO_SHARD
from rota.storage import schema
from rota.storage.migrate import refuse_missing, usable
from rota.storage.partitions import create_partitions
from rota.storage.restored import read_facts
from rota.storage.store_file import FileLock
from rota.storage.urls import PostgresLocation, SqliteLocation, parse_store_url

COPIED = (
    schema.store,
    schema.shards,
    schema.groups,
    schema.members,
    schema.offsets,
    schema.topics,
    schema.journal_readers,
    schema.tokens,
    schema.group_events,
)
"""Registrations of replicas and the console's sessions end with the former store. The rest is Postgres' own."""

_ROWS = 1_000
_DAY_S = 86_400
_UNOWNED = {"replica_id": "", "address": "", "lease_until_ms": RELEASED, "timeline": None}


@dataclass(frozen=True, slots=True)
class Copied:
    """What the copy holds."""

    incarnation: str
    shards: int
    rows: dict[str, int]
    """How many, by the name of the table."""


async def copy_store(source_url: str, target_url: str) -> Copied:
    """Copy every row of an embedded store, and its whole journal, into an empty store on Postgres. All or nothing.

    Members, generations, offsets, and bookmarks of the journal's readers go on where they are: it is the same journal,
    under the same incarnation. The source stays as it is; from then on it must not be served, for both would grant the
    same generations.

    Raises:
        StoreRefused: A server uses the source, the target holds a store or has not this release's schema, or the
            stores are not on SQLite and Postgres.
    """
    source, target = parse_store_url(source_url), parse_store_url(target_url)
    if not (isinstance(source, SqliteLocation) and isinstance(target, PostgresLocation)):
        raise StoreRefused("a store is copied from SQLite to Postgres; `rota db backup` and `restore` keep the engine")
    refuse_missing(source)
    with FileLock(source.path):
        async with usable(source, writes=False) as reading, usable(target, writes=True) as writing:
            # Two copies at a time take turns: the second one finds a store.
            await writing.execute(schema.ALONE)
            if await writing.scalar(select(func.count()).select_from(schema.store)):
                raise StoreRefused(f"{target} holds a store already: copy into a new database, after `rota db upgrade`")
            # A partition for each day of the journal, so that days are pruned as those of any other store.
            day = type_coerce(schema.group_events.c.at, BigInteger()) // (_DAY_S * 1000)
            days = await reading.scalars(select(day).distinct().order_by(day))
            await create_partitions(writing, [datetime.fromtimestamp(each * _DAY_S, UTC).date() for each in days])
            rows = {table.name: await _copy(table, reading, writing) for table in COPIED}
            facts = await read_facts(reading)
            if await read_facts(writing) != facts:
                raise StoreRefused("the copy differs from its source; nothing was written")
            return Copied(facts.incarnation, len(facts.last_seqs), rows)


async def _copy(table: Table, reading: AsyncConnection, writing: AsyncConnection) -> int:
    """Copy a table in batches: a journal does not fit into memory."""
    copied = 0
    result = await reading.stream(select(table).order_by(*table.primary_key))
    async for rows in result.mappings().partitions(_ROWS):
        batch = [dict(row) for row in rows]
        if table is schema.shards:
            batch = [row if row["shard_id"] == NO_SHARD else row | _UNOWNED for row in batch]
        await writing.execute(insert(table), batch)
        copied += len(batch)
    return copied
