"""Writing batches to SQLite, where a statement costs less than its way to the connection's thread: they go together.

As for Postgres, SQLAlchemy puts the statements together, and the driver runs them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache, partial

from sqlalchemy import Table, bindparam
from sqlalchemy.dialects.sqlite import aiosqlite, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.replica.ports import ShardBatch
from rota.storage.append import Statement, advance, changes_of, compiled, delete_given, ends_of, given_ends, or_replace
from rota.storage.bulk import GivenRows, TableChange, given_keys, sent_type
from rota.storage.engine import driver_of
from rota.storage.schema import POSTGRES_SCHEMA


class SqliteAppender:
    """A transaction for each append, begun and ended in the one visit to the thread."""

    async def append(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
        driver = driver_of(connection)
        try:
            # What each of the driver's public methods does with a single statement.
            moved: set[int] = await driver._execute(_append, driver._conn, batches)
        except BaseException:
            # A cancelled caller goes on after the thread has finished its statement: this runs after that.
            await driver.rollback()
            raise
        return moved


def _append(connection: sqlite3.Connection, batches: Sequence[ShardBatch]) -> set[int]:
    """It finishes each statement that it has begun, even if its caller was cancelled."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        ends = _advance().arguments(_ENDS.bind(ends_of(batches)))
        moved = {row[0] for row in connection.execute(_advance().sql, ends).fetchall()}
        for change in changes_of([batch for batch in batches if batch.shard_id in moved]):
            _write(connection, change)
    return moved


def _write(connection: sqlite3.Connection, change: TableChange) -> None:
    gone = change.gone_for_good()
    if gone:
        delete = _delete(change.table)
        connection.execute(delete.sql, delete.arguments(_given_gone(change.table).bind(gone)))
    if change.rows:
        connection.executemany(_insert(change.table).sql, change.rows)


_ENDS = given_ends("sqlite")
# The schema of SQLite's one file is called so.
_compiled = partial(
    compiled, dialect=aiosqlite.dialect(), schema_translate_map={POSTGRES_SCHEMA: "main"}, render_schema_translate=True
)


@cache
def _advance() -> Statement:
    return _compiled(advance(_ENDS))


@cache
def _delete(table: Table) -> Statement:
    return _compiled(delete_given(table, _given_gone(table)))


@cache
def _insert(table: Table) -> Statement:
    """Of a row with the table's columns in order."""
    sent = {of.name: bindparam(of.name, type_=sent_type(of)) for of in table.columns}
    return _compiled(or_replace(insert(table).values(sent), table))


@cache
def _given_gone(table: Table) -> GivenRows:
    return given_keys(table, "sqlite")
