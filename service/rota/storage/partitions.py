"""The journal's partitions in Postgres: one a day, made ahead of time; SQLite has none."""

from __future__ import annotations

import logging
from datetime import date, timedelta

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.storage.errors import LOCK_NOT_AVAILABLE, sqlstate
from rota.storage.schema import POSTGRES_SCHEMA

PARTITION_PREFIX = "group_events_"
DAYS_AHEAD = 3

# Any number will do that no other program takes in this database. The lock ends with the
# transaction, so it holds through a pooler, too.
_LOCK = text("SELECT pg_advisory_xact_lock(7682001)")
_TODAY = text("SELECT CAST(clock_timestamp() AT TIME ZONE 'UTC' AS DATE)")
_EXISTING = text(
    "SELECT child.relname FROM pg_inherits"
    " JOIN pg_class AS child ON child.oid = inhrelid"
    f" WHERE inhparent = CAST('{POSTGRES_SCHEMA}.group_events' AS regclass)"
)
# While it waits for a lock on the default partition, all readers of the journal wait behind it.
_PATIENCE = text("SET LOCAL lock_timeout = '1s'")
_log = logging.getLogger(__name__)


async def create_partitions_ahead(connection: AsyncConnection) -> list[str]:
    """Make the partitions of today and the next days that are missing; returns their names.

    Any number of replicas may do so at the same time: the second finds the work done. Lines of
    a day with a late partition are in the default partition, and move over. While another session reads the journal, as
    `pg_dump` does for as long as it runs, none is made.
    """
    today: date | None = await connection.scalar(_TODAY)
    assert today is not None
    days = [today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]
    await connection.execute(text("SAVEPOINT partitions"))
    try:
        await connection.execute(_PATIENCE)
        return await create_partitions(connection, days)
    except DBAPIError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
    await connection.execute(text("ROLLBACK TO SAVEPOINT partitions"))
    _log.warning(
        "the journal's partitions of the next days were not made: another session reads the journal, as a backup does. "
        "Until the next upkeep, or `rota db upgrade`, the default partition takes their lines"
    )
    return []


async def create_partitions(connection: AsyncConnection, days: list[date]) -> list[str]:
    """Make the partitions of these days that are missing; returns their names."""
    if not await _missing(connection, days):
        return []
    await connection.execute(_LOCK)
    missing = await _missing(connection, days)
    for day in missing:
        await _create(connection, day)
    return [partition_name(day) for day in missing]


async def existing_days(connection: AsyncConnection) -> list[date]:
    """The days that have a partition, in order."""
    names = (name.removeprefix(PARTITION_PREFIX) for name in await connection.scalars(_EXISTING))
    return sorted(date.fromisoformat(name) for name in names if name.isdigit())


def partition_name(day: date) -> str:
    return f"{PARTITION_PREFIX}{day:%Y%m%d}"


async def _missing(connection: AsyncConnection, days: list[date]) -> list[date]:
    existing = set((await connection.scalars(_EXISTING)).all())
    return [day for day in days if partition_name(day) not in existing]


async def _create(connection: AsyncConnection, day: date) -> None:
    partition = f"{POSTGRES_SCHEMA}.{partition_name(day)}"
    journal, default = f"{POSTGRES_SCHEMA}.group_events", f"{POSTGRES_SCHEMA}.group_events_default"
    first, end = f"'{day} 00:00:00+00'", f"'{day + timedelta(days=1)} 00:00:00+00'"
    # Made beside the journal and attached, because that does not block writers to the other
    # partitions. It does block the default partition, which ought to be empty.
    await connection.execute(text(f"CREATE TABLE {partition} (LIKE {journal} INCLUDING ALL)"))
    await connection.execute(text(f"LOCK TABLE {default} IN ACCESS EXCLUSIVE MODE"))
    await connection.execute(
        text(
            f"WITH moved AS (DELETE FROM {default} WHERE at >= {first} AND at < {end} RETURNING *)"
            f" INSERT INTO {partition} SELECT * FROM moved"
        )
    )
    await connection.execute(
        text(f"ALTER TABLE {journal} ATTACH PARTITION {partition} FOR VALUES FROM ({first}) TO ({end})")
    )
