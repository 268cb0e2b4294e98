"""The data source `rota`, as any Spark program uses it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from rota.pipeline.bronze import Ingest
from rota.pipeline.failures import LakeRefused, PipelineFailed, WrongIncarnation
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import LAKE_VERSION, Lake
from rota.pipeline.source import JournalSource
from rota.pipeline.spark_errors import message_of_spark
from tests.pipeline.journals import INCARNATION, simulated, sqlite_store

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


@pytest.mark.parametrize(
    ("lacking", "needs"),
    [("rota.pipeline.stream_source", "Spark 4.2"), ("rota.pipeline.filtering_source", "Spark 4.1")],
)
def test_a_spark_that_is_too_old_is_named(lacking: str, needs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, lacking, None)
    source, schema = JournalSource({"pushFilters": "true"}), StructType()

    with pytest.raises(PipelineFailed, match=needs):
        source.streamReader(schema) if "stream" in lacking else source.reader(schema)


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


@pytest.mark.slow
def test_a_missing_line_fails_the_job_and_leaves_no_trace(
    spark: SparkSession, tmp_path: Path, lake_folder: Path
) -> None:
    url = sqlite_store(tmp_path / "rota.db", [line for line in simulated(1) if (line.shard_id, line.seq) != (1, 30)])
    lake = Lake.create(lake_folder, "delta", INCARNATION)

    with pytest.raises(PySparkException) as failed:
        Ingest(open_journal(url), {"url": url, "linesPerTask": "100"}).run(spark, lake)

    assert "shard 1: 1 of the lines 30 to 30 are not there" in (message_of_spark(failed.value) or "")
    assert lake.ingested()[0] == 0
    assert lake.bronze.uris() == []


@pytest.mark.slow
def test_another_journal_is_not_mixed_into_the_tables(spark: SparkSession, tmp_path: Path, lake_folder: Path) -> None:
    first = sqlite_store(tmp_path / "first.db", simulated(1))
    other = sqlite_store(tmp_path / "other.db", simulated(2), incarnation="2" * 32)
    lake = Lake.create(lake_folder, "parquet", INCARNATION)
    read = Ingest(open_journal(first), {"url": first}).run(spark, lake)

    with pytest.raises(WrongIncarnation):
        Ingest(open_journal(other), {"url": other}).run(spark, lake)

    assert lake.ingested() == (read.batch, read.position)


def test_tables_of_a_later_release_are_rejected(lake_folder: Path, tmp_path: Path) -> None:
    Lake.create(lake_folder, "parquet", INCARNATION)
    with Lake.open(lake_folder).locked(), pytest.raises(LakeRefused, match="another process"):
        with Lake.open(lake_folder).locked():
            pass
    described = lake_folder / "lake.json"
    described.write_text(described.read_text().replace(f'"version": {LAKE_VERSION}', '"version": 99'))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")

    with pytest.raises(LakeRefused, match="later release"):
        Lake.open(lake_folder)
    with pytest.raises(LakeRefused, match="holds something else"):
        Lake.create(tmp_path / "mine", "delta", INCARNATION)
    with pytest.raises(LakeRefused, match="rota pipeline ingest"):
        Lake.open(tmp_path / "nowhere")
