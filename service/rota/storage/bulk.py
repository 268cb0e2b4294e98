"""Many rows in one statement: how a list of rows travels to either engine as a statement's parameters.

Postgres gets one array per column and `unnest`s them: one plan for any number of rows, and unlike COPY it can upsert.
SQLite reads a JSON array as a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Table,
    Text,
    bindparam,
    column,
    func,
    select,
)
from sqlalchemy.sql.selectable import NamedFromClause
from sqlalchemy.types import JSON, TypeEngine

from rota.storage.schema import WallClockMs

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows that a statement reads as a table: write it against `table.c`, run it with `bind(rows)`."""

    table: NamedFromClause
    name: str
    columns: Mapping[str, TypeEngine[Any]]
    is_json: bool
    """All rows travel as one JSON document, as for SQLite."""

    def bind(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The parameters of the statement."""
        if self.is_json:
            return {self.name: json.dumps([list(row) for row in rows])}
        return {f"{self.name}_{key}": values for key, values in zip(self.columns, zip(*rows, strict=True), strict=True)}


def given_rows(dialect: str, name: str, columns: Mapping[str, TypeEngine[Any]]) -> GivenRows:
    """At least one row with these columns, given to a statement. On SQLite: numbers, text and nulls only."""
    is_json = dialect != "postgresql"
    table = _read_from_json(name, columns) if is_json else _unnested(name, columns)
    return GivenRows(table, name, columns, is_json)


def _unnested(name: str, columns: Mapping[str, TypeEngine[Any]]) -> NamedFromClause:
    arrays = [bindparam(f"{name}_{key}", type_=ARRAY(type_)) for key, type_ in columns.items()]
    typed = [column(key, type_) for key, type_ in columns.items()]
    return func.unnest(*arrays).table_valued(*typed, name=name).render_derived()


def _read_from_json(name: str, columns: Mapping[str, TypeEngine[Any]]) -> NamedFromClause:
    each = func.json_each(bindparam(name, type_=Text())).table_valued("value")
    picked = [
        func.json_extract(each.c.value, f"$[{i}]", type_=type_).label(key)
        for i, (key, type_) in enumerate(columns.items())
    ]
    return select(*picked).subquery(name)


class TableChange(NamedTuple):
    """What a transaction does to one table: `gone` names rows to delete, then `rows` are written.

    Rows hold the table's columns in order, JSON as text; keys those of its primary key. A row with a key that is
    there already replaces it.
    """

    table: Table
    rows: Sequence[Row]
    gone: Sequence[Row] = ()

    def gone_for_good(self) -> list[Row]:
        """The keys in `gone` that `rows` does not write again.

        Postgres does not say what becomes of a row that one statement both deletes and writes.
        """
        if not self.gone:
            return []
        key_size = len(self.table.primary_key)
        written = {tuple(row[:key_size]) for row in self.rows}
        return [key for key in self.gone if tuple(key) not in written]


def sent_type(of: Column[Any]) -> TypeEngine[Any]:
    """How a column's values travel: JSON as the text that it is already, a time as its milliseconds."""
    if isinstance(of.type, JSON):
        return Text()
    return BigInteger() if isinstance(of.type, WallClockMs) else of.type
