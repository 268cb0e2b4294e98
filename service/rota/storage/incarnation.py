"""What a store is for good (its shards and its journal), and a new incarnation of it: no number is granted again."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Integer, delete, func, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.replica.ports import EPOCHS_SKIPPED, Floor, StoreRefused
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import MAX_GENERATION
from rota.storage.schema import POSTGRES_SCHEMA, groups, replicas, shards, store, store_clock_ms


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
    """The incarnation; raises `StoreRefused` if no server ever opened the store."""
    incarnation = await connection.scalar(select(store.c.incarnation))
    if incarnation is None:
        raise StoreRefused("no server ever opened this store: it has no journal yet")
    return str(incarnation)


NOTHING_KNOWN = Floor(0, 0)


async def start_again(connection: AsyncConnection, *, raise_by: int, known: Floor = NOTHING_KNOWN) -> str:
    """Raise the floors in this transaction, and return the new incarnation.

    `known` are the highest numbers that are known to have been granted, beside those in the store.

    Raises:
        StoreRefused: There are not as many generations left.
    """
    await connection.execute(select(shards.c.shard_id).order_by(shards.c.shard_id).with_for_update())
    room = MAX_GENERATION - 1 - max(known.generation_id, (await highest_in(connection)).generation_id)
    if raise_by > room:
        raise StoreRefused(
            f"a raise by {raise_by:,} would use up the generations, which are 32-bit numbers: {max(room, 0):,} are "
            "left. Give a smaller --raise-generations-by; nothing was changed"
        )
    incarnation = uuid.uuid4().hex
    if connection.dialect.name == "postgresql":
        # A fenced transaction that began before this must not end as if the floors were as it saw them: if the row of
        # its group has changed, Postgres refuses its commit.
        await connection.execute(update(groups).values(state=groups.c.state))
    # A shard that no replica had claimed gets a row, too: it may have got groups since.
    number = select(literal(0).label("shard_id")).cte("number", recursive=True)
    count = select(store.c.shard_count).scalar_subquery()
    number = number.union_all(select(number.c.shard_id + 1).where(number.c.shard_id + 1 < count))
    columns = ["shard_id", "replica_id", "address", "epoch", "lease_until_ms", "last_seq"]
    unclaimed = select(number.c.shard_id, *(literal(each) for each in ("", "", 0, 0, 0)))
    unclaimed = unclaimed.where(number.c.shard_id.not_in(select(shards.c.shard_id)))
    await connection.execute(insert(shards).from_select(columns, unclaimed))
    # Epochs are raised at once, so that a replica that still runs has lost its shards.
    raised = _raised(connection.dialect.name, raise_by, known)
    await connection.execute(update(shards).where(shards.c.shard_id != NO_SHARD).values(raised))
    await connection.execute(update(store).values(incarnation=incarnation))
    await connection.execute(delete(replicas))
    return incarnation


def _raised(dialect: str, raise_by: int, known: Floor) -> dict[str, Any]:
    greatest: Any = func.greatest if dialect == "postgresql" else func.max
    of_it = groups.c.shard_id == shards.c.shard_id
    granted = [
        func.coalesce(select(func.max(column)).where(of_it).scalar_subquery(), 0)
        for column in (groups.c.generation_id, groups.c.join_generation_id)
    ]
    floor = greatest(shards.c.generation_floor, literal(known.generation_id, Integer()), *granted)
    epoch = greatest(shards.c.epoch, shards.c.epoch_floor, known.epoch) + EPOCHS_SKIPPED
    raised: dict[str, Any] = {
        "generation_floor": floor + raise_by,
        "epoch": epoch,
        "epoch_floor": epoch,
        "lease_until_ms": store_clock_ms(),
    }
    if dialect == "postgresql":
        # A claim on another timeline would raise once more, which this did already.
        raised["timeline"] = select(getattr(func, POSTGRES_SCHEMA).timeline()).scalar_subquery()
    return raised


async def highest_in(connection: AsyncConnection) -> Floor:
    """The highest numbers that the store grants, or keeps from being granted."""
    wanted = (groups.c.generation_id, groups.c.join_generation_id, shards.c.generation_floor)
    generations = [await connection.scalar(select(func.max(column))) for column in wanted]
    epochs = [await connection.scalar(select(func.max(column))) for column in (shards.c.epoch, shards.c.epoch_floor)]
    return Floor(max(each or 0 for each in generations), max(each or 0 for each in epochs))
