"""Batches of the data source with conditions that the store compares: for Spark 4.1 and later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql.datasource import EqualTo, Filter, In

from rota.pipeline.source import BatchReader


class FilteringReader(BatchReader):
    """The same, with conditions on `kind` compared by the store where they are simple."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take conditions on `kind`; Spark looks at the others itself."""
        for each in filters:
            match each:
                case _ if self._wanted.kinds:
                    yield each
                case EqualTo(("kind",), str(kind)):
                    self._wanted = replace(self._wanted, kinds=(kind,))
                case In(("kind",), values) if all(isinstance(value, str) for value in values):
                    self._wanted = replace(self._wanted, kinds=tuple(values))
                case _:
                    yield each
