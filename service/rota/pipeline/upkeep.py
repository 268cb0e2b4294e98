"""Looking after the files: few large ones, nothing that is too old, nothing that no table uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta

import pyarrow.dataset as ds

from rota.pipeline.bronze import LinesWriter
from rota.pipeline.files import File, Written
from rota.pipeline.lake import Lake
from rota.pipeline.places import read_file, rows_of
from rota.pipeline.tables import BRONZE, CURRENT, GOLD

_SMALL_BYTES = 64 * 1024 * 1024
_DAY = timedelta(days=1)
_BATCH_ROWS = 50_000


def compact_lake(
    lake: Lake, *, keep_days: float = 0, vacuum_hours: float = 168, now: datetime | None = None
) -> Iterator[str]:
    """Do all of it; reports the work on each table in words."""
    before = (now or datetime.now(UTC)) - timedelta(days=keep_days) if keep_days else None
    files, dropped = compact_bronze(lake, before)
    after, deleted = len(lake.bronze.files()), lake.bronze.vacuum(vacuum_hours)
    if before is not None:
        yield f"bronze: {dropped:,} lines from before {before:%Y-%m-%d %H:%M} UTC were dropped"
    if files != after or deleted:
        yield f"bronze: {files} files became {after}, {deleted} unused ones were deleted"
    for name in (*GOLD, *CURRENT, "carry"):
        table = lake.gold(name)
        # Carried states have one file a bucket, for each refresh replaces those that it changes.
        files, after = table.compact() if name in GOLD else (0, 0)
        deleted = table.vacuum(vacuum_hours)
        if files != after or deleted:
            yield f"{name}: {files} files became {after}, {deleted} unused ones were deleted"


def compact_bronze(lake: Lake, before: datetime | None) -> tuple[int, int]:
    """Make few files of many, of one day (UTC) each, without the lines before `before` that are folded.

    Returns how many files there were, and how many lines were dropped. Facts stay. After that, a backfill can only
    fold the remaining lines, so it needs an option for that.
    """
    files = lake.bronze.files()
    folded_to = lake.folded_to(lake.gold("carry").batch)
    old = [each for each in files if before is not None and _has_old(each, before, folded_to)]
    wanted = {each.name for each in (*old, *_scattered(files))}
    rewritten = [each for each in files if each.name in wanted]
    if not rewritten:
        return len(files), 0
    written = [each for day in _days(rewritten) for each in _write_day(lake, rewritten, day, before, folded_to)]
    lake.bronze.rewrite([each.name for each in rewritten], written)
    return len(files), sum(each.rows for each in rewritten) - sum(each.rows for each in written)


def _has_old(file: File, before: datetime, folded_to: int) -> bool:
    """Whether it has lines that may go: folded ones from before then."""
    return bool(file.least["at"] < before) and int(file.least.get("ingest_batch", 0)) <= folded_to


def _scattered(files: Sequence[File]) -> list[File]:
    """Files that have lines of several days, and small ones of a day that has several."""
    by_day: dict[datetime, list[File]] = {}
    scattered = []
    for each in files:
        days = _days([each])
        if len(days) > 1:
            scattered.append(each)
        elif each.size < _SMALL_BYTES:
            by_day.setdefault(days[0], []).append(each)
    # A day that gets lines of others has several, too, once these are written; the next time merges them.
    return scattered + [each for of_day in by_day.values() if len(of_day) > 1 for each in of_day]


def _days(files: Sequence[File]) -> list[datetime]:
    """The days (UTC) that these files may have lines of."""
    days = set()
    for each in files:
        day, last = (_midnight(at) for at in (each.least["at"], each.greatest["at"]))
        # A clock that is years off makes a file of few lines look as if it had a thousand days.
        if (last - day) > 40 * _DAY:
            days |= {_midnight(at) for at in read_file(each.uri, columns=["at"]).column("at").to_pylist()}
            continue
        while day <= last:
            days.add(day)
            day += _DAY
    return sorted(days)


def _write_day(
    lake: Lake, files: Sequence[File], day: datetime, before: datetime | None, folded_to: int
) -> list[Written]:
    """The lines of that day in one file, those of each shard in the order of their numbers as far as they were."""
    of_day = [each for each in files if each.least["at"] < day + _DAY and each.greatest["at"] >= day]
    wanted = (ds.field("at") >= day) & (ds.field("at") < day + _DAY)
    if before is not None:
        wanted &= (ds.field("at") >= before) | (ds.field("ingest_batch") > folded_to)
    of_day.sort(key=lambda each: (each.least.get("ingest_batch", 0), each.name))
    lines = rows_of([each.uri for each in of_day], BRONZE.schema)
    writer = LinesWriter(lake.bronze.folder, f"{day:%Y%m%d}")
    for batch in lines.to_batches(filter=wanted, batch_size=_BATCH_ROWS):
        if batch.num_rows:
            writer.add(batch)
    return writer.close()


def _midnight(at: datetime) -> datetime:
    return datetime.combine(at.astimezone(UTC).date(), time(), UTC)
