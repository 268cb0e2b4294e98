"""Many rows in one statement: how a list of rows travels to either engine as a statement's parameters.

Postgres gets one array per column and `unnest`s them: one round trip and one plan for any number
of rows, and unlike COPY it can upsert. SQLite gets a JSON array for what is read as a table, and
one prepared statement run over the list for what is inserted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    Delete,
    FromClause,
    Table,
    Text,
    bindparam,
    cast,
    column,
    delete,
    func,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import JSON, TypeEngine

Row = Sequence[Any]
AnyInsert = postgresql.Insert | sqlite.Insert


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows that a statement reads as a table: write it against `table.c`, run it with `bind(rows)`."""

    table: FromClause
    name: str
    columns: tuple[str, ...]
    as_json: bool

    def bind(self, rows: Sequence[Row]) -> dict[str, Any]:
        if self.as_json:
            return {self.name: json.dumps([list(row) for row in rows])}
        arrays = zip(*rows, strict=True)
        return {f"{self.name}_{name}": list(array) for name, array in zip(self.columns, arrays, strict=True)}


def given_rows(dialect: str, name: str, columns: Mapping[str, TypeEngine[Any]]) -> GivenRows:
    """At least one row with these columns, given to a statement. On SQLite: numbers, text and nulls only."""
    on_postgres = dialect == "postgresql"
    table = _unnested(name, columns) if on_postgres else _read_from_json(name, columns)
    return GivenRows(table, name, tuple(columns), as_json=not on_postgres)


def _unnested(name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    arrays = [bindparam(f"{name}_{key}", type_=ARRAY(type_)) for key, type_ in columns.items()]
    typed = [column(key, type_) for key, type_ in columns.items()]
    return func.unnest(*arrays).table_valued(*typed, name=name).render_derived()


def _read_from_json(name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    each = func.json_each(bindparam(name, type_=Text())).table_valued("value")
    picked = [
        func.json_extract(each.c.value, f"$[{i}]", type_=type_).label(key)
        for i, (key, type_) in enumerate(columns.items())
    ]
    return select(*picked).subquery(name)


class TableWriter:
    """Inserts and deletes rows of one table, each list in one statement.

    Rows are given in the order of the table's columns, keys in the order of its primary key.
    JSON columns are given as text that is JSON already. With `replace`, a row whose key exists
    replaces that row; without, it is an error.
    """

    def __init__(self, table: Table, dialect: str, *, replace: bool = True) -> None:
        self._columns = tuple(table.columns.keys())
        self._given = _given_whole_rows(table) if dialect == "postgresql" else None
        insert = _insert_given(table, self._given) if self._given else _insert_each(table)
        self._insert = _replacing(insert, table) if replace else insert
        self._given_keys = given_rows(dialect, "gone", {key.name: key.type for key in table.primary_key})
        self._delete = _delete_given(table, self._given_keys)

    async def insert(self, connection: AsyncConnection, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if self._given:
            await connection.execute(self._insert, self._given.bind(rows))
        else:
            await connection.execute(self._insert, [dict(zip(self._columns, row, strict=True)) for row in rows])

    async def delete(self, connection: AsyncConnection, keys: Sequence[Row]) -> None:
        if keys:
            await connection.execute(self._delete, self._given_keys.bind(keys))


def _given_type(of: Column[Any]) -> TypeEngine[Any]:
    return Text() if isinstance(of.type, JSON) else of.type


def _given_whole_rows(table: Table) -> GivenRows:
    return given_rows("postgresql", "given", {of.name: _given_type(of) for of in table.columns})


def _insert_given(table: Table, given: GivenRows) -> AnyInsert:
    picked = [
        cast(given.table.c[of.name], of.type) if isinstance(of.type, JSON) else given.table.c[of.name]
        for of in table.columns
    ]
    return postgresql.insert(table).from_select(table.columns.keys(), select(*picked))


def _insert_each(table: Table) -> AnyInsert:
    values = {of.name: bindparam(of.name, type_=_given_type(of)) for of in table.columns}
    return sqlite.insert(table).values(values)


def _replacing(insert: AnyInsert, table: Table) -> AnyInsert:
    rest = [of.name for of in table.columns if not of.primary_key]
    return insert.on_conflict_do_update(
        index_elements=list(table.primary_key), set_={name: insert.excluded[name] for name in rest}
    )


def _delete_given(table: Table, given: GivenRows) -> Delete:
    # SQLite has no DELETE … USING, and both engines look a row value up by the key's index.
    keys = list(table.primary_key)
    return delete(table).where(tuple_(*keys).in_(select(*(given.table.c[key.name] for key in keys))))
