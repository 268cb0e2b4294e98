"""Looking after the files: few large ones, nothing that is too old, nothing that no table uses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rota.pipeline.lake import Lake
from rota.pipeline.tables import GOLD


def compact_lake(lake: Lake, *, keep_days: float = 0, vacuum_hours: float = 168) -> Iterator[str]:
    """Do all of it; says in words what was done to each table."""
    if keep_days:
        dropped = drop_old_lines(lake, datetime.now(UTC) - timedelta(days=keep_days))
        yield f"bronze: {dropped} files of old lines dropped"
    for name, table in [("bronze", lake.bronze), *((name, lake.gold(name)) for name in (*GOLD, "carry"))]:
        before, after = table.compact()
        deleted = table.vacuum(vacuum_hours)
        if before != after or deleted:
            yield f"{name}: {before} files became {after}, {deleted} unused ones were deleted"


def drop_old_lines(lake: Lake, before: datetime) -> int:
    """Take files out of bronze whose lines are all folded and all older; facts stay. Returns how many.

    After that a backfill begins where bronze begins, and the audit can only compare what is there.
    """
    plan = lake.plan(lake.build, lake.gold("carry").batch)
    folded_to = int(plan["to_batch"]) if plan else 0
    old = [uri for uri in lake.bronze.uris() if _is_old(uri, before, folded_to)]
    if old:
        lake.bronze.drop(old)
    return len(old)


def youngest_line(lake: Lake) -> datetime | None:
    """When the last line was written that the last batch has brought."""
    found = [most for uri in lake.bronze.uris()[-8:] if (most := _most(uri, "at")) is not None]
    return max(found, default=None)


def _is_old(uri: str, before: datetime, folded_to: int) -> bool:
    at, batch = _most(uri, "at"), _most(uri, "ingest_batch")
    return at is not None and at < before and batch is not None and batch <= folded_to


def _most(uri: str, column: str) -> Any:
    """The greatest value of a column, from the file's own statistics."""
    file = pq.ParquetFile(Path(uri.removeprefix("file://")))
    place = file.schema_arrow.names.index(column)
    statistics = [file.metadata.row_group(g).column(place).statistics for g in range(file.num_row_groups)]
    return max((each.max for each in statistics if each is not None and each.has_min_max), default=None)
