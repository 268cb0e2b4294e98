"""The journal's lines, copied as they are: each ingest appends what is new, once, whoever is killed when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rota.pipeline.breakpoints import breakpoint_at
from rota.pipeline.events import EVENTS
from rota.pipeline.files import TableWriter, Written
from rota.pipeline.journal import Journal, Wanted, journal_at
from rota.pipeline.lake import Lake
from rota.pipeline.positions import LINES_PER_TASK, Heads, Position, Span, packed, spans_between
from rota.pipeline.tables import BRONZE
from rota.pipeline.tasks import Task, run_tasks

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

    def run(self, spark: SparkSession | None, lake: Lake, tell: Tell = lambda _done, _all: None) -> Ingested:
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

    def _one(self, spark: SparkSession | None, lake: Lake, batch: int, start: Position, end: Position) -> None:
        lake.write_plan(JOB, batch, {"start": start.encode(), "end": end.encode()})
        lines_per_task = int(self.source.get("linesPerTask", LINES_PER_TASK))
        tasks = packed(spans_between(start, end), lines_per_task)
        read = _reader(self.source, tasks, str(lake.bronze.path.parent), batch)
        # One task is done here, where its lines are in a table sooner than Spark has planned a job.
        written = run_tasks(spark if len(tasks) > 1 else None, len(tasks), read)
        breakpoint_at("bronze: before the commit")
        lake.bronze.commit(written, batch)
        breakpoint_at("bronze: after the commit")


def _reader(source: dict[str, str], tasks: Sequence[Sequence[Span]], folder: str, batch: int) -> Task:
    """What each task does: read its lines from the store, and write them to a file. The rows pass through no other."""

    def read(number: int) -> list[Written]:
        return write_lines(journal_at(source).batches(tasks[number], Wanted()), folder, batch)

    return read


def behind_pruned(done: Position, heads: Heads) -> Position:
    """The same position, but for shards whose next lines were pruned: they go on with the first that is there."""
    shards = dict(done.shards)
    for shard_id, first in heads.first_seq.items():
        shards[shard_id] = max(shards.get(shard_id, 0), first - 1)
    return Position(done.incarnation, shards)


def write_lines(batches: Iterable[pa.RecordBatch], folder: str, batch: int) -> list[Written]:
    """Write lines of the journal to one file of bronze."""
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
    return writer.close()


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
