"""One typed table for the lines of all kinds: the columns of the journal, and a column for each field of each kind.

The fields are those of the records that the service writes (`rota.core.group.records`), so a new kind of line, or a new
field, is a new column without a change here.
"""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from rota.core.group.records import RECORD_KINDS
from rota.core.group.rows import MemberImage
from rota.pipeline.tables import LINES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLAIN = {str: "string", int: "bigint", bool: "boolean", bytes: "string"}
_LISTS = {
    "assignments": "member_id string, assignment string",
    "attributes": "name string, value string",
    "lost": "what string, before bigint, after bigint",
    "members": "member_id string, client_id string, session_timeout_ms bigint, from_ms bigint, max_gap_ms bigint, "
    "gaps array<array<int>>",
    "offsets": "topic string, partition int, offset bigint, leader_epoch int, metadata string, committed_at_ms bigint, "
    "expires_at_ms bigint",
    "partitions": "topic string, partition int",
    "suspects": "unit string, falls int, last_fall_ms bigint",
}
"""The journal writes these fields as lists of lists: the names and types of the inner ones."""


_OTHER_NAMES = {"generation_id": "new_generation_id", "epoch": "owner_epoch"}
"""Fields whose name is that of a column of every line."""


def column_of(kind: str, field: str) -> str:
    """The column of a kind's field."""
    # Two kinds have `partitions`: a list, and a number.
    return "partition_count" if (kind, field) == ("topic_changed", "partitions") else _OTHER_NAMES.get(field, field)


def columns_of(kind: str) -> list[str]:
    """The columns that lines of this kind have, after those of every line."""
    return [column_of(kind, field) for field in _fields(kind)]


def typed(lines: DataFrame) -> DataFrame:
    """The lines with the columns of all kinds; each is null in lines of other kinds."""
    from pyspark.sql import functions as F

    wanted = ", ".join(f"`{name}` {type_}" for name, type_ in _json_types().items())
    parsed = lines.withColumn("fields", F.from_json("payload", wanted))
    columns = [F.expr(f"{expression} AS `{name}`") for name, expression in _expressions().items()]
    return parsed.select(*[name for name in LINES.names if name != "payload"], *columns)


def _fields(kind: str) -> dict[str, Any]:
    """The fields of a kind's payload, with their types in Python."""
    record = RECORD_KINDS[kind]
    hints = get_type_hints(record)
    return {name: hints[name] for name in record.__struct_fields__ if name != "reason"}


@cache
def _json_types() -> dict[str, str]:
    """By field of a payload: the type as which Spark parses it. Lists of lists are lists of texts at first."""
    found: dict[str, str] = {}
    for kind in RECORD_KINDS:
        for field, hint in _fields(kind).items():
            # Two kinds have `partitions`, a number and a list: it stays a text until the kind is known.
            found[field] = "string" if field == "partitions" else _json_type(field, hint)
    return found


def _json_type(field: str, hint: Any) -> str:
    if field in _LISTS:
        return "array<array<string>>"
    if hint is MemberImage:
        hints = get_type_hints(MemberImage).items()
        own = (f"`{name}`: {'array<array<string>>' if name == 'protocols' else _plain(each)}" for name, each in hints)
        return f"struct<{', '.join(own)}>"
    if get_origin(hint) is tuple:
        return f"array<{_plain(get_args(hint)[0])}>"
    return _plain(hint)


def _plain(hint: Any) -> str:
    if isinstance(hint, UnionType):
        [hint] = [each for each in get_args(hint) if each is not type(None)]
    return _PLAIN[hint]


@cache
def _expressions() -> dict[str, str]:
    """By column: the expression over `kind` and the parsed fields."""
    found: dict[str, str] = {}
    for kind in RECORD_KINDS:
        for field in _fields(kind):
            column = column_of(kind, field)
            value = f"fields.`{field}`"
            if column == "partition_count":
                found[column] = f"CASE kind WHEN '{kind}' THEN CAST({value} AS BIGINT) END"
            elif field in _LISTS:
                value = f"from_json({value}, 'array<array<string>>')" if field == "partitions" else value
                found[column] = f"transform({value}, row -> {_struct(_LISTS[field])})"
            else:
                found[column] = value
    return found


def _struct(names: str) -> str:
    parts = [each.split() for each in names.split(", ")]
    values = (f"{_typed(f'get(row, {place})', type_)} AS `{name}`" for place, (name, type_) in enumerate(parts))
    return f"struct({', '.join(values)})"


def _typed(text: str, type_: str) -> str:
    return f"from_json({text}, '{type_}')" if type_.startswith("array") else f"CAST({text} AS {type_})"
