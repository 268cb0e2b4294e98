"""The journal's lines as Arrow tables and as Python values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from rota.pipeline.tables import BRONZE

EVENTS = pa.schema(
    [(column.name, column.type_) for column in BRONZE.columns if column.name not in ("offsets", "ingest_batch")]
)
"""The journal's own columns, which bronze adds to."""

_SPARK_TYPES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


class Line(NamedTuple):
    """One line of the journal. `payload` is still text: many lines need not be looked into."""

    shard_id: int
    seq: int
    at_ms: int
    epoch: int
    namespace: str
    group_id: str
    generation_id: int
    kind: str
    reason: str
    payload: str


def lines_of(batch: pa.RecordBatch) -> Iterator[Line]:
    """The rows of a batch that has (at least) the columns of `EVENTS`."""
    columns = [
        [us // 1000 for us in batch.column(name).cast(pa.int64()).fill_null(0).to_pylist()]
        if name == "at"
        else batch.column(name).to_pylist()
        for name in EVENTS.names
    ]
    return map(Line._make, zip(*columns, strict=True))


def ddl(schema: pa.Schema) -> str:
    """The same schema in Spark's words."""
    return ", ".join(f"`{field.name}` {_spark_type(field.type)}" for field in schema)


def _spark_type(type_: Any) -> str:
    if pa.types.is_list(type_):
        return f"array<{_spark_type(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'`{field.name}`: {_spark_type(field.type)}' for field in type_)}>"
    return _SPARK_TYPES[type_]
