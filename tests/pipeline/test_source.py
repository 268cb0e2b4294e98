"""The data source `rota`, as any Spark program uses it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rota.pipeline.failures import WrongIncarnation
from rota.pipeline.journal import open_journal
from rota.pipeline.source import StreamReader
from rota.pipeline.tables import LINES
from tests.pipeline.journals import append_to_sqlite, simulated, sqlite_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_it_is_found_by_name_and_reads_in_parallel(spark: SparkSession, postgres_url: str) -> None:
    heads = open_journal(postgres_url).heads()

    lines = spark.read.format("rota").option("url", postgres_url).option("linesPerTask", "200").load()

    assert lines.rdd.getNumPartitions() >= sum(heads.last_seq.values()) // 200
    assert lines.count() == lines.select("shard_id", "seq").distinct().count() == sum(heads.last_seq.values())


@pytest.mark.slow
def test_columns_and_kinds_that_nobody_wants_are_not_read(spark: SparkSession, postgres_url: str) -> None:
    source = spark.read.format("rota").option("url", postgres_url).option("pushFilters", "true")

    few = source.schema("seq bigint, kind string").load().where("kind = 'generation_completed'")

    everything = spark.read.format("rota").option("url", postgres_url).load()
    assert few.columns == ["seq", "kind"]
    assert few.count() == everything.where("kind = 'generation_completed'").count() > 0
    assert "kind = generation_completed" not in few._jdf.queryExecution().executedPlan().toString()


@pytest.mark.slow
def test_it_reads_where_spark_is_set_to_push_nothing(spark: SparkSession, postgres_url: str) -> None:
    """Spark refuses every reader that could take filters while its setting is off."""
    setting = "spark.sql.python.filterPushdown.enabled"
    source = spark.read.format("rota").option("url", postgres_url)
    expected = source.load().where("kind = 'generation_completed'").count()

    spark.conf.set(setting, "false")
    try:
        found = source.load().where("kind = 'generation_completed'").count()
    finally:
        spark.conf.set(setting, "true")

    assert found == expected > 0


@pytest.mark.slow
def test_a_restarted_stream_gives_every_line_once(spark: SparkSession, tmp_path: Path, postgres_url: str) -> None:
    source = spark.readStream.format("rota").option("url", postgres_url).option("linesPerBatch", "300")
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    ends = []

    for _ in range(2):
        query = (
            source.load()
            .writeStream.option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(out, format="parquet")
        )
        query.awaitTermination(60)
        ends += [json.loads(progress["sources"][0]["endOffset"]) for progress in query.recentProgress]

    read = spark.read.parquet(out)
    heads = open_journal(postgres_url).heads()
    assert read.count() == read.select("shard_id", "seq").distinct().count() == sum(heads.last_seq.values())
    assert len(ends) > 2
    assert all(end["incarnation"] == heads.incarnation for end in ends)


@pytest.mark.parametrize("pruned", [False, True])
def test_a_store_that_was_restored_and_used_is_noticed_by_its_last_lines(tmp_path: Path, pruned: bool) -> None:
    """Its incarnation is the same, and it has more lines than were read."""
    lines = [line for line in simulated(28) if line.shard_id == 1]
    url, most = sqlite_store(tmp_path / "rota.db", []), len(lines) // 2
    append_to_sqlite(url, [line for line in lines if line.seq <= most])
    reader = StreamReader({"url": url}, tuple(LINES.names))
    read = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(read, ReadAllAvailable()) == read

    with closing(sqlite3.connect(tmp_path / "rota.db")) as connection, connection:
        connection.execute(f"DELETE FROM group_events WHERE seq >= {most}")
        if pruned:
            connection.execute(f"UPDATE shards SET first_seq = {most + 1}")
    after = [line._replace(epoch=line.epoch + 1) for line in lines if line.seq >= most]
    append_to_sqlite(url, [line for line in after if line.seq > most or not pruned])

    if pruned:
        assert reader.latestOffset(read, ReadAllAvailable()) != read
    else:
        with pytest.raises(WrongIncarnation, match=f"shard 1: line {most} is not the line that was read before"):
            reader.latestOffset(read, ReadAllAvailable())
