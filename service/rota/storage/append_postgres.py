"""Writing batches to Postgres, where each statement is a round trip: one statement does it all.

It is a chain of common table expressions, in which every insert and delete joins with the shards
that passed the check. The statement is put together by SQLAlchemy, once for each combination of
tables, and run on the driver: on this path, the hottest of all, executing it through SQLAlchemy would
cost more than the driver and the network do.

What one call decides is as a rule one batch with one row of a table at most, beside its journal lines. There is a
statement of its own for that, without arrays but for these lines: it takes Postgres two thirds of the time (ADR 95).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any

from sqlalchemy import CTE, ColumnElement, Dialect, Integer, LargeBinary, Table, any_, cast, delete, func, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import JSON, TypeEngine

from rota.replica.ports import ShardBatch
from rota.storage.append import advance, changes_of, compiled, delete_one, ends_of, given_ends, or_replace
from rota.storage.bulk import Form, GivenRows, Row, given_keys, given_rows, sent_type
from rota.storage.engine import driver_of
from rota.storage.schema import (
    FENCE_GATE,
    POSTGRES_SCHEMA,
    WallClockMs,
    group_events,
    groups,
    members,
    metadata,
    offsets,
    side_commits,
    topics,
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
        values = [*_given_ends(is_small).values(ends_of(batches))]
        shape = []
        for table, gone, rows in changes:
            if gone:
                values += _given_gone(table, is_small).values(gone)
            if rows:
                values += _given_new(table, is_small).values(rows)
            if gone or rows:
                shape.append((table.name, bool(gone), bool(rows)))
        statement = _statement(tuple(shape), is_small)
        return {row[0] for row in await driver_of(connection).fetch(statement.sql, *statement.arguments(values))}

    async def warm_up(self, connection: AsyncConnection) -> None:
        """Run the usual statements for a shard that there is not.

        For the first use of a statement, SQLAlchemy takes some 5 ms to put it together and Postgres 3 to plan it.
        """
        for shape, is_small in _USUAL:
            statement = _statement(shape, is_small)
            values: list[Any] = []
            for given in _given(shape, is_small):
                values += given.values([[_no_value(type_) for type_ in given.parameters.values()]])
            await driver_of(connection).fetch(statement.sql, *statement.arguments(values))


async def plan_once(driver: Any) -> None:
    """Set a connection up for appends.

    All of their statements look rows up by their keys, so one plan does for all values. Postgres would plan the first
    five runs of each anew, 0.5 ms each, and might plan a walk through a table that is small when it does.
    """
    await driver.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")


_DIALECT: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]


def _is_small(change: Change) -> bool:
    table, gone, rows = change
    return len(gone) <= 1 and (len(rows) <= 1 or table is group_events)


@dataclass(frozen=True, slots=True)
class _AppendStatement:
    """SQL for the driver, which takes its arguments by their position."""

    sql: str
    constants: Sequence[Any]
    pick: Callable[[Sequence[Any]], Sequence[Any]]
    """Takes the values of all given rows, one after the other as `_given` names them, and then the constants."""

    def arguments(self, values: Sequence[Any]) -> Sequence[Any]:
        return self.pick([*values, *self.constants])


@cache
def _statement(shape: Shape, is_small: bool) -> _AppendStatement:
    """`is_small`: for one batch, with one row at most that goes and one that comes in each table of today's state."""
    takes_over = (side_commits.name, True, False) in shape
    taken = _given_gone(side_commits, is_small) if takes_over else None
    moved = advance(_given_ends(is_small), taken).cte("moved")
    gate = _gate(moved)
    parts: list[CTE] = []
    for name, has_gone, has_new in shape:
        table = metadata.tables[f"{POSTGRES_SCHEMA}.{name}"]
        if has_gone:
            parts.append(_delete(table, _given_gone(table, is_small), moved))
        if has_new:
            # A change of a group or topic waits for transactions that are committing under a fence (ADR 0015, 107).
            is_fenced = table in (groups, topics)
            parts.append(_insert(table, _given_new(table, is_small), gate if is_fenced else moved))
    built = compiled(select(moved.c.shard_id).add_cte(*parts), _DIALECT)
    given = [name for each in _given(shape, is_small) for name in each.parameters]
    constants = [name for name in dict.fromkeys(built.names) if name not in given]
    places = {name: place for place, name in enumerate([*given, *constants])}
    return _AppendStatement(
        built.sql,
        [built.constants[name] for name in constants],
        itemgetter(*(places[name] for name in built.names)),
    )


def _given(shape: Shape, is_small: bool) -> Iterator[GivenRows]:
    """The rows of a statement, in the order in which `PostgresAppender.append` passes them."""
    yield _given_ends(is_small)
    for name, has_gone, has_new in shape:
        table = metadata.tables[f"{POSTGRES_SCHEMA}.{name}"]
        if has_gone:
            yield _given_gone(table, is_small)
        if has_new:
            yield _given_new(table, is_small)


def _gate(moved: CTE) -> CTE:
    """The shards with a gate that this transaction has closed: `rota.fence_at_commit` waits for it."""
    closed = func.pg_advisory_xact_lock(FENCE_GATE, moved.c.shard_id)
    return select(moved.c.shard_id, closed).cte("gate").prefix_with("MATERIALIZED")


def _insert(table: Table, new: GivenRows, moved: CTE) -> CTE:
    columns = [given.name for given in new.table.c]
    rows = select(*(_stored(table, new, name) for name in columns))
    passed = rows.join_from(new.table, moved, moved.c.shard_id == new.table.c.shard_id)
    insert = postgresql.insert(table).from_select(columns, passed)
    return or_replace(insert, table).cte(f"{table.name}_written")


def _delete(table: Table, gone: GivenRows, moved: CTE) -> CTE:
    """Each row is looked up by its key, however small the table was when the statement was planned.

    With `=` alone, Postgres would plan a walk through the index of a small table, compare each of its rows with all of
    `gone`, and keep that plan while the table grows. It walks through an index only where its order is of use, and a
    comparison of the first column with an array makes no use of it. `plan_once` forbids walks through the table itself.
    """
    name = f"{table.name}_deleted"
    if gone.form is Form.VALUES:
        return delete_one(table, gone).where(table.c.shard_id.in_(select(moved.c.shard_id))).cte(name)
    shard_id, *others = table.primary_key
    is_of_shard = shard_id == any_(postgresql.array([gone.table.c.shard_id]))
    is_it = (is_of_shard, *(key == gone.table.c[key.name] for key in others))
    return delete(table).where(*is_it, gone.table.c.shard_id == moved.c.shard_id).cte(name)


def _stored(table: Table, new: GivenRows, name: str) -> ColumnElement[Any]:
    """A column's value as it is stored, from how it travelled."""
    sent = new.table.c[name]
    type_ = table.c[name].type
    if isinstance(type_, WallClockMs):
        return func.to_timestamp(sent / 1000.0)
    return cast(sent, type_) if isinstance(type_, JSON) else sent


_NOWHERE = -2
"""No shard has this number, and none has this epoch."""


def _no_value(type_: TypeEngine[Any]) -> Any:
    """A value of this type, for a row that is written nowhere. As a text it is JSON, too."""
    if isinstance(type_, Integer):
        return _NOWHERE
    return b"" if isinstance(type_, LargeBinary) else "null"


_EVENTS = (group_events.name, False, True)
_GROUP, _OFFSETS = (groups.name, False, True), (offsets.name, False, True)
_USUAL: tuple[tuple[Shape, bool], ...] = (
    # Joins that wait for others; then the end of a join phase, and shares.
    *(((_EVENTS,), is_small) for is_small in (True, False)),
    *(((_EVENTS, _GROUP, (members.name, False, True)), is_small) for is_small in (True, False)),
    ((_EVENTS, _GROUP), True),
    # A member leaves, and the last one does; then the leader of an election.
    ((_EVENTS, _GROUP, (members.name, True, False)), True),
    ((_EVENTS, _GROUP, (members.name, True, True)), True),
    # Commits.
    *(((_EVENTS, _OFFSETS), is_small) for is_small in (True, False)),
)


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
