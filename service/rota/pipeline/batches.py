"""Reading the journal into tables: one streaming query, whose batches Spark numbers and Delta writes exactly once.

    readStream.format("rota") → foreachBatch: bronze lines → silver events → fold → gold tables → current

A batch that was killed is run again with the same number and the same lines. Tables that have its rows ignore them, and
the fold starts from the states of the batch before, because `current` is written last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rota.pipeline.facts.units import load_decoders
from rota.pipeline.fold import CARRIED, OUTPUT, fold_group
from rota.pipeline.journal import Position
from rota.pipeline.lake import CURRENT_TABLE, EVENTS_TABLE, FACTS_TABLE, LINES_TABLE, Lake
from rota.pipeline.silver import typed
from rota.pipeline.source import LINES_PER_BATCH
from rota.pipeline.tables import CURRENT, FACTS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

GROUP = ("shard_id", "namespace", "group_id")


@dataclass(slots=True)
class Batches:
    """Writes batches of lines into a lake. `rows` counts the rows that were added to each table."""

    lake: Lake
    decoder: str = ""
    rows: Counter[str] = field(default_factory=Counter)

    def write(self, lines: DataFrame, number: int) -> None:
        """Write all tables of one batch."""
        from pyspark.sql import functions as F

        lake, batch = self.lake, F.lit(number).alias("batch")
        lines = lines.persist()
        folded = self._folded(lines).persist()
        try:
            lake.append(lines.select("*", batch), LINES_TABLE, number)
            lake.append(typed(lines).select("*", batch), EVENTS_TABLE, number, "kind")
            facts = folded.where(folded.fact != CURRENT.name)
            # The count folds the lines on all cores. The few rows that come out are written by one task.
            self.rows.update(dict(facts.groupBy("fact").count().collect()))
            lake.append(facts.select(*FACTS.names, batch).coalesce(1), FACTS_TABLE, number, "fact")
            mine = folded.where(folded.fact == CURRENT.name).select(*CURRENT.schema.names, batch)
            lake.replace(self._with_others(mine.withColumn("written_at", F.current_timestamp())), CURRENT_TABLE, number)
        finally:
            folded.unpersist()
            lines.unpersist()

    def _folded(self, lines: DataFrame) -> DataFrame:
        """The rows of all tables that these lines complete; each group starts from its row of `current`."""
        from pyspark.sql import functions as F

        current = self.lake.table(CURRENT_TABLE)
        if current is not None:
            groups = F.broadcast(lines.select(*GROUP).distinct())
            carried = current.join(groups, list(GROUP), "left_semi")
            states = carried.select(*GROUP, "seq", F.lit(CARRIED).alias("kind"), F.col("carry").alias("payload"))
            lines = lines.unionByName(states, allowMissingColumns=True)
        return lines.groupBy(*GROUP).applyInArrow(_folder(self.decoder), ddl(OUTPUT))

    def _with_others(self, mine: DataFrame) -> DataFrame:
        """These rows of `current`, and those of all groups without a line in the batch."""
        from pyspark.sql import functions as F

        current = self.lake.table(CURRENT_TABLE)
        if current is None:
            return mine.coalesce(1)
        others = current.join(F.broadcast(mine.select(*GROUP)), list(GROUP), "left_anti")
        return mine.unionByName(others).coalesce(1)


def _folder(decoder: str) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    def fold(key: tuple[Any, ...], lines: pa.Table) -> pa.Table:
        shard_id, namespace, group_id = (part.as_py() for part in key)
        return fold_group((shard_id, namespace, group_id), lines, load_decoders(decoder))

    return fold


def start(batches: Batches, options: dict[str, str], *, every_s: float | None = None) -> StreamingQuery:
    """Start the query: up to the journal's end, or for ever with a look every so many seconds.

    Raises `LakeRefused` if the tables are there and the checkpoint is not.
    """
    lake = batches.lake
    lake.refuse_without_checkpoint()
    source = lake.spark.readStream.format("rota").options(**{"linesPerBatch": str(LINES_PER_BATCH), **options})
    writer = source.load().writeStream.foreachBatch(batches.write).queryName("rota")
    writer = writer.option("checkpointLocation", lake.checkpoint)
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch that is written, by Spark's own account."""

    batch: int
    lines: int
    seconds: float
    start: Position
    end: Position
    latest: Position


def progress_of(query: StreamingQuery, *, idle: bool = False) -> Iterator[Progress]:
    """Each batch with lines, until the query ends; raises what has ended it. `idle`: also each look without lines."""
    seen, ended = "", False
    while not ended:
        ended = bool(query.awaitTermination(1))
        for each in query.recentProgress:
            if each["timestamp"] > seen:
                seen = each["timestamp"]
                if idle or each["numInputRows"]:
                    yield _progress(each)


def _progress(each: Any) -> Progress:
    [source] = each["sources"]
    start, end, latest = (
        Position.decode(source[name] or "null") for name in ("startOffset", "endOffset", "latestOffset")
    )
    return Progress(
        each["batchId"], each["numInputRows"], each["durationMs"]["triggerExecution"] / 1000, start, end, latest
    )
