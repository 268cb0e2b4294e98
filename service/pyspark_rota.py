"""Where Spark looks for the data source `rota`: it loads the `DefaultSource` of every module named `pyspark_…`."""

from __future__ import annotations

from rota.pipeline.source import JournalSource


class DefaultSource(JournalSource):
    """`spark.read.format("rota")`."""
