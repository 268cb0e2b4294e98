"""What a store is for good: how many shards it is cut into, and which journal it holds."""

from __future__ import annotations

import uuid

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.replica.ports import StoreRefused
from rota.storage.schema import store, store_clock_ms


async def fix_identity(connection: AsyncConnection, shard_count: int) -> str:
    """Give a new store its identity; returns the incarnation, or raises `StoreRefused` for another `shard_count`."""
    engine = postgresql if connection.dialect.name == "postgresql" else sqlite
    first = engine.insert(store).values(
        id=1, shard_count=shard_count, incarnation=uuid.uuid4().hex, created_at_ms=store_clock_ms()
    )
    await connection.execute(first.on_conflict_do_nothing())
    fixed, incarnation = (await connection.execute(select(store.c.shard_count, store.c.incarnation))).one()
    if fixed != shard_count:
        raise StoreRefused(f"the store was made with shard_count {fixed}, not {shard_count}; it cannot change")
    return str(incarnation)


async def read_incarnation(connection: AsyncConnection) -> str:
    """The incarnation; raises `StoreRefused` where no server ever opened the store."""
    incarnation = await connection.scalar(select(store.c.incarnation))
    if incarnation is None:
        raise StoreRefused("no server ever opened this store: it has no journal yet")
    return str(incarnation)
