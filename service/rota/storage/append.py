"""Writing batches: in one transaction, the check of each shard's epoch and sequence, and what passed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    ClauseElement,
    ColumnElement,
    Delete,
    Dialect,
    Exists,
    Integer,
    Table,
    Text,
    Update,
    and_,
    delete,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.compiler import SQLCompiler

from rota.replica.ports import ShardBatch
from rota.storage.bulk import Form, GivenRows, Row, TableChange, given_rows
from rota.storage.journal import journal_lines
from rota.storage.leases import lock_in_order
from rota.storage.rows import state_changes
from rota.storage.schema import group_events, shards, side_commits

AnyInsert = postgresql.Insert | sqlite.Insert


class Appender(Protocol):
    """How one engine writes batches."""

    async def append(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
        """Write those that may be written, in this transaction; returns their shards."""


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL for the driver, and the names of what its parameters stand for, in their order."""

    sql: str
    names: tuple[str, ...]
    constants: Mapping[str, Any]

    def arguments(self, given: Mapping[str, Any]) -> list[Any]:
        return [given[name] if name in given else self.constants[name] for name in self.names]


def changes_of(batches: Sequence[ShardBatch]) -> list[TableChange]:
    return [journal_lines(batches), *state_changes(batches)]


def ends_of(batches: Sequence[ShardBatch]) -> list[Row]:
    return [(batch.shard_id, batch.epoch, batch.first_seq, batch.last_seq, batch.replica_id) for batch in batches]


def compiled(statement: ClauseElement, dialect: Dialect, **options: Any) -> Statement:
    """What SQLAlchemy put together, for the driver alone."""
    built = statement.compile(dialect=dialect, **options)
    assert isinstance(built, SQLCompiler)
    return Statement(str(built), tuple(built.positiontup or ()), built.params)


def given_ends(dialect: str, *, is_one: bool) -> GivenRows:
    """The rows of `ends_of`, given to a statement; that of one batch alone if it `is_one`."""
    numbers = {"epoch": BigInteger(), "first_seq": BigInteger(), "last_seq": BigInteger()}
    return given_rows(dialect, "ends", {"shard_id": Integer(), **numbers, "replica_id": Text()}, is_one=is_one)


def advance(ends: GivenRows, taken: GivenRows | None = None) -> Update:
    """Move the journal's end of each given shard that has this epoch and owner, and ends where the batch begins.

    The others have a new owner or a journal that ends elsewhere; or the store went back to an earlier state, and has
    lost a side commit that is `taken` over. Those that moved stay locked until the transaction is over, so that no
    other transaction can claim them between this check and the commit. One shard alone is locked by the update itself,
    which checks it again after a wait for another transaction; several are locked in their order before.
    """
    is_one = ends.form is Form.VALUES
    given = ends.of_only_row if is_one else ends.table.c.__getitem__
    is_owner = or_(given("replica_id").is_(None), shards.c.replica_id == given("replica_id"))
    checks = [shards.c.epoch == given("epoch"), is_owner, shards.c.last_seq == given("first_seq") - 1]
    if taken is not None:
        checks.append(~_lacks_side_commit(taken, given("shard_id")))
    following = given
    if not is_one:
        following, checks = lock_in_order(ends, *checks).c.__getitem__, []
    moved = update(shards).where(shards.c.shard_id == following("shard_id"), *checks)
    return moved.values(last_seq=following("last_seq")).returning(shards.c.shard_id)


def _lacks_side_commit(taken: GivenRows, shard_id: ColumnElement[int]) -> Exists:
    """Whether one of the shard's side commits `taken` over is gone. Only an owner deletes them, with this statement."""
    named = taken.table.c
    is_it = and_(side_commits.c.shard_id == named.shard_id, side_commits.c.id == named.id)
    lacking = select(named.id).outerjoin_from(taken.table, side_commits, is_it)
    return lacking.where(named.shard_id == shard_id, side_commits.c.id.is_(None)).exists()


def or_replace(insert: AnyInsert, table: Table) -> AnyInsert:
    """Let a row replace the one with its key, but for the journal's: a line is there once or something is wrong."""
    if table is group_events:
        return insert
    replaced = {of.name: insert.excluded[of.name] for of in table.columns if not of.primary_key}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced)


def delete_one(table: Table, gone: GivenRows) -> Delete:
    """Delete the row with the only key that is given."""
    return delete(table).where(*(key == gone.of_only_row(key.name) for key in table.primary_key))
