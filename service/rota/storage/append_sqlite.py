"""Writing batches to SQLite, where a statement costs less than its way to the connection's thread: they go together.

As for Postgres, SQLAlchemy puts the statements together, and the driver runs them. Each is about one row: SQLite takes
longer to read several from a JSON document.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from functools import cache, partial

from sqlalchemy import Table, bindparam
from sqlalchemy.dialects.sqlite import aiosqlite, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.replica.ports import ShardBatch
from rota.storage.append import Statement, advance, changes_of, compiled, delete_one, ends_of, given_ends, or_replace
from rota.storage.bulk import TableChange, given_keys, sent_type
from rota.storage.engine import SqliteConnection, driver_of
from rota.storage.schema import POSTGRES_SCHEMA, group_events, groups, members, offsets


class SqliteAppender:
    """A transaction for each append, begun and ended in the one visit to the thread."""

    async def append(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
        driver = driver_of(connection)
        # What each of the driver's public methods does with a single statement.
        moved: set[int] = await driver._execute(_append, driver._conn, batches)
        return moved

    async def warm_up(self, connection: AsyncConnection) -> None:
        """Put the usual statements together, which takes SQLAlchemy 20 ms, and lengthen the log."""
        _advance()
        _delete(members)
        for table in (group_events, groups, members, offsets):
            _insert(table)
        driver = driver_of(connection)
        await driver._execute(_lengthen_log, driver._conn)


def _append(connection: SqliteConnection, batches: Sequence[ShardBatch]) -> set[int]:
    with connection:
        connection.begin_immediate()
        statement = _advance()
        ends = [statement.arguments(_END.bind([end])) for end in ends_of(batches)]
        moved = {row[0] for end in ends for row in connection.execute(statement.sql, end).fetchall()}
        for change in changes_of([batch for batch in batches if batch.shard_id in moved]):
            _write(connection, change)
    return moved


def _write(connection: sqlite3.Connection, change: TableChange) -> None:
    gone = change.gone_for_good()
    if gone:
        connection.executemany(_delete(change.table).sql, gone)
    if change.rows:
        connection.executemany(_insert(change.table).sql, change.rows)


def _lengthen_log(connection: sqlite3.Connection) -> None:
    """Make the log as long as it gets: then SQLite begins it anew, and the commits that follow write over it.

    Each commit makes a shorter one longer, whose new size is synced, too: that takes two to three times as long. What a
    transaction changes beyond the cache goes to the log before it ends, and this one is rolled back.
    """
    pages, page_bytes, cache = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("wal_autocheckpoint", "page_size", "cache_size")
    )
    connection.execute("PRAGMA cache_size = 10")
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE rota_log_filler (bytes BLOB)")
        connection.execute("INSERT INTO rota_log_filler VALUES (zeroblob(?))", (pages * page_bytes,))
    finally:
        connection.rollback()
        connection.execute(f"PRAGMA cache_size = {cache}")
    # Or the first commit would wait for all of it. A path need not be text in UTF-8.
    path = connection.execute("SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'").fetchone()[0]
    with open(path + b"-wal", "rb+") as log:
        os.fsync(log.fileno())


_END = given_ends("sqlite", is_one=True)
# The schema of SQLite's one file is called so.
_compiled = partial(
    compiled, dialect=aiosqlite.dialect(), schema_translate_map={POSTGRES_SCHEMA: "main"}, render_schema_translate=True
)


@cache
def _advance() -> Statement:
    return _compiled(advance(_END))


@cache
def _delete(table: Table) -> Statement:
    """Of a row, by its key."""
    return _compiled(delete_one(table, given_keys(table, "sqlite", is_one=True)))


@cache
def _insert(table: Table) -> Statement:
    """Of a row with the table's columns in order."""
    sent = {of.name: bindparam(of.name, type_=sent_type(of)) for of in table.columns}
    return _compiled(or_replace(insert(table).values(sent), table))
