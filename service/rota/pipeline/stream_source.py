"""The journal as a stream: for Spark 4.2 and later, which limits the offsets of Python sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rota.pipeline.positions import Position
from rota.pipeline.source import Reader


class StreamReader(Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
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
        """Spark says so a batch late, so it measures no lines that were read: the reader keeps its own bookmarks."""
