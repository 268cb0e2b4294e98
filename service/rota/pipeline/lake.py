"""The folder of tables: Delta Lake tables in three layers, and how they are read and written.

    bronze/lines       the journal's lines
    silver/events      the lines with typed columns, one partition for each kind
    gold/facts         the facts of all tables, one partition for each table (`fact`)
    gold/current       one row for each group, with its rows that have no end yet
    gold/advice        the tables `advisor` and `what_ifs`, written anew by each replay
    checkpoint         how far Spark has read the journal

A batch of lines writes `current` last. Each of its other rows has the batch's number, so a reader takes the rows up to
the batch of `current`, and sees all tables as of one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.core.group.records import RECORD_KINDS
from rota.pipeline.failures import LakeRefused
from rota.pipeline.silver import columns_of
from rota.pipeline.tables import ADVICE, CURRENT, GOLD, LINES, OPEN, UNFOLDED, ddl

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

LINES_TABLE, EVENTS_TABLE = "bronze/lines", "silver/events"
FACTS_TABLE, CURRENT_TABLE, ADVICE_TABLE = "gold/facts", f"gold/{CURRENT.name}", "gold/advice"
_APPLICATION = "rota"
"""The name under which Delta keeps the number of the last batch of each table."""
_WITHOUT_STATISTICS = {"delta.dataSkippingNumIndexedCols": "0"}
"""Lines are read by batch and not by value."""


class Lake:
    """The tables in one folder, of any file system that Spark knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")

    @property
    def checkpoint(self) -> str:
        return f"{self.root}/checkpoint"

    def table(self, path: str) -> DataFrame | None:
        """A table as it is now; None if it has no row yet."""
        from pyspark.errors import AnalysisException

        try:
            return self.spark.read.format("delta").load(f"{self.root}/{path}")
        except AnalysisException as error:
            if error.getCondition() in _NOT_THERE:
                return None
            raise

    def append(self, rows: DataFrame, path: str, batch: int, *partitions: str) -> None:
        """Add the rows of a batch. Delta ignores a batch that the table has already."""
        settings = _WITHOUT_STATISTICS if path == LINES_TABLE else {}
        self._writer(rows, "append", batch).options(**settings).partitionBy(*partitions).save(f"{self.root}/{path}")

    def replace(self, rows: DataFrame, path: str, batch: int) -> None:
        """Replace all rows."""
        self._writer(rows, "overwrite", batch).save(f"{self.root}/{path}")

    def overwrite(self, rows: DataFrame, path: str, *partitions: str) -> None:
        """Replace all rows of a table that no batch writes."""
        rows.write.format("delta").mode("overwrite").partitionBy(*partitions).save(f"{self.root}/{path}")

    def refuse_without_checkpoint(self) -> None:
        """Raise `LakeRefused` if there are tables, but Spark does not know how far they were read."""
        from pyspark.errors import AnalysisException

        if self.table(LINES_TABLE) is None:
            return
        try:
            self.spark.read.text(f"{self.checkpoint}/metadata")
        except AnalysisException as error:
            raise LakeRefused(
                f"{self.checkpoint} is gone, so it is not known how far the tables were read: restore the whole folder "
                "from a backup, or name another one, into which all lines of the journal are read"
            ) from error

    def _writer(self, rows: DataFrame, mode: str, batch: int) -> Any:
        # A later release may write columns that the table does not have yet.
        writer = rows.write.format("delta").mode(mode).option("mergeSchema", "true")
        return writer.option("txnAppId", _APPLICATION).option("txnVersion", batch)


_NOT_THERE = ("DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND")


LATEST = """SELECT last.* FROM (
    SELECT max_by(struct(*), at) AS last FROM {view} GROUP BY namespace, group_id)"""
"""Each group's last row."""


class Snapshot:
    """All tables as of one batch, whatever is written meanwhile. Raises `LakeRefused` if there are none."""

    def __init__(self, lake: Lake) -> None:
        current = lake.table(CURRENT_TABLE)
        if current is None:
            raise LakeRefused(f"there are no tables in {lake.root}: run `rota pipeline run` first")
        self._lake = lake
        self.current = current
        self.batch = int(current.agg({"batch": "max"}).collect()[0][0])

    def closed(self, name: str) -> DataFrame:
        """The rows of a table that will never change."""
        rows = self.advice() if name in UNFOLDED else self.facts()
        return rows.where(rows.fact == name).select(*GOLD[name].schema.names)

    def facts(self) -> DataFrame:
        """The rows of all tables that will never change, with the columns of all."""
        rows = self._lake.table(FACTS_TABLE)
        assert rows is not None, "a batch writes facts first"
        return rows.where(rows.batch <= self.batch)

    def advice(self) -> DataFrame:
        """The rows of the last replay, with the columns of both tables."""
        rows = self._lake.table(ADVICE_TABLE)
        return self._lake.spark.createDataFrame([], ddl(ADVICE)) if rows is None else rows

    def opened(self, name: str) -> DataFrame:
        """The rows of a table that have no end yet."""
        if name not in OPEN:
            return self._lake.spark.createDataFrame([], ddl(GOLD[name].schema))
        return self.current.selectExpr(f"inline(open.{name})")

    def everything(self, name: str) -> DataFrame:
        """Closed and open rows."""
        return self.closed(name).unionByName(self.opened(name))

    def lines(self) -> DataFrame:
        """The journal's lines."""
        rows = self._lake.table(LINES_TABLE)
        assert rows is not None, "a batch writes lines first"
        return rows.where(rows.batch <= self.batch).select(*LINES.names)

    def events(self) -> DataFrame:
        """The lines with typed columns."""
        rows = self._lake.table(EVENTS_TABLE)
        assert rows is not None, "a batch writes events before facts"
        return rows.where(rows.batch <= self.batch)

    def read_at_s(self) -> float:
        """When the last batch was written, in seconds since 1970."""
        [found] = self.current.selectExpr("unix_micros(max(written_at)) / 1e6").collect()
        return float(found[0])

    def create_views(self) -> None:
        """Make a temporary view of each table, and `event_KIND` for the lines of each kind, for queries in SQL."""
        events = self.events()
        common = [name for name in LINES.names if name != "payload"]
        for kind in RECORD_KINDS:
            events.where(events.kind == kind).select(*common, *columns_of(kind)).createOrReplaceTempView(
                f"event_{kind}"
            )
        for name in GOLD:
            self.closed(name).createOrReplaceTempView(name)
        self.current.createOrReplaceTempView(CURRENT.name)


def all_rows(spark: SparkSession, query: str) -> list[dict[str, Any]]:
    """The rows of a query that has few."""
    return [row.asDict(recursive=True) for row in spark.sql(query).collect()]


def literal(at: datetime) -> str:
    """A moment in UTC, the zone of our sessions."""
    return f"timestamp'{at:%Y-%m-%d %H:%M:%S.%f}'"
