"""The pipeline over Spark Connect: its own way to run tasks gives the tables of an ordinary session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rota.pipeline import gold
from rota.pipeline.bronze import Ingest
from rota.pipeline.gold import refresh
from rota.pipeline.java import find_java
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import Lake
from rota.pipeline.places import read_file
from rota.pipeline.session import cache_folder
from rota.pipeline.tables import FOLDED
from tests.pipeline.journals import INCARNATION, simulated, sqlite_store
from tests.pipeline.test_spark import stored_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LINES_PER_TASK = 60

IN_A_PROCESS = """
import sys
from tests.pipeline.test_connect import make_tables
from pyspark.sql.utils import is_remote
from rota.pipeline.session import session

with session() as spark:
    assert is_remote()
    make_tables(spark, *sys.argv[1:])
"""


def make_tables(spark: SparkSession, url: str, folder: str) -> Lake:
    """Tables of all lines of a journal, read and folded by several tasks of this session."""
    lake = Lake.create(Path(folder), "parquet", INCARNATION)
    Ingest(open_journal(url), {"url": url, "linesPerTask": str(LINES_PER_TASK)}).run(spark, lake)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gold, "FEW_LINES", 0)
        refresh(spark, lake)
    return lake


def rows_of_bronze(lake: Lake) -> Counter[str]:
    return Counter(repr(row) for uri in lake.bronze.uris() for row in read_file(uri).to_pylist())


@pytest.mark.slow
def test_spark_connect_makes_the_tables_of_an_ordinary_session(spark: SparkSession, tmp_path: Path) -> None:
    url = sqlite_store(tmp_path / "rota.db", simulated(1))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    remote = {
        "SPARK_REMOTE": "local[2]",
        "JAVA_HOME": str(find_java(cache_folder()).home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(tmp_path),
    }

    ordinary = make_tables(spark, url, str(tmp_path / "ordinary"))
    command = [sys.executable, "-c", IN_A_PROCESS, url, str(tmp_path / "remote")]
    subprocess.run(command, cwd=ROOT, env={**environment, **remote}, timeout=300, check=True)
    over_connect = Lake.open(tmp_path / "remote")

    assert len(ordinary.bronze.uris()) > 1
    assert rows_of_bronze(over_connect) == rows_of_bronze(ordinary)
    for table in FOLDED:
        assert stored_rows(over_connect, table) == stored_rows(ordinary, table), table
