"""The journal's lines, copied as they are: each ingest appends what is new, once, whoever is killed when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rota.pipeline.breakpoints import breakpoint_at
from rota.pipeline.events import EVENTS, ddl
from rota.pipeline.files import WRITTEN, TableWriter, Written
from rota.pipeline.journal import Journal
from rota.pipeline.lake import Lake
from rota.pipeline.positions import Heads, Position, spans_between
from rota.pipeline.tables import BRONZE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "ingest"

COMMITS = "offsets_committed"
"""The kind that most lines are of."""

Tell = Callable[[int, int], None]
"""Hears how many lines of how many have been read."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one ingest came to."""

    batch: int
    lines: int
    position: Position


@dataclass(frozen=True, slots=True)
class Ingest:
    """How to read the journal."""

    journal: Journal
    source: dict[str, str]
    """Options of the data source that say where the journal is."""
    most_lines: int = 5_000_000
    """More than that is read in several batches, each of which counts once it is there."""
    skip_pruned: bool = False
    """Go on behind lines that were pruned before they were read."""

    def run(self, spark: SparkSession, lake: Lake, tell: Tell = lambda _done, _all: None) -> Ingested:
        """Read all that is there now."""
        heads = self.journal.heads()
        batch, done = lake.ingested()
        if self.skip_pruned:
            done = behind_pruned(done, heads)
        heads.check(done)
        wanted = sum(span.lines for span in spans_between(done, heads.end))
        read = 0
        while spans_between(done, heads.end):
            end = self.journal.up_to(done, heads.end, self.most_lines)
            batch += 1
            self._one(spark, lake, batch, done, end)
            read += sum(span.lines for span in spans_between(done, end))
            done = end
            tell(read, wanted)
        return Ingested(batch, read, done)

    def _one(self, spark: SparkSession, lake: Lake, batch: int, start: Position, end: Position) -> None:
        lake.write_plan(JOB, batch, {"start": start.encode(), "end": end.encode()})
        reader = spark.read.format("rota").options(**self.source)
        lines = reader.option("from", str(start)).option("to", str(end)).load()
        written = lines.mapInArrow(lines_writer(str(lake.bronze.path.parent), batch), ddl(WRITTEN)).collect()
        breakpoint_at("bronze: before the commit")
        lake.bronze.commit([Written(*row) for row in written], batch)
        breakpoint_at("bronze: after the commit")


def behind_pruned(done: Position, heads: Heads) -> Position:
    """The same position, but for shards whose next lines were pruned: they go on with the first that is there."""
    shards = dict(done.shards)
    for shard_id, first in heads.first_seq.items():
        shards[shard_id] = max(shards.get(shard_id, 0), first - 1)
    return Position(done.incarnation, shards)


def lines_writer(folder: str, batch: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task does: its lines into one file, whose name and size it tells."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = TableWriter(folder, {"events": BRONZE.schema}, f"{batch:06}")
        # Most lines tell of committed offsets. Apart from the others, their row groups are skipped by their statistics
        # where nobody asks for them.
        commits, others = _RowGroups(writer), _RowGroups(writer)
        for lines in batches:
            numbers = pa.array([batch] * lines.num_rows, pa.int32())
            arrays = [lines.column(name).cast(EVENTS.field(name).type) for name in EVENTS.names]
            whole = pa.RecordBatch.from_arrays([*arrays, numbers], schema=BRONZE.schema)
            are_commits = pc.equal(whole.column("kind"), COMMITS)
            commits.add(whole.filter(are_commits))
            others.add(whole.filter(pc.invert(are_commits)))
        commits.flush()
        others.flush()
        yield told(writer.close())

    return write


class _RowGroups:
    """Gathers lines until they are worth a row group."""

    _ROWS = 100_000

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self._gathered: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, lines: pa.RecordBatch) -> None:
        self._gathered.append(lines)
        self._rows += lines.num_rows
        if self._rows >= self._ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            whole = pa.Table.from_batches(self._gathered).combine_chunks()
            for batch in whole.to_batches():
                self._writer.write("events", batch)
        self._gathered.clear()
        self._rows = 0


def told(written: list[Written]) -> pa.RecordBatch:
    """The files of a task, for the driver."""
    columns: list[Any] = list(zip(*written, strict=True)) or [(), (), (), ()]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, WRITTEN, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN)
