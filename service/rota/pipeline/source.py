"""The Spark data source `rota`: the journal as a batch or a stream, in parallel by ranges of lines.

Spark finds it by name, without imports, wherever Rota is installed: it looks for the module `pyspark_rota`.
Options: `url` or, because options are shown in Spark's plans, `urlEnv`: the environment variable that holds it
(ROTA_STORE without either); `groups` ("namespace/group,…"); `from` and `to` (positions); `linesPerTask`;
`linesPerBatch` and `skipPruned` for streams; `pushFilters` ("true" if `spark.sql.python.filterPushdown.enabled` is on).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rota.pipeline.journal import (
    LINES_PER_TASK,
    Heads,
    Journal,
    Position,
    Span,
    Wanted,
    check_last_lines,
    cut,
    journal_at,
    last_lines,
    packed,
    spans_between,
)
from rota.pipeline.tables import LINES, ddl

LINES_PER_BATCH = 500_000


class JournalSource(DataSource):
    """`spark.read.format("rota")` and `spark.readStream.format("rota")`."""

    @classmethod
    def name(cls) -> str:
        return "rota"

    def schema(self) -> str:
        return ddl(LINES)

    def reader(self, schema: Any) -> DataSourceReader:
        # Spark fails for a reader that has `pushFilters` if the setting is off, so not every reader has it.
        pushes = self.options.get("pushFilters", "").lower() == "true"
        return (FilteringReader if pushes else BatchReader)(self.options, tuple(schema.fieldNames()))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return StreamReader(self.options, tuple(schema.fieldNames()))


@dataclass(frozen=True)
class Spans(InputPartition):
    """The lines that one task reads."""

    spans: tuple[Span, ...]


class Reader:
    """The common part of batches and streams. Travels to the executors, so it holds plain values only."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._place = {name: options[name] for name in ("url", "urlEnv") if options.get(name)}
        self._lines_per_task = int(options.get("linesPerTask", str(LINES_PER_TASK)))
        self._lines_per_batch = int(options.get("linesPerBatch", str(LINES_PER_BATCH)))
        self._skips_pruned = options.get("skipPruned", "").lower() == "true"
        self._from, self._to = options.get("from", ""), options.get("to", "")
        # Spark cannot prune the columns of a Python source: a reader that wants few of them says so with `.schema(…)`.
        self._wanted = Wanted(columns, _groups(options.get("groups", "")))

    def _journal(self) -> Journal:
        return journal_at(self._place)

    def _tasks(self, start: Position, end: Position) -> Sequence[Spans]:
        return [Spans(tuple(task)) for task in packed(spans_between(start, end), self._lines_per_task)]

    def read(self, partition: Any) -> Iterator[Any]:
        yield from self._journal().batches(partition.spans, self._wanted)


class BatchReader(Reader, DataSourceReader):
    """All lines between two positions; by default from the oldest line to the newest."""

    def partitions(self) -> Sequence[InputPartition]:
        heads = self._journal().heads()
        start = Position.decode(self._from) if self._from else heads.start
        end = Position.decode(self._to) if self._to else heads.end
        heads.check(start)
        heads.check(end)
        return self._tasks(start, end)


class FilteringReader(BatchReader):
    """A batch with simple conditions on `kind`, which the store compares."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take conditions on `kind`; Spark applies the others itself."""
        for each in filters:
            match each:
                case _ if self._wanted.kinds:
                    yield each
                case EqualTo(("kind",), str(kind)):
                    self._wanted = replace(self._wanted, kinds=(kind,))
                case In(("kind",), values) if all(isinstance(value, str) for value in values):
                    self._wanted = replace(self._wanted, kinds=tuple(values))
                case _:
                    yield each


class StreamReader(Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches, each with an equal part of the new lines of each shard."""

    _available: Position | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        self._available = self._journal().heads().end

    def initialOffset(self) -> dict[str, Any]:
        heads = self._journal().heads()
        return (Position.decode(self._from) if self._from else heads.start).encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._lines_per_batch)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        journal = self._journal()
        heads = journal.heads()
        done = self._checked(journal, heads, start)
        end = self._available or heads.end
        if not isinstance(limit, ReadAllAvailable):
            end = cut(done, end, limit.max_rows if isinstance(limit, ReadMaxRows) else self._lines_per_batch)
        # Spark starts no batch for the position that it has.
        same = done.shards == end.shards
        return (done if same else replace(end, digests=last_lines(journal, heads, end))).encode()

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._journal().heads().end.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        journal = self._journal()
        return self._tasks(self._checked(journal, journal.heads(), start), Position.decode(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this a batch late; the pipeline leaves its bookmarks by the progress of its query."""

    def _checked(self, journal: Journal, heads: Heads, start: dict[str, Any]) -> Position:
        """The position, if the journal can be read on from there."""
        done = Position.decode(start)
        if self._skips_pruned:
            done = heads.behind_pruned(done)
        heads.check(done)
        check_last_lines(journal, heads, done)
        return done


def _groups(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for name in filter(None, text.split(",")):
        namespace, slash, group_id = name.strip().partition("/")
        found.append((namespace, group_id) if slash else ("default", namespace))
    return tuple(found)
