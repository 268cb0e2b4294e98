"""The Spark data source `rota`: the journal as a batch or a stream, in parallel by ranges of lines.

Spark finds it by name, without imports, wherever Rota is installed: it looks for the module `pyspark_rota`.
Options: `url` or, because options are shown in Spark's plans, `urlEnv`: the environment variable that holds it
(ROTA_STORE without either); `groups` ("namespace/group,…"); `from` and `to` (positions); `linesPerTask`;
`linesPerBatch` for streams; `pushFilters` ("true" where `spark.sql.python.filterPushdown.enabled` is on).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from rota.pipeline.events import EVENTS, ddl
from rota.pipeline.failures import PipelineFailed
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
        columns = tuple(schema.fieldNames())
        if not pushes:
            return BatchReader(self.options, columns)
        try:
            from rota.pipeline.filtering_source import FilteringReader
        except ImportError as error:
            raise PipelineFailed("pushFilters needs Spark 4.1 or later: leave the option out") from error
        return FilteringReader(self.options, columns)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        try:
            from rota.pipeline.stream_source import StreamReader
        except ImportError as error:
            raise PipelineFailed("a stream of the journal needs Spark 4.2 or later; batches do not") from error
        return StreamReader(self.options, tuple(schema.fieldNames()))


@dataclass(frozen=True)
class Spans(InputPartition):
    """What one task reads."""

    spans: tuple[Span, ...]


class Reader:
    """What batches and streams have in common. Travels to the executors, so it holds plain values only."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._place = {name: options[name] for name in ("url", "urlEnv") if options.get(name)}
        self._lines_per_task = int(options.get("linesPerTask", str(LINES_PER_TASK)))
        self._lines_per_batch = int(options.get("linesPerBatch", str(LINES_PER_BATCH)))
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
    """All lines between two positions; from the first that is there to the last, where none is named."""

    def partitions(self) -> Sequence[InputPartition]:
        heads = self._journal().heads()
        start = Position.decode(self._from) if self._from else heads.start
        end = Position.decode(self._to) if self._to else heads.end
        heads.check(start)
        heads.check(end)
        return self._tasks(start, end)


def _groups(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for name in filter(None, text.split(",")):
        namespace, slash, group_id = name.strip().partition("/")
        found.append((namespace, group_id) if slash else ("default", namespace))
    return tuple(found)
