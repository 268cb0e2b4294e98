"""Writing batches to Postgres, where each statement is a round trip: one statement does it all.

It is a chain of common table expressions, in which every insert and delete joins with the shards
that passed the check. The statement is put together by SQLAlchemy, once for each combination of
tables, and run on the driver: on this path, the hottest of all, executing it through SQLAlchemy would
cost more than the driver and the network do.

What one call decides is as a rule one batch with one row of a table at most, beside its journal lines. There is a
statement of its own for that, without arrays but for these lines: it takes Postgres two thirds of the time (ADR 95).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import CTE, ColumnElement, Dialect, Table, cast, func, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import JSON

from rota.replica.ports import ShardBatch
from rota.storage.append import Statement, advance, changes_of, compiled, delete_given, ends_of, given_ends, or_replace
from rota.storage.bulk import GivenRows, Row, given_keys, given_rows, sent_type
from rota.storage.engine import driver_of
from rota.storage.schema import (
    FENCE_GATE,
    POSTGRES_SCHEMA,
    WallClockMs,
    group_events,
    groups,
    metadata,
    side_commits,
)

Change = tuple[Table, Sequence[Row], Sequence[Row]]
"""A table, the keys of the rows that go for good, and the rows that come."""
Shape = tuple[tuple[str, bool, bool], ...]
"""Which tables a statement is about: (name, whether rows go, whether rows come)."""


class PostgresAppender:
    """One statement for a whole append."""

    async def append(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
        changes = [(change.table, change.gone_for_good(), change.rows) for change in changes_of(batches)]
        is_small = len(batches) == 1 and all(map(_is_small, changes))
        given = _given_ends(is_small).bind(ends_of(batches))
        shape = []
        for table, gone, rows in changes:
            if gone:
                given |= _given_gone(table, is_small).bind(gone)
            if rows:
                given |= _given_new(table, is_small).bind(rows)
            if gone or rows:
                shape.append((table.name, bool(gone), bool(rows)))
        statement = _statement(tuple(shape), is_small)
        return {row[0] for row in await driver_of(connection).fetch(statement.sql, *statement.arguments(given))}


_DIALECT: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]


def _is_small(change: Change) -> bool:
    """Not where side commits are taken over.

    After a wait for the shard, be it for a renewal, Postgres checks the row of `shards` again, without those of other
    tables. Parameters are no table: they would be found there, and their side commit would not.
    """
    table, gone, rows = change
    if table is side_commits:
        return not gone
    return len(gone) <= 1 and (len(rows) <= 1 or table is group_events)


@cache
def _statement(shape: Shape, is_small: bool) -> Statement:
    """`is_small`: for one batch, with one row at most that goes and one that comes in each table of today's state."""
    takes_over = (side_commits.name, True, False) in shape
    taken = _given_gone(side_commits, is_small) if takes_over else None
    moved = advance(_given_ends(is_small), taken).cte("moved")
    parts: list[CTE] = []
    for name, has_gone, has_new in shape:
        table = metadata.tables[f"{POSTGRES_SCHEMA}.{name}"]
        if has_gone:
            parts.append(_delete(table, _given_gone(table, is_small), moved))
        if has_new:
            # A change of a group waits for the transactions that are committing under its fence (ADR 0015).
            parts.append(_insert(table, _given_new(table, is_small), _gate(moved) if table is groups else moved))
    return compiled(select(moved.c.shard_id).add_cte(*parts), _DIALECT)


def _gate(moved: CTE) -> CTE:
    """The shards with a gate that this transaction has closed: `rota.fence_at_commit` waits for it."""
    closed = func.pg_advisory_xact_lock(FENCE_GATE, moved.c.shard_id).label("closed")
    return select(moved.c.shard_id, closed).cte("gate").prefix_with("MATERIALIZED")


def _insert(table: Table, new: GivenRows, moved: CTE) -> CTE:
    rows = select(*(_stored(table, new, name) for name in new.columns))
    passed = rows.join_from(new.table, moved, moved.c.shard_id == new.table.c.shard_id)
    insert = postgresql.insert(table).from_select(list(new.columns), passed)
    return or_replace(insert, table).cte(f"{table.name}_written")


def _delete(table: Table, gone: GivenRows, moved: CTE) -> CTE:
    passed = table.c.shard_id.in_(select(moved.c.shard_id))
    return delete_given(table, gone).where(passed).cte(f"{table.name}_deleted")


def _stored(table: Table, new: GivenRows, name: str) -> ColumnElement[Any]:
    """A column's value as it is stored, from how it travelled."""
    sent = new.table.c[name]
    type_ = table.c[name].type
    if isinstance(type_, WallClockMs):
        return func.to_timestamp(sent / 1000.0)
    return cast(sent, type_) if isinstance(type_, JSON) else sent


@cache
def _given_ends(is_small: bool) -> GivenRows:
    return given_ends("postgresql", is_one=is_small)


@cache
def _given_new(table: Table, is_small: bool) -> GivenRows:
    """A call writes several journal lines: they travel as arrays, so that one statement does for any number."""
    columns = {of.name: sent_type(of) for of in table.columns}
    return given_rows("postgresql", f"{table.name}_new", columns, is_one=is_small and table is not group_events)


@cache
def _given_gone(table: Table, is_small: bool) -> GivenRows:
    return given_keys(table, "postgresql", is_one=is_small)
