"""Parts of work on Spark's workers: by its core, and as Spark Connect takes it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from rota.pipeline.files import Written
from rota.pipeline.tasks import _as_rdd, _over_connect, run_tasks

pytestmark = pytest.mark.slow


def test_each_way_does_each_part_once(spark: SparkSession) -> None:
    def task(number: int) -> list[Written]:
        return [Written("lines", f"{number}-{name}", number, '{"numRecords": 1}') for name in "ab"]

    parts = run_tasks(None, 5, task)

    assert len(parts) == 10
    assert sorted(_as_rdd(spark, 5, task)) == parts
    assert sorted(_over_connect(spark, 5, task)) == parts
