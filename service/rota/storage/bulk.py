"""Many rows in one statement: how a list of rows travels to either engine as a statement's parameters.

Postgres gets one array per column and `unnest`s them: one plan for any number of rows, and unlike COPY it can upsert.
An array travels as its text, because the driver would encode its elements one by one (ADR 93). Where there is one row
alone, each of its values is a parameter: neither side has an array to write or to read. SQLite reads a JSON array as a
table, which costs more than one statement for each row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    LargeBinary,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.sql.selectable import NamedFromClause
from sqlalchemy.types import JSON, TypeEngine

from rota.storage.schema import WallClockMs

Row = Sequence[Any]


class Form(Enum):
    """How given rows travel."""

    ARRAYS = "an array for each column"
    VALUES = "a parameter for each value of the only row"
    JSON = "one JSON document"


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows that a statement reads as a table: write it against `table.c`, run it with `bind(rows)`."""

    table: NamedFromClause
    form: Form
    parameters: Mapping[str, TypeEngine[Any]]
    """The statement's, with the types of the columns that they are for; in the form JSON, the only one is all rows."""

    def of_only_row(self, key: str) -> ColumnElement[Any]:
        """The parameter of this column, in the form VALUES: for a statement that needs no table."""
        name = f"{self.table.name}_{key}"
        return bindparam(name, type_=self.parameters[name])

    def bind(self, rows: Sequence[Row]) -> dict[str, Any]:
        return dict(zip(self.parameters, self.values(rows), strict=True))

    def values(self, rows: Sequence[Row]) -> Sequence[Any]:
        """Of the parameters, in their order."""
        if self.form is Form.JSON:
            return [json.dumps([list(row) for row in rows])]
        if self.form is Form.VALUES:
            (row,) = rows
            return row
        return list(map(array_text, self.parameters.values(), zip(*rows, strict=True)))


def given_rows(dialect: str, name: str, columns: Mapping[str, TypeEngine[Any]], *, is_one: bool = False) -> GivenRows:
    """At least one row with these columns, given to a statement. On SQLite: numbers, text and nulls only.

    `is_one`: there is one row alone, which is cheaper.
    """
    parameters = {f"{name}_{key}": type_ for key, type_ in columns.items()}
    if is_one:
        return GivenRows(_parameters(name, columns), Form.VALUES, parameters)
    if dialect != "postgresql":
        return GivenRows(_read_from_json(name, columns), Form.JSON, {name: Text()})
    return GivenRows(_unnested(name, columns), Form.ARRAYS, parameters)


def _parameters(name: str, columns: Mapping[str, TypeEngine[Any]]) -> NamedFromClause:
    return select(*(bindparam(f"{name}_{key}", type_=type_).label(key) for key, type_ in columns.items())).subquery(
        name
    )


def _unnested(name: str, columns: Mapping[str, TypeEngine[Any]]) -> NamedFromClause:
    arrays = [cast(bindparam(f"{name}_{key}", type_=Text()), ARRAY(type_)) for key, type_ in columns.items()]
    typed = [column(key, type_) for key, type_ in columns.items()]
    return func.unnest(*arrays).table_valued(*typed, name=name).render_derived()


def array_text(type_: TypeEngine[Any], values: Sequence[Any]) -> str:
    """Numbers, bytes or texts as the text of a Postgres array."""
    if isinstance(type_, Integer):
        return f"{{{','.join(map(str, values))}}}".replace("None", "NULL")
    if isinstance(type_, LargeBinary):
        values = [None if value is None else f"\\x{value.hex()}" for value in values]
    if None in values:
        return f"{{{','.join('NULL' if value is None else _quoted([value]) for value in values)}}}"
    return f"{{{_quoted(values)}}}"


def _quoted(values: Sequence[str]) -> str:
    """All of them are escaped at once. No text in Postgres has a NUL, so it can stand between them meanwhile."""
    joined = "\0".join(values)
    if joined.count("\0") != len(values) - 1:
        raise UnicodeError("Postgres has no text with a NUL")
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\0", '","') + '"'


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


def given_keys(table: Table, dialect: str, *, is_one: bool) -> GivenRows:
    """Keys of rows of this table, given to a statement; one key alone if it `is_one`."""
    keys = {key.name: key.type for key in table.primary_key}
    return given_rows(dialect, f"{table.name}_gone", keys, is_one=is_one)


def sent_type(of: Column[Any]) -> TypeEngine[Any]:
    """How a column's values travel: JSON as the text that it is already, a time as its milliseconds."""
    if isinstance(of.type, JSON):
        return Text()
    return BigInteger() if isinstance(of.type, WallClockMs) else of.type
