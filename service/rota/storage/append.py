"""Appends: one transaction checks each shard's epoch and sequence, and writes the batches of the shards that passed.

An append is the hottest work of a store, so SQLAlchemy compiles its statements once, and they run on the driver itself:
through SQLAlchemy an execution costs more than the driver and the network do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    BigInteger,
    ClauseElement,
    Column,
    ColumnElement,
    Dialect,
    Exists,
    Integer,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import JSON, TypeEngine

from rota.core.replica.ports import ShardBatch
from rota.storage.leases import GivenRows, given_rows, lock_in_order
from rota.storage.rows import Row, TableChange, journal_lines, state_changes
from rota.storage.schema import (
    FENCE_GATE,
    POSTGRES_SCHEMA,
    WallClockMs,
    group_events,
    groups,
    metadata,
    shards,
    side_commits,
    topics,
)

AnyInsert = postgresql.Insert | sqlite.Insert
Shape = tuple[tuple[str, bool, bool], ...]
"""The tables of a statement: (name, whether rows are deleted, whether rows are written)."""


def driver_of(connection: AsyncConnection) -> Any:
    """The connection of asyncpg or aiosqlite beneath."""
    assert connection.sync_connection is not None, "the connection is not open"
    return connection.sync_connection.connection.driver_connection


def refuse_closed(connection: Any, *_: Any) -> None:
    """Have the pool replace a connection that has ended, instead of handing it to a caller."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError("the store has ended the connection")


def _changes_of(batches: Sequence[ShardBatch]) -> list[TableChange]:
    return [journal_lines(batches), *state_changes(batches)]


def _sent_type(of: Column[Any]) -> TypeEngine[Any]:
    """How a column's values travel: JSON as the text that it is already, a time as its milliseconds."""
    if isinstance(of.type, JSON):
        return Text()
    return BigInteger() if isinstance(of.type, WallClockMs) else of.type


def _ends_of(batches: Sequence[ShardBatch]) -> list[Row]:
    """The rows of `_ENDS`."""
    return [(batch.shard_id, batch.epoch, batch.first_seq, batch.last_seq, batch.replica_id) for batch in batches]


def _is_next(end: Mapping[str, ColumnElement[Any]]) -> list[ColumnElement[bool]]:
    """Whether the shard's row has this epoch and owner, and its journal ends where the batch begins.

    Otherwise the shard has a new owner, or a journal that ends elsewhere.
    """
    is_owner = or_(end["replica_id"].is_(None), shards.c.replica_id == end["replica_id"])
    return [shards.c.epoch == end["epoch"], is_owner, shards.c.last_seq == end["first_seq"] - _ONE]


def _or_replace(insert: AnyInsert, table: Table) -> AnyInsert:
    """Let a row replace the one with its key, except in the journal: there, a second line of one number is a bug."""
    if table is group_events:
        return insert
    replaced = {of.name: insert.excluded[of.name] for of in table.columns if not of.primary_key}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced)


_ONE: ColumnElement[int] = literal_column("1")
_ENDS: dict[str, TypeEngine[Any]] = {
    "shard_id": Integer(),
    "epoch": BigInteger(),
    "first_seq": BigInteger(),
    "last_seq": BigInteger(),
    "replica_id": Text(),
}


# --- SQLite: statements of one row each, in one visit to the connection's thread ---------------------------------


def append_to_sqlite(connection: Any, batches: Sequence[ShardBatch]) -> set[int]:
    """Write the batches of the shards that pass the check, in a transaction; returns these shards.

    It runs on the thread of the `SqliteConnection` from its begin to its commit: a statement takes less time than the
    way there. Each statement is of one row, because SQLite would read several from a JSON document, which takes longer.
    """
    with connection:
        connection.begin_immediate()
        moved: set[int] = set()
        for end in _ends_of(batches):
            moved.update(row[0] for row in connection.execute(_advance_one(), dict(zip(_ENDS, end, strict=True))))
        for table, rows, gone in _changes_of([batch for batch in batches if batch.shard_id in moved]):
            if gone:
                connection.executemany(_delete_one(table), gone)
            if rows:
                connection.executemany(_insert_one(table), rows)
    return moved


def _sqlite_text(statement: ClauseElement, paramstyle: Any = "qmark") -> str:
    """SQL for the driver; the schema of SQLite's one file is called main."""
    dialect: Dialect = sqlite.dialect(paramstyle=paramstyle)
    named = {POSTGRES_SCHEMA: "main"}
    return str(statement.compile(dialect=dialect, schema_translate_map=named, render_schema_translate=True))


@cache
def _advance_one() -> str:
    end: dict[str, ColumnElement[Any]] = {name: bindparam(name, type_=type_) for name, type_ in _ENDS.items()}
    moved = update(shards).where(shards.c.shard_id == end["shard_id"], *_is_next(end))
    return _sqlite_text(moved.values({"last_seq": end["last_seq"]}).returning(shards.c.shard_id), "named")


@cache
def _delete_one(table: Table) -> str:
    """The row of a key is deleted; the key's columns are in order."""
    return _sqlite_text(delete(table).where(*(key == bindparam(f"of_{key.name}") for key in table.primary_key)))


@cache
def _insert_one(table: Table) -> str:
    """A row with the table's columns in order is written."""
    sent = {of.name: bindparam(of.name, type_=_sent_type(of)) for of in table.columns}
    return _sqlite_text(_or_replace(sqlite.insert(table).values(sent), table))


# --- Postgres: one statement for a whole append, because each is a round trip --------------------------------------


class Statement(NamedTuple):
    """SQL for the driver, and the names of its parameters, in their order."""

    sql: str
    names: tuple[str, ...]


async def append_to_postgres(connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
    """Write the batches of the shards that pass the check, in a transaction; returns these shards.

    The statement is a chain of common table expressions: every insert and delete joins with the shards that passed.
    """
    values = _GIVEN_ENDS.bind(_ends_of(batches))
    shape = []
    for change in _changes_of(batches):
        gone = change.gone_for_good()
        if gone:
            values |= _given_gone(change.table).bind(gone)
        if change.rows:
            values |= _given_new(change.table).bind(change.rows)
        if gone or change.rows:
            shape.append((change.table.name, bool(gone), bool(change.rows)))
    sql, names = _statement(tuple(shape))
    return {row[0] for row in await driver_of(connection).fetch(sql, *(values[name] for name in names))}


async def plan_once(driver: Any) -> None:
    """Set a connection up for appends: their statements look all rows up by their keys, whatever the tables' sizes.

    A plan is kept while its tables grow. Planned for an empty table, a walk through it took 8 s for 5,000 of 10,000
    rows.
    """
    await driver.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")


_GIVEN_ENDS = given_rows("postgresql", "ends", _ENDS)


@cache
def _statement(shape: Shape) -> Statement:
    taken = _given_gone(side_commits) if (side_commits.name, True, False) in shape else None
    moved = _advance(taken).cte("moved")
    gate = _gate(moved)
    parts: list[CTE] = []
    for name, has_gone, has_new in shape:
        table = metadata.tables[f"{POSTGRES_SCHEMA}.{name}"]
        if has_gone:
            parts.append(_delete(table, _given_gone(table), moved))
        if has_new:
            # A change of a group or topic waits for transactions that are committing under a fence (ADR 0015, 107).
            is_fenced = table in (groups, topics)
            parts.append(_insert(table, _given_new(table), gate if is_fenced else moved))
    built = select(moved.c.shard_id).add_cte(*parts).compile(dialect=asyncpg.dialect())  # type: ignore[no-untyped-call]
    assert isinstance(built, SQLCompiler)
    return Statement(str(built), tuple(built.positiontup or ()))


def _advance(taken: GivenRows | None) -> Any:
    """Move the journal's end of each given shard that passes the check.

    A shard does not pass either if the store went back to an earlier state, and lost a side commit that is `taken`
    over. Those that moved stay locked until the transaction is over, so that no other transaction can claim them
    between this check and the commit.
    """
    given = _GIVEN_ENDS.table.c
    checks = _is_next({name: given[name] for name in _ENDS})
    if taken is not None:
        checks.append(~_lacks_side_commit(taken, given.shard_id))
    passed = lock_in_order(_GIVEN_ENDS, *checks)
    moved = update(shards).where(shards.c.shard_id == passed.c.shard_id)
    return moved.values(last_seq=passed.c.last_seq).returning(shards.c.shard_id)


def _lacks_side_commit(taken: GivenRows, shard_id: ColumnElement[int]) -> Exists:
    """Whether one of the shard's side commits `taken` over is gone. Only an owner deletes them, with this statement."""
    named = taken.table.c
    is_it = and_(side_commits.c.shard_id == named.shard_id, side_commits.c.id == named.id)
    lacking = select(named.id).outerjoin_from(taken.table, side_commits, is_it)
    return lacking.where(named.shard_id == shard_id, side_commits.c.id.is_(None)).exists()


def _gate(moved: CTE) -> CTE:
    """The shards with a gate that this transaction has closed: `rota.fence_at_commit` waits for it."""
    closed = func.pg_advisory_xact_lock(literal_column(str(FENCE_GATE)), moved.c.shard_id)
    return select(moved.c.shard_id, closed).cte("gate").prefix_with("MATERIALIZED")


def _insert(table: Table, new: GivenRows, moved: CTE) -> CTE:
    columns = [given.name for given in new.table.c]
    rows = select(*(_stored(table, new, name) for name in columns))
    passed = rows.join_from(new.table, moved, moved.c.shard_id == new.table.c.shard_id)
    insert = postgresql.insert(table).from_select(columns, passed)
    return _or_replace(insert, table).cte(f"{table.name}_written")


def _delete(table: Table, gone: GivenRows, moved: CTE) -> CTE:
    """Each row is looked up by its key, however small the table was when the statement was planned.

    With `=` alone, Postgres would plan a walk through the index of a small table, compare each of its rows with all of
    `gone`, and keep that plan while the table grows. It walks through an index only if its order is of use, and a
    comparison of the first column with an array makes no use of it. `plan_once` forbids walks through the table itself.
    """
    shard_id, *others = table.primary_key
    is_of_shard = shard_id == any_(postgresql.array([gone.table.c.shard_id]))
    is_it = (is_of_shard, *(key == gone.table.c[key.name] for key in others))
    return delete(table).where(*is_it, gone.table.c.shard_id == moved.c.shard_id).cte(f"{table.name}_deleted")


def _stored(table: Table, new: GivenRows, name: str) -> ColumnElement[Any]:
    """A column's value as it is stored, from the form in which it was sent."""
    sent = new.table.c[name]
    type_ = table.c[name].type
    if isinstance(type_, WallClockMs):
        return func.to_timestamp(sent / literal_column("1000.0"))
    return cast(sent, type_) if isinstance(type_, JSON) else sent


@cache
def _given_new(table: Table) -> GivenRows:
    return given_rows("postgresql", f"{table.name}_new", {of.name: _sent_type(of) for of in table.columns})


@cache
def _given_gone(table: Table) -> GivenRows:
    return given_rows("postgresql", f"{table.name}_gone", {key.name: key.type for key in table.primary_key})
