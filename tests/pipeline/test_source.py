"""The data source `rota`, as any Spark program uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rota.pipeline.journal import open_journal

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
