"""A year of `rota pipeline ingest --follow` in compressed time: nothing grows, nothing is lost, facts are exact."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from rota.pipeline import delta
from rota.pipeline.bronze import Ingest
from rota.pipeline.events import Line
from rota.pipeline.failures import LakeRefused, WrongIncarnation
from rota.pipeline.follow import Follower
from rota.pipeline.gold import backfill, refresh
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import LAKE_VERSION, Lake
from rota.pipeline.tables import FOLDED
from rota.workload.generate import Wanted, generate
from tests.pipeline.journals import INCARNATION, UNTIL_MS, append_to_sqlite, sqlite_store
from tests.pipeline.test_spark import closed_rows, stored_rows

DAY_S = 86_400
DAYS = 365
LOOKS_A_DAY = int(os.environ.get("ROTA_YEAR_LOOKS_A_DAY", "3"))
"""3 take about four minutes. A real follower looks 17,280 times a day."""
KEEP_DAYS = 45
COMPACT_EVERY_DAYS = 2
CHECKPOINT_EVERY = int(delta._SETTINGS["delta.checkpointInterval"])
BEGIN_S = 1_800_000_000
RESTORED = "22222222222222222222222222222222"


def year_of_lines(folder: Path, groups: int = 6, days: float = 0.2) -> list[Line]:
    """The true history of a small fleet, its times stretched to a year."""
    url = f"sqlite:///{folder / 'fleet.db'}"
    wanted = Wanted(url, groups, days, seed=7, until_ms=UNTIL_MS, shard_count=2)
    generate(wanted, processes=1)
    with closing(sqlite3.connect(folder / "fleet.db")) as connection:
        rows = connection.execute(f"SELECT {', '.join(Line._fields)} FROM group_events".replace("at_ms", "at"))
        lines = [Line(*row) for row in rows]
    stretch = DAYS / days
    return [
        line._replace(at_ms=int(BEGIN_S * 1000 + (line.at_ms - wanted.from_ms) * stretch))
        for line in sorted(lines, key=lambda line: line.at_ms)
    ]


class Stopped(Exception):
    """The follower's process ends."""


class Compressed:
    """The store and the clock of the year. Sleeping passes time, in which the service writes the lines of that time."""

    def __init__(self, folder: Path, lines: Sequence[Line]) -> None:
        self.now_s = float(BEGIN_S)
        self.at_day: dict[float, Callable[[], object]] = {}
        self.cpu_s: list[float] = []
        """What each look cost that is in no month yet."""
        self.path = folder / "rota.db"
        self.url = sqlite_store(self.path, [])
        self._coming = list(lines)
        self.written: list[Line] = []
        self._woke_cpu_s = time.process_time()

    @property
    def day(self) -> float:
        return (self.now_s - BEGIN_S) / DAY_S

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        if self.path.exists():
            self.cpu_s.append(time.process_time() - self._woke_cpu_s)
        self.now_s += seconds
        due = [line for line in self._coming if line.at_ms <= self.now_s * 1000]
        if due and self.path.exists():
            del self._coming[: len(due)]
            self.written += due
            append_to_sqlite(self.url, due)
        for day in sorted(each for each in self.at_day if each <= self.day):
            self.at_day.pop(day)()
        self._woke_cpu_s = time.process_time()

    def outage(self, day: float, days: float) -> None:
        """The store cannot be reached for so long; its lines come afterwards."""
        away = self.path.with_name("away.db")
        self.at_day[day] = lambda: self.path.rename(away)
        self.at_day[day + days] = lambda: away.rename(self.path)

    def restore(self, to_day: float) -> None:
        """Put the store back to an earlier day: another incarnation, which goes on under another epoch."""
        to_ms = (BEGIN_S + to_day * DAY_S) * 1000
        late_ms = int(self.now_s * 1000 - to_ms)
        lost = [line for line in self.written if line.at_ms > to_ms]
        self.written = [line for line in self.written if line.at_ms <= to_ms]
        self._coming = [
            line._replace(at_ms=line.at_ms + late_ms, epoch=line.epoch + 1) for line in (*lost, *self._coming)
        ]
        self.path.unlink()
        sqlite_store(self.path, self.written, incarnation=RESTORED)


def follow(year: Compressed, lake: Lake, until_day: float) -> list[str]:
    """A process that follows until then; its messages."""

    def stop() -> None:
        raise Stopped

    year.at_day[until_day] = stop
    every_s = DAY_S / LOOKS_A_DAY
    follower = Follower(
        Ingest(open_journal(year.url), {"url": year.url}),
        every_s=every_s,
        refresh_every_s=3 * every_s,
        compact_every_s=COMPACT_EVERY_DAYS * DAY_S,
        keep_days=KEEP_DAYS,
        vacuum_hours=0,
        clock=year,
    )
    looks = follower.looks(None, lake)
    messages: list[str] = []
    with pytest.raises(Stopped):
        messages.extend(look.message for look in looks if look.message)
    return messages


def upgrade(lake: Lake) -> Lake:
    """A release finds the tables of one before it, and folds them anew."""
    described = Path(lake.root) / "lake.json"
    described.write_text(described.read_text().replace(f'"version": {LAKE_VERSION}', f'"version": {LAKE_VERSION - 1}'))
    with pytest.raises(LakeRefused, match="run `rota pipeline backfill`"):
        Lake.open(lake.root)
    backfill(None, Lake.open(lake.root, older=True))
    return Lake.open(lake.root)


class Month(NamedTuple):
    """How the lake stands at the end of 30 days."""

    day: float
    data_files: int
    log_files: int
    """Of the table that has most of them: it drops old ones at each checkpoint."""
    oldest_line_days: float
    """Of all lines in all files of bronze, whether these are in use or not."""
    cpu_ms: float
    """What a look cost, on average."""

    @classmethod
    def of(cls, year: Compressed, lake: Lake) -> Month:
        paths = Path(lake.bronze.path).glob("*.parquet")
        times = [at for path in paths for at in pq.read_table(path, columns=["at"]).column("at").to_pylist()]
        cpu_ms, year.cpu_s = 1000 * mean(year.cpu_s), []
        logs = Counter(path.parent for path in Path(lake.root).rglob("_delta_log/*"))
        data_files = sum("_delta_log" not in path.parts for path in Path(lake.root).rglob("*.parquet"))
        return cls(year.day, data_files, max(logs.values()), (year.now_s - min(times).timestamp()) / DAY_S, cpu_ms)


def ingested(year: Compressed, lake: Lake) -> list[Line]:
    """The lines that the lake has; it has folded all of them after this."""
    refresh(None, lake)
    position = lake.ingested()[1].shards
    return [line for line in year.written if line.seq <= position.get(line.shard_id, 0)]


def facts_of(lake: Lake) -> dict[str, Counter[str]]:
    return {table: stored_rows(lake, table) for table in FOLDED}


@pytest.mark.slow
def test_a_year_of_following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade, a backfill that is refused because lines were dropped, two outages, and a restore."""
    # Former states of a Delta table go by the machine's clock, in which the year takes minutes.
    ages = dict.fromkeys(("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), "interval 0 seconds")
    monkeypatch.setattr(delta, "_SETTINGS", delta._SETTINGS | ages)
    year = Compressed(tmp_path, year_of_lines(tmp_path))
    lake = Lake.create(tmp_path / "lake", "delta", INCARNATION)
    year.outage(day=75, days=2)
    year.outage(day=260, days=1)
    months: list[Month] = []
    for month in range(1, 13):
        year.at_day[30 * month] = lambda: months.append(Month.of(year, lake))

    messages = follow(year, lake, until_day=25)
    lake = upgrade(lake)
    messages += follow(year, lake, until_day=140)
    with pytest.raises(LakeRefused, match="would lose these facts"):
        backfill(None, Lake.open(lake.root))
    messages += follow(year, lake, until_day=200)
    lines, facts = ingested(year, lake), facts_of(lake)
    year.restore(to_day=195)
    with pytest.raises(WrongIncarnation):
        Ingest(open_journal(year.url), {"url": year.url}).run(None, lake)
    former, lake = lake, Lake.create(tmp_path / "restored", "delta", RESTORED)
    messages += follow(year, lake, until_day=DAYS)

    lines_since = ingested(year, lake)
    assert facts == facts_of(former) == closed_rows(lines, None)
    assert facts_of(lake) == closed_rows(lines_since, None)
    assert sum(table.total() for table in facts.values()) > 3_000
    assert [message for message in messages if "there is no store at" in message] != []
    assert sum("works again after" in message for message in messages) == 2
    print(*months, sep="\n")
    assert [each for each in months if each.oldest_line_days > KEEP_DAYS + 2 * COMPACT_EVERY_DAYS] == []
    settled = [each for each in months if each.day > KEEP_DAYS]
    assert max(each.data_files for each in settled) < 1.3 * median(each.data_files for each in settled)
    assert max(each.log_files for each in months) < 2.5 * CHECKPOINT_EVERY
    assert max(each.cpu_ms for each in settled) < 1.5 * median(each.cpu_ms for each in settled)
