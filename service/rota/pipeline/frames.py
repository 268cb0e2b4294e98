"""The tables as Spark sees them: closed rows, and open ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from rota.pipeline.events import ddl
from rota.pipeline.fold import GroupFold
from rota.pipeline.lake import Lake, Moment
from rota.pipeline.spark_files import frame_of
from rota.pipeline.tables import CARRY, GOLD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def closed(spark: SparkSession, lake: Lake | Moment, table: str) -> DataFrame:
    """The rows that will never change; none where the table is not there yet."""
    return frame_of(spark, lake.fact_files(table), GOLD[table].schema)


def opened(spark: SparkSession, lake: Lake | Moment, table: str) -> DataFrame:
    """Open rows: those that have no end yet, made of the carried states."""
    if table == "offsets":
        return _open_offsets(spark, lake)
    uris, schema = lake.fact_files("carry"), GOLD[table].schema
    if not uris:
        return spark.createDataFrame([], ddl(schema))
    carried = frame_of(spark, uris, CARRY.schema)
    return carried.mapInArrow(_still_open(table), ddl(schema))


def _open_offsets(spark: SparkSession, lake: Lake | Moment) -> DataFrame:
    return frame_of(spark, lake.fact_files("current_offsets"), GOLD["offsets"].schema)


def everything(spark: SparkSession, lake: Lake | Moment, table: str) -> DataFrame:
    """Closed and open rows."""
    return closed(spark, lake, table).unionByName(opened(spark, lake, table))


def _still_open(table: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    schema = GOLD[table].schema

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = zip(batch.column("namespace").to_pylist(), batch.column("group_id").to_pylist(), strict=True)
            states = map(json.loads, batch.column("state").to_pylist())
            folds = (GroupFold.resumed(*name, state) for name, state in zip(names, states, strict=True))
            rows = [found.values for fold in folds for found in fold.open_rows() if found.table == table]
            if rows:
                arrays = [
                    pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema.remove_metadata())

    return run
