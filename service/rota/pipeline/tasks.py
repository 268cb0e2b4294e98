"""Work in tasks that write files: each runs on one of Spark's workers or, where there is little to do, in this process.

Spark carries nothing to a task but its number, and nothing back but the names of its files: the rows that a task reads
and writes never leave its worker.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from rota.pipeline.events import ddl
from rota.pipeline.files import WRITTEN, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Workers: TypeAlias = "SparkSession | Callable[[], SparkSession] | None"
"""A session, what starts one when there is much to do, or None: then all is done in this process."""

_ALLOCATIONS = 50_000
"""Python's own 700 would be a search for every few lines."""

Task = Callable[[int], list[Written]]
"""Does the part with this number; it may be done twice, as Spark retries, and the files of one attempt count."""


def run_tasks(workers: Workers, count: int, task: Task) -> list[Written]:
    """Do the parts 0 to `count` - 1; without workers in this process, one after the other."""
    if workers is None or count <= 1:
        with _rare_collections():
            return [each for number in range(count) for each in task(number)]

    from pyspark.sql.utils import is_remote

    spark = session_of(workers)
    return _over_connect(spark, count, task) if is_remote() else _as_rdd(spark, count, task)


def _as_rdd(spark: SparkSession, count: int, task: Task) -> list[Written]:
    """A job of the core: there is nothing to plan and no code to generate, which costs seconds of Java's CPU."""

    def run(numbers: Iterable[int]) -> Iterator[Written]:
        for number in numbers:
            with _rare_collections():
                yield from task(number)

    return spark.sparkContext.parallelize(range(count), count).mapPartitions(run).collect()


def _over_connect(spark: SparkSession, count: int, task: Task) -> list[Written]:
    """The same through Spark Connect, which has no jobs but those of SQL: a row for each part."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                with _rare_collections():
                    written = task(number)
                yield as_arrow(written)

    rows = spark.range(0, count, 1, count).mapInArrow(run, ddl(WRITTEN)).collect()
    return [Written(*row) for row in rows]


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for garbage rarely: a task makes millions of objects that need no search, as they are in no cycles."""
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def slots(workers: SparkSession | Callable[[], SparkSession]) -> int:
    """How many tasks run at a time. Spark Connect does not say, so half of its shuffle's partitions stand for that."""
    from pyspark.sql.utils import is_remote

    spark = session_of(workers)
    if is_remote():
        return max(1, int(spark.conf.get("spark.sql.shuffle.partitions") or 4) // 2)
    return int(spark.sparkContext.defaultParallelism)


def task_count(workers: Workers) -> int:
    """Enough tasks for all cores and some for those that are quicker; one without workers."""
    return 1 if workers is None else max(4, 2 * slots(workers))


def session_of(workers: SparkSession | Callable[[], SparkSession]) -> SparkSession:
    """The session, started if it was not yet."""
    return workers() if callable(workers) else workers


def as_arrow(written: list[Written]) -> pa.RecordBatch:
    """The files of a task, for the driver."""
    columns: list[Any] = list(zip(*written, strict=True)) or [()] * len(WRITTEN)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, WRITTEN, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN)
