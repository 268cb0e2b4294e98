"""Tables that tests make with a real Spark, and their rows as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rota.pipeline.batches import Batches, Progress, progress_of, start
from rota.pipeline.lake import Lake, Snapshot
from rota.pipeline.tables import FOLDED, GOLD, Line
from tests.pipeline.journals import DECODER, append_to_sqlite, sqlite_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Fed:
    """Tables, and the store from which they are fed: it gets more lines each time."""

    def __init__(self, spark: SparkSession, folder: Path, journal: Iterable[Line], decoder: str = DECODER) -> None:
        self._journal = tuple(journal)
        self._there: set[Line] = set()
        self.decoder = decoder
        self.url = sqlite_store(folder / "rota.db", [])
        self.lake = Lake(spark, str(folder / "lake"))

    def append(self, to_seq: int) -> None:
        """Put the lines up to this number into the store."""
        new = [line for line in self._journal if line.seq <= to_seq and line not in self._there]
        append_to_sqlite(self.url, new)
        self._there.update(new)

    def read(self, **options: str) -> list[Progress]:
        """Read all lines of the store into the tables."""
        query = start(Batches(self.lake, self.decoder), {"url": self.url, **options})
        return list(progress_of(query))

    def rows(self) -> dict[str, Counter[str]]:
        """The complete rows, by table."""
        tables = Snapshot(self.lake)
        return {table: rows_of(tables.closed(table), table) for table in FOLDED}


def rows_of(frame: DataFrame, table: str) -> Counter[str]:
    """The rows of a frame as the fold makes them: times are microseconds."""
    read = frame.toArrow()
    columns = [
        read.column(field.name).cast(pa.int64()) if pa.types.is_timestamp(field.type) else read.column(field.name)
        for field in GOLD[table].schema
    ]
    return Counter(repr(values) for values in zip(*(column.to_pylist() for column in columns), strict=True))
