"""Writing batches to Postgres, where each statement is a round trip: one statement does it all.

It is a chain of common table expressions, in which every insert and delete joins with the shards
that passed the check. The statement is put together by SQLAlchemy, once for each combination of
tables, and run on the driver: on this path, the hottest of all, executing it through SQLAlchemy would
cost more than the driver and the network do.
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
from rota.storage.bulk import GivenRows, given_keys, given_rows, sent_type
from rota.storage.engine import driver_of
from rota.storage.schema import FENCE_GATE, POSTGRES_SCHEMA, WallClockMs, groups, metadata, side_commits

Shape = tuple[tuple[str, bool, bool], ...]
"""Which tables a statement is about: (name, whether rows go, whether rows come)."""


class PostgresAppender:
    """One statement for a whole append."""

    async def append(self, connection: AsyncConnection, batches: Sequence[ShardBatch]) -> set[int]:
        given = _ENDS.bind(ends_of(batches))
        shape = []
        for change in changes_of(batches):
            gone = change.gone_for_good()
            if gone:
                given |= _given_gone(change.table).bind(gone)
            if change.rows:
                given |= _given_new(change.table).bind(change.rows)
            if gone or change.rows:
                shape.append((change.table.name, bool(gone), bool(change.rows)))
        statement = _statement(tuple(shape))
        return {row[0] for row in await driver_of(connection).fetch(statement.sql, *statement.arguments(given))}


_ENDS = given_ends("postgresql")
_DIALECT: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]


@cache
def _statement(shape: Shape) -> Statement:
    takes_over = (side_commits.name, True, False) in shape
    moved = advance(_ENDS, _given_gone(side_commits) if takes_over else None).cte("moved")
    parts: list[CTE] = []
    for name, has_gone, has_new in shape:
        table = metadata.tables[f"{POSTGRES_SCHEMA}.{name}"]
        if has_gone:
            parts.append(_delete(table, moved))
        if has_new:
            # A change of a group waits for the transactions that are committing under its fence (ADR 0015).
            parts.append(_insert(table, _gate(moved) if table is groups else moved))
    return compiled(select(moved.c.shard_id).add_cte(*parts), _DIALECT)


def _gate(moved: CTE) -> CTE:
    """The shards with a gate that this transaction has closed: `rota.fence_at_commit` waits for it."""
    closed = func.pg_advisory_xact_lock(FENCE_GATE, moved.c.shard_id).label("closed")
    return select(moved.c.shard_id, closed).cte("gate").prefix_with("MATERIALIZED")


def _insert(table: Table, moved: CTE) -> CTE:
    new = _given_new(table)
    rows = select(*(_stored(table, new, name) for name in new.columns))
    passed = rows.join_from(new.table, moved, moved.c.shard_id == new.table.c.shard_id)
    insert = postgresql.insert(table).from_select(list(new.columns), passed)
    return or_replace(insert, table).cte(f"{table.name}_written")


def _delete(table: Table, moved: CTE) -> CTE:
    passed = table.c.shard_id.in_(select(moved.c.shard_id))
    return delete_given(table, _given_gone(table)).where(passed).cte(f"{table.name}_deleted")


def _stored(table: Table, new: GivenRows, name: str) -> ColumnElement[Any]:
    """A column's value as it is stored, from how it travelled."""
    sent = new.table.c[name]
    type_ = table.c[name].type
    if isinstance(type_, WallClockMs):
        return func.to_timestamp(sent / 1000.0)
    return cast(sent, type_) if isinstance(type_, JSON) else sent


@cache
def _given_new(table: Table) -> GivenRows:
    return given_rows("postgresql", f"{table.name}_new", {of.name: sent_type(of) for of in table.columns})


@cache
def _given_gone(table: Table) -> GivenRows:
    return given_keys(table, "postgresql")
