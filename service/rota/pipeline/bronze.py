"""The journal's events, copied unchanged: each ingest appends the new ones exactly once, in spite of kills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rota.pipeline.breakpoints import breakpoint_at
from rota.pipeline.committed import COMMITS, typed_offsets
from rota.pipeline.events import EVENTS
from rota.pipeline.files import TableWriter, Written
from rota.pipeline.journal import Journal, Wanted, journal_at
from rota.pipeline.lake import Lake
from rota.pipeline.last_lines import last_lines, refuse_other_lines
from rota.pipeline.positions import LINES_PER_TASK, Heads, Position, Span, lines_per_task, packed, spans_between
from rota.pipeline.slices import RANGES, range_count, ranges_of
from rota.pipeline.tables import BRONZE
from rota.pipeline.tasks import Task, Workers, run_tasks, slots, task_count

JOB = "ingest"

Report = Callable[[int, int], None]
"""Hears how many lines of how many have been read."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one ingest came to."""

    batch: int
    lines: int
    position: Position
    youngest_s: float = 0.0
    """When the last line was written, in seconds since 1970; 0 where none was read."""


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

    def run(self, workers: Workers, lake: Lake, report: Report = lambda _done, _all: None) -> Ingested:
        """Read all that is there now."""
        heads = self.journal.heads()
        batch, done = lake.ingested()
        if self.skip_pruned:
            done = behind_pruned(done, heads)
        heads.check(done)
        known = lake.last_lines()
        refuse_other_lines(self.journal, heads, done, known)
        wanted = sum(span.lines for span in spans_between(done, heads.end))
        read, youngest_s = 0, 0.0
        while spans_between(done, heads.end):
            end = self.journal.up_to(done, heads.end, self.most_lines)
            batch += 1
            grown = [span.shard_id for span in spans_between(done, end)]
            known = {**known, **last_lines(self.journal, heads, end, grown)}
            plan = {"start": done.encode(), "end": end.encode(), "last": known}
            lake.write_plan(JOB, batch, plan)
            youngest_s = max(youngest_s, self._one(workers, lake, batch, done, end))
            read += sum(span.lines for span in spans_between(done, end))
            done = end
            report(read, wanted)
        return Ingested(batch, read, done, youngest_s)

    def _one(self, workers: Workers, lake: Lake, batch: int, start: Position, end: Position) -> float:
        spans = spans_between(start, end)
        lines = sum(span.lines for span in spans)
        at_a_time = 1 if workers is None or lines <= LINES_PER_TASK else slots(workers)
        tasks = packed(spans, int(self.source.get("linesPerTask", lines_per_task(lines, at_a_time))))
        ranges = range_count(task_count(workers)) if len(tasks) > 1 else RANGES
        read = _reader(self.source, tasks, lake.bronze.folder, batch, ranges)
        # One task is done here, where its lines are in a table sooner than Spark has planned a job.
        written = run_tasks(workers, len(tasks), read)
        breakpoint_at("bronze: before the commit")
        lake.bronze.commit(written, batch)
        breakpoint_at("bronze: after the commit")
        return max((datetime.fromisoformat(each.greatest["at"]).timestamp() for each in written), default=0.0)


def _reader(source: dict[str, str], tasks: Sequence[Sequence[Span]], folder: str, batch: int, ranges: int) -> Task:
    """What each task does: read its lines from the store, and write them to a file. The rows pass through no other."""

    def read(number: int) -> list[Written]:
        return write_lines(journal_at(source).batches(tasks[number], Wanted()), folder, batch, ranges)

    return read


def behind_pruned(done: Position, heads: Heads) -> Position:
    """The same position, but for shards with pruned next lines: they go on with the first that is there."""
    shards = dict(done.shards)
    for shard_id, first in heads.first_seq.items():
        shards[shard_id] = max(shards.get(shard_id, 0), first - 1)
    return Position(done.incarnation, shards)


def write_lines(batches: Iterable[pa.RecordBatch], folder: str, batch: int, ranges: int = RANGES) -> list[Written]:
    """Write lines of the journal to one file of bronze."""
    lines = LinesWriter(folder, f"{batch:06}", ranges)
    for each in batches:
        numbers = pa.array(np.full(each.num_rows, batch, np.int32))
        arrays = [each.column(name).cast(EVENTS.field(name).type) for name in EVENTS.names]
        lines.add(pa.RecordBatch.from_arrays([*arrays, numbers], schema=_INGESTED))
    return lines.close()


_INGESTED = pa.schema([*EVENTS, BRONZE.schema.field("ingest_batch")])
"""Lines as they are read; their offsets become columns when they have been sorted."""


class LinesWriter:
    """Writes lines to one file of bronze, in row groups that readers can skip by their statistics.

    Most lines are of committed offsets; they are apart from the others. Each row group has the lines of one range of
    shards, in the order of their numbers.
    """

    _ROWS = 400_000

    def __init__(self, folder: str, name: str, ranges: int = RANGES) -> None:
        self._ranges = ranges
        self._writer = TableWriter(folder, {"events": BRONZE.schema}, name)
        self._gathered: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, lines: pa.RecordBatch) -> None:
        self._gathered.append(lines)
        self._rows += lines.num_rows
        if self._rows >= self._ROWS:
            self._flush()

    def close(self) -> list[Written]:
        self._flush()
        return self._writer.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        [whole] = pa.Table.from_batches(self._gathered).combine_chunks().to_batches()
        shard_ids = whole.column("shard_id").to_numpy()
        are_commits = pc.equal(whole.column("kind"), COMMITS).to_numpy(zero_copy_only=False)
        kinds = are_commits * self._ranges + ranges_of(shard_ids, self._ranges)
        whole = whole.take(np.lexsort((whole.column("seq").to_numpy(), shard_ids, kinds)))
        whole = _with_offsets(whole, int((kinds < self._ranges).sum()))
        ends = np.cumsum(np.bincount(kinds, minlength=2 * self._ranges))
        for first, end in zip((0, *ends), ends, strict=False):
            if end > first:
                self._writer.write("events", whole.slice(first, end - first))
        self._gathered.clear()
        self._rows = 0


def _with_offsets(lines: pa.RecordBatch, others: int) -> pa.RecordBatch:
    """The lines with the columns of bronze; the first `others` are no commits, the rest are."""
    if "offsets" in lines.schema.names:
        return lines.select(BRONZE.schema.names)
    read = typed_offsets(lines.column("payload").slice(others))
    offsets = pa.concat_arrays([pa.nulls(others, read.type), read])
    columns = {**{name: lines.column(name) for name in lines.schema.names}, "offsets": offsets}
    return pa.RecordBatch.from_arrays([columns[name] for name in BRONZE.schema.names], schema=BRONZE.schema)
