"""The pipeline on a real Spark: from a store to facts, the same whatever the store and the format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rota.pipeline.bronze import Ingest
from rota.pipeline.events import Line
from rota.pipeline.facts.units import Decoders
from rota.pipeline.failures import LakeRefused
from rota.pipeline.gold import backfill, refresh
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import LAKE_VERSION, Lake
from rota.pipeline.tables import FOLDED, GOLD
from tests.pipeline.journals import (
    DECODER,
    INCARNATION,
    SIMULATED,
    append_to_sqlite,
    ordered,
    simulated,
    sqlite_store,
)
from tests.pipeline.replaying import fold_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def closed_rows(lines: Sequence[Line], decoders: Decoders | None = SIMULATED) -> dict[str, Counter[str]]:
    """What one pass over a journal says, by table."""
    rows: dict[str, Counter[str]] = {table: Counter() for table in FOLDED}
    for _, _, found in fold_lines(ordered(lines), decoders):
        for each in found:
            rows[each.table][repr(each.values)] += 1
    return rows


def stored_rows(lake: Lake, table: str) -> Counter[str]:
    """What a table holds, read by something other than Spark."""
    return rows_in(lake.gold(table).uris(), table)


def rows_in(uris: Sequence[str], table: str) -> Counter[str]:
    """What these files of a table hold."""
    import pyarrow as pa

    from rota.pipeline.places import read_file

    rows: Counter[str] = Counter()
    for path in uris:
        read = read_file(path, schema=GOLD[table].schema)
        columns = [
            read.column(field.name).cast(pa.int64()) if pa.types.is_timestamp(field.type) else read.column(field.name)
            for field in read.schema
        ]
        rows.update(repr(values) for values in zip(*(column.to_pylist() for column in columns), strict=True))
    return rows


@pytest.mark.parametrize(
    "format_", [pytest.param("delta", marks=pytest.mark.thorough), pytest.param("parquet", marks=pytest.mark.slow)]
)
def test_increments_and_backfills_end_with_the_rows_of_one_pass(
    spark: SparkSession, tmp_path: Path, lake_folder: Path, format_: str
) -> None:
    journal = simulated(1)
    half = [line for line in journal if line.seq <= 120 + 60 * line.shard_id]
    url = sqlite_store(tmp_path / "rota.db", half)
    ingest = Ingest(open_journal(url), {"url": url, "linesPerTask": "100"}, most_lines=150)
    lake = Lake.create(lake_folder, format_, INCARNATION)

    first = ingest.run(spark, lake)
    refresh(spark, lake, decoder=DECODER)
    append_to_sqlite(url, [line for line in journal if line not in half])
    second = ingest.run(spark, lake)
    refresh(spark, lake, decoder=DECODER)
    incremental = {table: stored_rows(lake, table) for table in FOLDED}
    described = lake_folder / "lake.json"
    described.write_text(described.read_text().replace(f'"version": {LAKE_VERSION}', '"version": 1'))
    with pytest.raises(LakeRefused, match="run `rota pipeline backfill`"):
        Lake.open(lake_folder)
    backfill(spark, Lake.open(lake_folder, older=True), decoder=DECODER)

    assert first.lines + second.lines == len(journal)
    expected = closed_rows(journal)
    assert incremental == expected
    assert {table: stored_rows(Lake.open(lake_folder), table) for table in FOLDED} == expected
