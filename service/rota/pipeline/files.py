"""Tables as sets of Parquet files: tasks write the files, and one commit makes all of them part of the table."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rota.pipeline.places import finished_size, is_remote, sink

WRITTEN = pa.schema([("table", pa.string()), ("path", pa.string()), ("size", pa.int64()), ("stats", pa.string())])
"""What a task tells of each file that it wrote; Spark carries it to the driver."""


class Written(NamedTuple):
    """A file that a task wrote, complete but in no table yet. `path` is relative to the table's folder."""

    table: str
    path: str
    size: int
    stats: str

    @property
    def rows(self) -> int:
        return int(json.loads(self.stats)["numRecords"])

    @property
    def greatest(self) -> dict[str, Any]:
        """The greatest value of each column that there are statistics of; times as text."""
        found: dict[str, Any] = json.loads(self.stats)["maxValues"]
        return found


class File(NamedTuple):
    """A file of a table, with the least and the greatest values of the columns that there are statistics of."""

    uri: str
    name: str
    size: int
    rows: int
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]

    def has_between(self, column: str, first: Any, last: Any) -> bool:
        """Whether a row may have such a value; True where that is not known."""
        least, greatest = self.least.get(column), self.greatest.get(column)
        return least is None or greatest is None or (least <= last and greatest >= first)


class Files(Protocol):
    """One table. `batch` makes writing exact: a batch is in it once, however often it is tried."""

    path: str
    """The table's folder, or its prefix in an object store."""
    folder: str
    """The one above it, below which tasks write."""
    schema: pa.Schema

    @property
    def batch(self) -> int:
        """The last batch that was committed; 0 where there is none yet."""

    def commit(
        self, written: Sequence[Written], batch: int, *, replace: bool = False, replaced: Sequence[str] = ()
    ) -> bool:
        """Add the files, and remove all others (`replace`) or those with these names; False if it has the batch."""

    def rewrite(self, removed: Sequence[str], written: Sequence[Written]) -> None:
        """The same rows in other files, or rows less. This is no batch."""

    def fence(self) -> None:
        """Keep a writer that lost its lock from committing. Where the lock is a file there is none."""

    def files(self, upto: int | None = None) -> list[File]:
        """The files of the table as it stands, or as it stood before the first batch above `upto`."""

    def uris(self, upto: int | None = None) -> list[str]:
        """Where these files are."""

    def compact(self) -> tuple[int, int]:
        """Make few files of many, those of `to_merge`; returns how many there were and are."""

    def vacuum(self, hours: float) -> int:
        """Delete files that have belonged to no state of the table for so long; returns how many."""


_DISTINCT = frozenset({"payload", "state", "offsets", "seq", "at"})
"""Columns with values that are hardly ever equal: to look for those that are takes longer, and more room, than to
write them all."""


_SMALL_BYTES = 64 * 1024 * 1024
_MERGED_BYTES = 2 * _SMALL_BYTES


def to_merge(files: Sequence[File]) -> list[File]:
    """The small files that are worth one file, smallest first: the last is no larger than all others together.

    So a row is written again only when its file doubles: a table of a year costs each compaction hardly more than one
    of a week, and has a few files for each power of two of its size.
    """
    chosen, total = 0, 0
    small = sorted((each for each in files if each.size < _SMALL_BYTES), key=lambda each: each.size)
    for number, each in enumerate(small):
        if total >= _MERGED_BYTES:
            break
        if each.size <= total:
            chosen = number + 1
        total += each.size
    return small[:chosen]


@dataclass(slots=True)
class _Open:
    writer: pq.ParquetWriter
    sink: Any
    uri: str
    rows: int = 0


class TableWriter:
    """Writes the rows of one task to one file for each table, a buffer at a time."""

    _BUFFERED = 20_000
    _MOST_BYTES = 256 * 1024 * 1024

    def __init__(self, folder: str, schemas: dict[str, pa.Schema], name: str) -> None:
        self._folder = folder
        self._schemas = schemas
        self._name = name
        self._rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in schemas}
        self._open: dict[str, _Open] = {}
        self._stats: dict[str, _Stats] = {}

    def add(self, table: str, row: tuple[Any, ...]) -> None:
        """One row, its values in the order of the table's columns."""
        rows = self._rows[table]
        rows.append(row)
        if len(rows) >= self._BUFFERED:
            self._flush(table)

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        """Rows that are Arrow already."""
        out = self._opened(table)
        out.writer.write_batch(batch)
        out.rows += batch.num_rows
        self._stats[table].add(batch)

    def close(self) -> list[Written]:
        """End the files, durably: a commit that names them must not outlive them."""
        for table, rows in self._rows.items():
            if rows:
                self._flush(table)
        return [self._finish(table, out) for table, out in self._open.items()]

    def _flush(self, table: str) -> None:
        schema = self._schemas[table]
        columns = zip(*self._rows[table], strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        self._rows[table].clear()
        self.write(table, pa.RecordBatch.from_arrays(arrays, schema=schema))

    def _opened(self, table: str) -> _Open:
        if table not in self._open:
            uri = f"{self._folder}/{table}/part-{self._name}-{uuid.uuid4().hex}.parquet"
            if not is_remote(uri):
                Path(uri).parent.mkdir(parents=True, exist_ok=True)
            names = [name for name in self._schemas[table].names if name not in _DISTINCT]
            names += ["offsets.list.element.topic"] if "offsets" in self._schemas[table].names else []
            to = sink(uri)
            writer = pq.ParquetWriter(to, self._schemas[table], compression="zstd", use_dictionary=names)
            self._open[table] = _Open(writer, to, uri)
            self._stats[table] = _Stats(self._schemas[table])
        return self._open[table]

    def _finish(self, table: str, out: _Open) -> Written:
        out.writer.close()
        out.sink.close()
        name = out.uri.rpartition("/")[2]
        return Written(table, name, finished_size(out.uri), self._stats[table].encode(out.rows))


class _Stats:
    """The least and the greatest of the columns by which files are skipped."""

    _OF = ("shard_id", "seq", "at", "ingest_batch", "started_at", "ended_at", "from_at", "to_at", "joined_at", "hour")
    _NAMES = ("namespace", "group_id")
    """Of facts only: a file of the journal's lines has those of all groups."""

    def __init__(self, schema: pa.Schema) -> None:
        names = self._OF if "payload" in schema.names else (*self._OF, *self._NAMES)
        self._columns = [name for name in names if name in schema.names]
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for name in self._columns:
            found = pc.min_max(batch.column(name)).as_py()
            if found["min"] is not None:
                self._least[name] = min(found["min"], self._least.get(name, found["min"]))
                self._greatest[name] = max(found["max"], self._greatest.get(name, found["max"]))

    def encode(self, rows: int) -> str:
        stats = {"numRecords": rows, "minValues": self._least, "maxValues": self._greatest, "nullCount": {}}
        return json.dumps(stats, default=lambda at: at.isoformat(timespec="microseconds").replace("+00:00", "Z"))
