"""The pipeline: reading a journal beside other readers of Postgres, folding it, the advisor, and the lag of following.

At scale 1 the journal has 5,000,000 lines; `--scale 4` shows whether twenty take four times as long. A JDBC driver is
compared where ROTA_JDBC_JAR names one, DuckDB where it is installed (`pip install 'rota[bench]'`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
import psutil
import psycopg

from bench.figures import Effort, Figure
from rota.pipeline.advisor import advise
from rota.pipeline.bronze import Ingest
from rota.pipeline.follow import Follower
from rota.pipeline.gold import refresh
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import Lake
from rota.pipeline.session import session
from rota.workload.generate import Wanted, generate
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = 5_000_000
BASE_SHARDS = 8
_BASE_LINES = 400_000
_LINES_A_GROUP_AND_DAY = 18_000
_COLUMNS = 'shard_id, seq, "at", epoch, namespace, group_id, generation_id, kind, reason, payload'
_FOLLOWED_S = 30.0
_SETTINGS = {
    "spark.driver.memory": "3g",
    # As executors of a cluster run: with both compilers. Sessions of the command line do with one, for a quick start.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}


class Cost(NamedTuple):
    """What reading all lines once took."""

    seconds: float
    client_cpu_s: float
    server_cpu_s: float


def run(effort: Effort) -> list[Figure]:
    """All of them on one journal."""
    jar = os.environ.get("ROTA_JDBC_JAR", "")
    settings = {**_SETTINGS, **({"spark.jars": jar} if jar else {})}
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as folder, PostgresServer() as postgres:
        dsn = postgres.create_database("journal")
        lines = asyncio.run(_filled(dsn, effort.times(LINES)))
        with session("local[2]", settings) as spark:
            figures = _readers(effort, spark, postgres, dsn, lines, with_jdbc=bool(jar))
            figures += _tables(effort, spark, Path(folder) / "lake", dsn, lines)
            figures += _lag(spark, Path(folder) / "followed", dsn, lines)
    return figures


# --- the journal ------------------------------------------------------------------------------------


async def _filled(dsn: str, wanted: int) -> int:
    """A true history of a fleet, and copies of it as further fleets in further shards; how many lines that is."""
    base = min(wanted, _BASE_LINES)
    groups = max(BASE_SHARDS, base // _LINES_A_GROUP_AND_DAY)
    until_ms = int(time.time() * 1000) - 60_000
    made = await asyncio.to_thread(
        generate, Wanted(dsn, groups, base / groups / _LINES_A_GROUP_AND_DAY, 1, until_ms, BASE_SHARDS), processes=2
    )
    connection = await asyncpg.connect(dsn)
    copies = max(1, round(wanted / made.lines))
    await connection.execute('CREATE TEMP TABLE base AS SELECT * FROM rota.group_events ORDER BY "at"')
    await connection.execute("TRUNCATE rota.group_events")
    # In the order of time, as servers leave them: the lines of all shards among one another.
    await connection.execute(
        f"INSERT INTO rota.group_events ({_COLUMNS}) SELECT shard_id + copy * {BASE_SHARDS}, seq, at, epoch, "
        "namespace || copy, group_id, generation_id, kind, reason, payload "
        f"FROM (SELECT * FROM base ORDER BY at) AS line CROSS JOIN generate_series(0, {copies - 1}) AS copy"
    )
    await connection.execute(
        "INSERT INTO rota.shards (shard_id, replica_id, address, epoch, lease_until_ms, last_seq) "
        f"SELECT shard_id + copy * {BASE_SHARDS}, '', '', epoch, 0, last_seq "
        f"FROM rota.shards, generate_series(1, {copies - 1}) AS copy"
    )
    await connection.execute(f"UPDATE rota.store SET shard_count = {copies * BASE_SHARDS}")
    await connection.execute("VACUUM ANALYZE rota.group_events")
    lines = await connection.fetchval("SELECT sum(last_seq) FROM rota.shards")
    await connection.close()
    return int(lines)


# --- reading ----------------------------------------------------------------------------------------


def _readers(
    effort: Effort, spark: SparkSession, postgres: PostgresServer, dsn: str, lines: int, *, with_jdbc: bool
) -> list[Figure]:
    ways: dict[str, Callable[[], int]] = {
        "Spark, source rota": lambda: _spark_source(spark, dsn, lines),
        "psycopg, a server's cursor": lambda: _psycopg(dsn),
    }
    if with_jdbc:
        ways["Spark, JDBC"] = lambda: _spark_jdbc(spark, dsn, lines)
    if importlib.util.find_spec("duckdb_extensions") is not None:
        ways["DuckDB to Arrow"] = lambda: _duckdb(dsn)
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for read in ways.values():
        read()  # Once for the caches.
    for _ in range(effort.repeats):
        for name, read in ways.items():
            costs[name].append(_measured(read, postgres, lines))
    return [figure for name, found in costs.items() for figure in _figures(name, found, costs, lines)]


def _figures(name: str, found: list[Cost], costs: dict[str, list[Cost]], lines: int) -> Iterator[Figure]:
    floor_name = "Spark, JDBC" if "Spark, JDBC" in costs else "psycopg, a server's cursor"
    floor, is_floor = costs[floor_name], name == floor_name
    rates = tuple(lines / cost.seconds for cost in found)
    millions = lines / 1e6
    cpu = tuple((cost.client_cpu_s + cost.server_cpu_s) / millions for cost in found)
    server = tuple(cost.server_cpu_s / millions for cost in found)
    aim = 900_000 if name == "Spark, source rota" else None
    of_floor = () if is_floor else tuple(lines / cost.seconds for cost in floor)
    yield Figure("pipeline", f"read: {name}", "lines/s", rates, "" if is_floor else floor_name, of_floor, aim)
    of_floor = () if is_floor else tuple((cost.client_cpu_s + cost.server_cpu_s) / millions for cost in floor)
    yield Figure("pipeline", f"CPU of 1M lines: {name}", "s", cpu, "" if is_floor else floor_name, of_floor)
    yield Figure("pipeline", f"of it Postgres: {name}", "s", server)


def _spark_source(spark: SparkSession, dsn: str, lines: int) -> int:
    source = spark.read.format("rota").option("url", dsn).option("linesPerTask", str(-(-lines // 8)))
    source.load().write.format("noop").mode("overwrite").save()
    return lines


def _spark_jdbc(spark: SparkSession, dsn: str, lines: int) -> int:
    options = {
        "url": "jdbc:" + dsn.replace("postgres@", "") + "?user=postgres",
        "driver": "org.postgresql.Driver",
        "dbtable": f"(SELECT {_COLUMNS} FROM rota.group_events) AS e",
        "partitionColumn": "shard_id",
        "lowerBound": "0",
        "upperBound": str(open_journal(dsn).heads().shard_count),
        "numPartitions": "8",
        "fetchsize": "10000",
    }
    spark.read.format("jdbc").options(**options).load().write.format("noop").mode("overwrite").save()
    return lines


def _psycopg(dsn: str) -> int:
    count = 0
    with psycopg.connect(dsn) as connection, connection.cursor("lines", binary=True) as cursor:
        cursor.itersize = 10_000
        for _ in cursor.execute(f"SELECT {_COLUMNS} FROM rota.group_events"):
            count += 1
    return count


def _duckdb(dsn: str) -> int:
    duckdb = importlib.import_module("duckdb")
    with duckdb.connect() as database:
        importlib.import_module("duckdb_extensions").import_extension("postgres_scanner", con=database)
        database.execute(f"ATTACH '{dsn}' AS store (TYPE postgres, READ_ONLY)")
        read = database.execute(f"SELECT {_COLUMNS} FROM store.rota.group_events").to_arrow_reader(100_000)
        return sum(batch.num_rows for batch in read)


def _measured(read: Callable[[], int], postgres: PostgresServer, lines: int) -> Cost:
    client, server, started = _cpu_s(os.getpid(), but=postgres.process.pid), _cpu_s(postgres.process.pid), time.time()
    count = read()
    seconds = time.time() - started
    assert count == lines, (count, lines)
    return Cost(
        seconds,
        _cpu_s(os.getpid(), but=postgres.process.pid) - client,
        _cpu_s(postgres.process.pid) - server,
    )


def _cpu_s(pid: int, but: int = 0) -> float:
    """CPU of a process and all that it has started, but for one of them."""
    root = psutil.Process(pid)
    spared = (
        {each.pid for each in (psutil.Process(but), *psutil.Process(but).children(recursive=True))} if but else set()
    )
    total = 0.0
    for each in (root, *root.children(recursive=True)):
        if each.pid not in spared:
            try:
                total += sum(each.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue
    return total


# --- tables and advice ------------------------------------------------------------------------------


def _tables(effort: Effort, spark: SparkSession, folder: Path, dsn: str, lines: int) -> list[Figure]:
    journal = open_journal(dsn)
    lake = Lake.create(folder, "delta", journal.heads().incarnation)
    with _timed() as ingest_s:
        Ingest(journal, {"url": dsn}).run(spark, lake)
    with _timed() as fold_s:
        rows = refresh(spark, lake).rows
    generations, advised, cpu = rows["assignments"], [], []
    for _ in range(effort.repeats):
        cpu_s = _cpu_s(os.getpid())
        with _timed() as advise_s:
            advise(spark, lake)
        advised.append(generations / advise_s())
        cpu.append((_cpu_s(os.getpid()) - cpu_s) / generations * 1000)
    resident_mb = sum(p.memory_info().rss for p in psutil.Process().children(recursive=True)) / 2**20
    return [
        Figure("pipeline", "ingest: journal to Delta", "lines/s", (lines / ingest_s(),)),
        Figure("pipeline", "fold of 1M lines", "s", (fold_s() / lines * 1e6,)),
        Figure("pipeline", "advisor, all strategies", "generations/s", tuple(advised), aim=5_000),
        Figure("pipeline", "advisor, CPU of 1,000 generations", "s", tuple(cpu)),
        Figure("pipeline", f"memory of all processes after {lines:,} lines", "MiB", (resident_mb,)),
    ]


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    """How many seconds the block took, once it is over."""
    started = time.perf_counter()
    took: list[float] = []
    yield lambda: took[0]
    took.append(time.perf_counter() - started)


def _lag(spark: SparkSession, folder: Path, dsn: str, lines: int) -> list[Figure]:
    """The age of the youngest event when it is in bronze, while a writer writes ten times a second."""
    journal = open_journal(dsn)
    lake = Lake.create(folder, "delta", journal.heads().incarnation)
    Ingest(journal, {"url": dsn}).run(spark, lake)
    over = threading.Event()
    writer = threading.Thread(target=lambda: asyncio.run(_write(dsn, over)))
    writer.start()
    lags: list[float] = []
    looks = Follower(Ingest(journal, {"url": dsn}), every_s=1.0, refresh_every_s=1e9).looks(spark, lake)
    next(looks)  # The first look comes after a fold of all that there was.
    until = time.monotonic() + _FOLLOWED_S
    while time.monotonic() < until:
        lags.append(next(looks).lag_s)
    over.set()
    writer.join()
    return [Figure("pipeline", f"lag of --follow behind {lines:,} lines", "s", tuple(lags), aim=10.0)]


async def _write(dsn: str, over: threading.Event) -> None:
    connection = await asyncpg.connect(dsn)
    while not over.is_set():
        async with connection.transaction():
            seq = await connection.fetchval(
                "UPDATE rota.shards SET last_seq = last_seq + 1 WHERE shard_id = 0 RETURNING last_seq"
            )
            await connection.execute(
                f"INSERT INTO rota.group_events ({_COLUMNS}) SELECT 0, $1, clock_timestamp(), epoch, namespace, "
                "group_id, generation_id, kind, reason, payload FROM rota.group_events "
                "WHERE shard_id = 0 AND kind = 'offsets_committed' LIMIT 1",
                seq,
            )
        await asyncio.sleep(0.1)
    await connection.close()
