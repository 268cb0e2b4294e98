"""Killed with SIGKILL at each commit, the pipeline goes on and ends with each line once and each fact once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from rota.pipeline.breakpoints import VARIABLE
from rota.pipeline.bronze import Ingest
from rota.pipeline.gold import backfill, refresh
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import Lake
from rota.pipeline.tables import FOLDED
from tests.pipeline.journals import DECODER, INCARNATION, append_to_sqlite, simulated, sqlite_store
from tests.pipeline.test_spark import closed_rows, stored_rows
from tests.support.processes import rota_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
JOURNAL = simulated(1)
_HALF = max(line.seq for line in JOURNAL) // 2
FIRST = [line for line in JOURNAL if line.seq <= _HALF]


@pytest.fixture(scope="session")
def half_done(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a whole journal, and tables in both formats that have the first half of it."""
    folder = tmp_path_factory.mktemp("half")
    url = sqlite_store(folder / "rota.db", FIRST)
    for format_ in ("delta", "parquet"):
        lake = Lake.create(folder / format_, format_, INCARNATION)
        Ingest(open_journal(url), {"url": url}).run(spark, lake)
        refresh(spark, lake, decoder=DECODER)
    append_to_sqlite(url, [line for line in JOURNAL if line not in FIRST])
    return folder


@pytest.mark.parametrize(
    ("command", "place", "format_", "lines_then"),
    [
        ("ingest", "bronze: before the commit", "delta", len(FIRST)),
        ("ingest", "bronze: after the commit", "parquet", len(JOURNAL)),
        ("refresh", "gold: before a table#1", "parquet", len(JOURNAL)),
        ("refresh", "gold: before a table#4", "delta", len(JOURNAL)),
        ("refresh", "gold: before the carry", "delta", len(JOURNAL)),
        ("refresh", "gold: after the carry", "parquet", len(JOURNAL)),
        ("backfill", "gold: before the carry", "delta", len(JOURNAL)),
    ],
)
def test_whatever_was_killed_is_finished_exactly_once(
    spark: SparkSession, half_done: Path, tmp_path: Path, command: str, place: str, format_: str, lines_then: int
) -> None:
    shutil.copytree(half_done, tmp_path / "work")
    url, lake = f"sqlite:///{tmp_path / 'work' / 'rota.db'}", Lake.open(tmp_path / "work" / format_)
    ingest = Ingest(open_journal(url), {"url": url})
    if command != "ingest":
        ingest.run(spark, lake)

    killed = rota_pipeline(command, lake, url, place)
    left = len(numbers(lake))
    read = ingest.run(spark, lake)
    refresh(spark, lake, decoder=DECODER)

    assert killed == -signal.SIGKILL
    assert (left, read.lines) == (lines_then, len(JOURNAL) - lines_then)
    assert sorted(numbers(lake)) == sorted((line.shard_id, line.seq) for line in JOURNAL)
    expected = closed_rows(JOURNAL)
    assert {table: stored_rows(lake, table) for table in FOLDED} == expected
    if command == "backfill":
        backfill(spark, lake, decoder=DECODER)
        assert {table: stored_rows(lake, table) for table in FOLDED} == expected


def numbers(lake: Lake) -> list[tuple[int, int]]:
    """Which lines are in bronze, by its own files."""
    read = [pq.read_table(uri, columns=["shard_id", "seq"]) for uri in lake.bronze.uris()]
    return [(shard_id, seq) for table in read for shard_id, seq in zip(*table.to_pydict().values(), strict=True)]


def rota_pipeline(command: str, lake: Lake, url: str, die_at: str) -> int:
    """Run it as a user does, until it dies; how it ended."""
    options = ["--lake", str(lake.root), "--master", "local[1]", "--decoder", DECODER]
    environment = {**os.environ, "ROTA_STORE": url, "PYTHONPATH": str(ROOT), VARIABLE: die_at}
    done = subprocess.run(
        [rota_command(), "pipeline", command, *options],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode < 0, done.stdout + done.stderr
    return done.returncode
