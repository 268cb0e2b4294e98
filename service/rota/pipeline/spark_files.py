"""Files of tables as Spark reads them: by itself from folders, through Python's workers from object stores.

Spark needs jars to reach an object store, and settings of their own for the credentials. The workers have what wrote
the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rota.pipeline.events import ddl
from rota.pipeline.places import is_remote, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(spark: SparkSession, uris: Sequence[str], schema: pa.Schema) -> DataFrame:
    """The rows of these files; none where there are no files."""
    if not uris:
        return spark.createDataFrame([], ddl(schema))
    if not is_remote(uris[0]):
        return spark.read.schema(ddl(schema)).parquet(*uris)
    names = spark.createDataFrame([(uri,) for uri in uris], "uri string").repartition(len(uris))
    return names.mapInArrow(_reader(schema), ddl(schema))


def _reader(schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    plain = schema.remove_metadata()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for uri in batch.column("uri").to_pylist():
                yield from rows_of([uri], plain).to_batches()

    return run
