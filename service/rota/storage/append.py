"""Writing batches: in one transaction, the check of each shard's epoch and sequence, and what passed it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from sqlalchemy import BigInteger, Delete, Integer, Table, Update, bindparam, delete, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.runtime.ports import ShardBatch
from rota.storage.batches import last_seq
from rota.storage.bulk import GivenRows, Row, TableChange, given_keys, given_rows, sent_type
from rota.storage.journal import journal_lines
from rota.storage.leases import lock_in_order
from rota.storage.rows import state_changes
from rota.storage.schema import group_events, shards

AnyInsert = postgresql.Insert | sqlite.Insert


class Appender(Protocol):
    """How one engine writes batches."""

    async def append(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
        """Write those that may be written, in this transaction; returns their shards."""


class SqliteAppender:
    """A statement after the other: there is no way to the engine, so each costs what it does."""

    def __init__(self) -> None:
        self._ends = given_ends("sqlite")
        self._advance = advance(self._ends)

    async def append(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
        moved = set((await connection.scalars(self._advance, self._ends.bind(ends_of(batches)))).all())
        for change in changes_of([batch for batch in batches if batch.shard_id in moved]):
            await _delete(connection, change)
            await _insert(connection, change)
        return moved


async def _delete(connection: AsyncConnection, change: TableChange) -> None:
    gone = change.gone_for_good()
    if gone:
        keys, statement = _sqlite_delete(change.table)
        await connection.execute(statement, keys.bind(gone))


async def _insert(connection: AsyncConnection, change: TableChange) -> None:
    names = change.table.columns.keys()
    rows = [dict(zip(names, row, strict=True)) for row in change.rows]
    if rows:
        await connection.execute(_sqlite_insert(change.table), rows)


@cache
def _sqlite_delete(table: Table) -> tuple[GivenRows, Delete]:
    gone = given_keys(table, "sqlite")
    return gone, delete_given(table, gone)


@cache
def _sqlite_insert(table: Table) -> AnyInsert:
    sent = {of.name: bindparam(of.name, type_=sent_type(of)) for of in table.columns}
    return or_replace(sqlite.insert(table).values(sent), table)


# --- for either engine ------------------------------------------------------------------------


def changes_of(batches: Sequence[ShardBatch]) -> list[TableChange]:
    return [journal_lines(batches), *state_changes(batches)]


def ends_of(batches: Sequence[ShardBatch]) -> list[Row]:
    return [(batch.shard_id, batch.epoch, batch.first_seq, last_seq(batch)) for batch in batches]


def given_ends(dialect: str) -> GivenRows:
    """The rows of `ends_of`, given to a statement."""
    numbers = {"epoch": BigInteger(), "first_seq": BigInteger(), "last_seq": BigInteger()}
    return given_rows(dialect, "ends", {"shard_id": Integer(), **numbers})


def advance(ends: GivenRows) -> Update:
    """Move the journal's end of each given shard that has this epoch and ends where the batch begins.

    The others have a new owner or a journal that ends elsewhere. Those that moved stay locked
    until the transaction is over, so that nobody can claim them between this check and the commit.
    """
    following = lock_in_order(
        ends, shards.c.epoch == ends.table.c.epoch, shards.c.last_seq == ends.table.c.first_seq - 1
    )
    moved = update(shards).where(shards.c.shard_id == following.c.shard_id)
    return moved.values(last_seq=following.c.last_seq).returning(shards.c.shard_id)


def or_replace(insert: AnyInsert, table: Table) -> AnyInsert:
    """Let a row replace the one with its key, but for the journal's: a line is there once or something is wrong."""
    if table is group_events:
        return insert
    replaced = {of.name: insert.excluded[of.name] for of in table.columns if not of.primary_key}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced)


def delete_given(table: Table, gone: GivenRows) -> Delete:
    keys = list(table.primary_key)
    return delete(table).where(tuple_(*keys).in_(select(*(gone.table.c[key.name] for key in keys))))
