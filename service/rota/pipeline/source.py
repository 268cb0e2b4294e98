"""The Spark data source `rota`: the journal as a batch or a stream, in parallel by ranges of lines.

Spark finds it by name, without imports, wherever Rota is installed: the module `pyspark_rota` is what it looks for.
Options: `url` or, because options are shown in Spark's plans, `urlEnv`: the environment variable that holds it
(ROTA_STORE without either); `groups` ("namespace/group,…"); `from` and `to` (positions); `linesPerTask`;
`linesPerBatch` for streams; `pushFilters` ("true" where `spark.sql.python.filterPushdown.enabled` is on).
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

from rota.pipeline.events import EVENTS, ddl
from rota.pipeline.journal import Journal, Wanted, journal_at
from rota.pipeline.positions import LINES_PER_TASK, Position, Span, packed, spans_between

LINES_PER_BATCH = 500_000


class JournalSource(DataSource):
    """`spark.read.format("rota")` and `spark.readStream.format("rota")`."""

    @classmethod
    def name(cls) -> str:
        return "rota"

    def schema(self) -> str:
        return ddl(EVENTS)

    def reader(self, schema: Any) -> DataSourceReader:
        # Spark fails for a reader that has `pushFilters` where the setting is off, so not every reader has it.
        pushes = self.options.get("pushFilters", "").lower() == "true"
        kind = FilteringReader if pushes else BatchReader
        return kind(self.options, tuple(schema.fieldNames()))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return StreamReader(self.options, tuple(schema.fieldNames()))


@dataclass(frozen=True)
class Spans(InputPartition):
    """What one task reads."""

    spans: tuple[Span, ...]


class _Reader:
    """What batches and streams have in common. Travels to the executors, so it holds plain values only."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._place = {name: options[name] for name in ("url", "urlEnv") if options.get(name)}
        self._lines_per_task = int(options.get("linesPerTask", str(LINES_PER_TASK)))
        self._lines_per_batch = int(options.get("linesPerBatch", str(LINES_PER_BATCH)))
        self._from, self._to = options.get("from", ""), options.get("to", "")
        # Spark cannot prune the columns of a Python source: whoever wants few of them says so with `.schema(…)`.
        self._wanted = Wanted(columns, _groups(options.get("groups", "")))

    def _journal(self) -> Journal:
        return journal_at(self._place)

    def _tasks(self, start: Position, end: Position) -> Sequence[Spans]:
        return [Spans(tuple(task)) for task in packed(spans_between(start, end), self._lines_per_task)]

    def read(self, partition: Any) -> Iterator[Any]:
        yield from self._journal().batches(partition.spans, self._wanted)


class BatchReader(_Reader, DataSourceReader):
    """All lines between two positions; from the first that is there to the last, where none is named."""

    def partitions(self) -> Sequence[InputPartition]:
        heads = self._journal().heads()
        start = Position.decode(self._from) if self._from else heads.start
        end = Position.decode(self._to) if self._to else heads.end
        heads.check(start)
        heads.check(end)
        return self._tasks(start, end)


class FilteringReader(BatchReader):
    """The same, with `kind`, `group_id` and `namespace` compared by the store where that is simple."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take conditions on `kind`; Spark looks at the others itself."""
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


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches. Their ends are one moment in all shards, so that none runs ahead of the others' time."""

    _available: Position | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        self._available = self._journal().heads().end

    def initialOffset(self) -> dict[str, Any]:
        heads = self._journal().heads()
        return (Position.decode(self._from) if self._from else heads.start).encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._lines_per_batch)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        journal, done = self._journal(), Position.decode(start)
        heads = journal.heads()
        heads.check(done)
        end = self._available or heads.end
        if isinstance(limit, ReadAllAvailable):
            return end.encode()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._lines_per_batch
        return journal.up_to(done, end, most).encode()

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._journal().heads().end.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        done = Position.decode(start)
        self._journal().heads().check(done)
        return self._tasks(done, Position.decode(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark says so a batch late, so it is no measure of what was read: bookmarks are the reader's own business."""


def _groups(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for name in filter(None, text.split(",")):
        namespace, slash, group_id = name.strip().partition("/")
        found.append((namespace, group_id) if slash else ("default", namespace))
    return tuple(found)
