"""The pipeline: reading a journal beside other readers of Postgres, folding it, the advisor, and the lag of following.

One journal grows to 1, 5 and 20 million lines (at scale 1); reading, tables and advice are measured at each size,
in one session of Spark, with their CPU beside the time that they take. A JDBC driver is compared where ROTA_JDBC_JAR
names one, DuckDB where it is installed (`pip install 'rota[bench]'`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import asyncpg
import psutil
import psycopg

from bench.figures import Effort, Figure
from rota.demo.workload.generate import Wanted, generate
from rota.pipeline.advisor import advise
from rota.pipeline.batches import Batches, progress_of, start
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import Lake
from rota.pipeline.session import session
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = (1_000_000, 5_000_000, 20_000_000)
_COMPARED = LINES[1]
"""The size of the aims; other readers are measured at it, too, and the lag of following."""
BASE_SHARDS = 8
_BASE_LINES = 400_000
_LINES_A_GROUP_AND_DAY = 18_000
_MANY_GROUPS, _LINES_OF_EACH = 3_000, 50
_COLUMNS = 'shard_id, seq, "at", epoch, namespace, group_id, generation_id, kind, reason, payload'
_OURS = "Spark, source rota"
_FOLLOWED_S = 30.0
_SETTINGS = {
    "spark.driver.memory": "3g",
    # As executors of a cluster run: with both compilers. Sessions of the command line do with one, for a quick start.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
_Result = TypeVar("_Result")


class Journal(NamedTuple):
    """Where a journal is, and how many lines it has."""

    dsn: str
    lines: int

    @classmethod
    def generated(cls, dsn: str, lines: int) -> Journal:
        """A history of so many lines, about, in a database that is empty."""
        base = asyncio.run(_begun(dsn, min(lines, _BASE_LINES)))
        return cls(dsn, asyncio.run(_grown(dsn, 1, max(1, round(lines / base)))))


class Cost(NamedTuple):
    """What a step took: `client_cpu_s` is that of Python and Java together, `server_cpu_s` that of Postgres."""

    seconds: float
    client_cpu_s: float
    server_cpu_s: float


def run(effort: Effort) -> list[Figure]:
    """All of them, on journals that this process generates."""
    jar = os.environ.get("ROTA_JDBC_JAR", "")
    settings = {**_SETTINGS, **({"spark.jars": jar} if jar else {})}
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as folder, PostgresServer() as postgres:
        dsn, many = postgres.create_database("journal"), postgres.create_database("many_groups")
        # Before Spark starts: the generator's processes are forked.
        base = asyncio.run(_begun(dsn, min(effort.times(LINES[0]), _BASE_LINES)))
        _generated(many, _MANY_GROUPS, _MANY_GROUPS * _LINES_OF_EACH, 64)
        with session("local[2]", settings) as spark:
            bench = _Bench(effort, spark, postgres.process.pid, Path(folder))
            figures: list[Figure] = []
            copies = 1
            for size in LINES:
                wanted = max(copies, round(effort.times(size) / base))
                lines = asyncio.run(_grown(dsn, copies, wanted))
                copies = wanted
                figures += bench.readers(dsn, lines, with_others=size == _COMPARED, with_jdbc=bool(jar))
                figures += bench.tables(dsn, lines, with_aims=size == _COMPARED)
                if size == _COMPARED:
                    figures += bench.lag(dsn, lines)
            figures += bench.one_line(many)
    return figures


def steps(dsn: str, lines: int, cores: int, server: int, repeats: int, folder: Path) -> dict[str, list[float]]:
    """Lines a second of each step, generations a second of advice, in a session with so many cores.

    `server` is the process of Postgres. Whole rounds are measured after one that warms compilers and caches.
    """
    found: dict[str, list[float]] = {"read": [], "tables": [], "advice": []}
    with session(f"local[{cores}]", _SETTINGS) as spark:
        bench = _Bench(Effort(repeats), spark, server, folder)
        for number in range(repeats + 1):
            rates = bench.rates(dsn, lines, cores, f"lake-{number}")
            if number:
                for step, rate in rates.items():
                    found[step].append(rate)
    return found


# --- the journal ------------------------------------------------------------------------------------


def _generated(dsn: str, groups: int, lines: int, shards: int) -> None:
    days = lines / groups / _LINES_A_GROUP_AND_DAY
    generate(Wanted(dsn, groups, days, 1, int(time.time() * 1000) - 60_000, shards), processes=2)


async def _begun(dsn: str, lines: int) -> int:
    """A true history of a fleet, which is kept for copies of it; how many lines that is."""
    groups = max(BASE_SHARDS, lines // _LINES_A_GROUP_AND_DAY)
    await asyncio.to_thread(_generated, dsn, groups, lines, BASE_SHARDS)
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE UNLOGGED TABLE base_lines AS SELECT * FROM rota.group_events")
    await connection.execute("CREATE UNLOGGED TABLE base_shards AS SELECT * FROM rota.shards")
    made = await connection.fetchval("SELECT count(*) FROM base_lines")
    await connection.close()
    return int(made)


async def _grown(dsn: str, copies: int, wanted: int) -> int:
    """The journal with so many copies of the fleet as further ones, in further shards; how many lines that is.

    The new lines come in the order of time, as servers leave them: those of all new shards among one another.
    """
    connection = await asyncpg.connect(dsn)
    of_copies = f"generate_series({copies}, {wanted - 1}) AS copy"
    await connection.execute(
        f"INSERT INTO rota.group_events ({_COLUMNS}) SELECT shard_id + copy * {BASE_SHARDS}, seq, at, epoch, "
        "namespace || copy, group_id, generation_id, kind, reason, payload "
        f"FROM (SELECT * FROM base_lines ORDER BY at) AS line CROSS JOIN {of_copies}"
    )
    await connection.execute(
        "INSERT INTO rota.shards (shard_id, replica_id, address, epoch, lease_until_ms, last_seq) "
        f"SELECT shard_id + copy * {BASE_SHARDS}, '', '', epoch, 0, last_seq FROM base_shards CROSS JOIN {of_copies}"
    )
    await connection.execute(f"UPDATE rota.store SET shard_count = {wanted * BASE_SHARDS}")
    await connection.execute("VACUUM ANALYZE rota.group_events")
    lines = await connection.fetchval("SELECT sum(last_seq) FROM rota.shards")
    await connection.close()
    return int(lines)


async def _one_more_line(connection: Any) -> None:
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


async def _write(dsn: str, over: threading.Event) -> None:
    """A line ten times a second."""
    connection = await asyncpg.connect(dsn)
    while not over.is_set():
        await _one_more_line(connection)
        await asyncio.sleep(0.1)
    await connection.close()


async def _append(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await _one_more_line(connection)
    await connection.close()


# --- measuring --------------------------------------------------------------------------------------


class _Bench:
    """All measurements, in one session. Each prints its time and CPU as soon as it is over."""

    def __init__(self, effort: Effort, spark: SparkSession, server: int, folder: Path) -> None:
        self._effort = effort
        self._spark = spark
        self._server = server
        self._folder = folder

    def readers(self, dsn: str, lines: int, *, with_others: bool, with_jdbc: bool) -> list[Figure]:
        """All lines once; the first time is for the caches."""
        ways: dict[str, Callable[[], int | None]] = {
            "Spark, source rota": lambda: _spark_source(self._spark, dsn, lines)
        }
        if with_others:
            ways["psycopg, a server's cursor"] = lambda: _psycopg(dsn)
            if with_jdbc:
                ways["Spark, JDBC"] = lambda: _spark_jdbc(self._spark, dsn)
            if importlib.util.find_spec("duckdb_extensions") is not None:
                ways["DuckDB to Arrow"] = lambda: _duckdb(dsn)
        costs: dict[str, list[Cost]] = {name: [] for name in ways}
        for read in ways.values():
            read()
        for _ in range(self._effort.repeats):
            for name, read in ways.items():
                count, cost = self._measured(f"read by {name}, {lines:,} lines", read)
                assert count in (None, lines), (count, lines)
                costs[name].append(cost)
        return [figure for name, found in costs.items() for figure in _figures(name, found, costs, lines)]

    def tables(self, dsn: str, lines: int, *, with_aims: bool) -> list[Figure]:
        """From the journal to facts and advice."""
        of, millions = f"{lines:,} lines", lines / 1e6
        lake, made, generations = self._made(dsn, lines, f"lake-{lines}")
        advised = [self._advised(lake, generations) for _ in range(self._effort.repeats)]
        rates = tuple(generations / each.seconds for each in advised)
        resident_mb = sum(p.memory_info().rss for p in psutil.Process().children(recursive=True)) / 2**20
        return [
            Figure("pipeline", f"journal to tables: {of}", "lines/s", (lines / made.seconds,)),
            Figure(
                "pipeline",
                f"CPU of 1M lines: journal to tables, {of}",
                "s",
                (made.client_cpu_s / millions,),
                aim=60.0 if with_aims else None,
            ),
            Figure("pipeline", f"of Postgres besides: {of}", "s", (made.server_cpu_s / millions,)),
            Figure("pipeline", f"advisor, all strategies: {of}", "generations/s", rates),
            Figure("pipeline", f"memory of all processes after {of}", "MiB", (resident_mb,)),
        ]

    def rates(self, dsn: str, lines: int, tasks: int, lake_name: str) -> dict[str, float]:
        """Lines a second of each step, generations a second of advice, once."""
        _, read = self._measured(f"read of {lines:,} lines", lambda: _spark_source(self._spark, dsn, lines, tasks))
        lake, made, generations = self._made(dsn, lines, lake_name)
        rates = {"read": lines / read.seconds, "tables": lines / made.seconds}
        return rates | {"advice": generations / self._advised(lake, generations).seconds}

    def _made(self, dsn: str, lines: int, lake_name: str) -> tuple[Lake, Cost, int]:
        """A lake of the whole journal, its cost, and how many generations it has."""
        batches = Batches(Lake(self._spark, str(self._folder / lake_name)))
        _, cost = self._measured(f"tables of {lines:,} lines", lambda: self._read(batches, dsn))
        return batches.lake, cost, batches.rows["assignments"]

    def _read(self, batches: Batches, dsn: str) -> None:
        for _ in progress_of(start(batches, {"url": dsn})):
            pass

    def _advised(self, lake: Lake, generations: int) -> Cost:
        return self._measured(f"advice on {generations:,} generations", lambda: advise(lake))[1]

    def lag(self, dsn: str, lines: int) -> list[Figure]:
        """The duration of a batch while a writer writes ten times a second."""
        batches = Batches(Lake(self._spark, str(self._folder / "followed")))
        self._read(batches, dsn)
        over = threading.Event()
        writer = threading.Thread(target=lambda: asyncio.run(_write(dsn, over)))
        writer.start()
        query = start(batches, {"url": dsn}, every_s=1.0)
        seconds: list[float] = []
        until = time.monotonic() + _FOLLOWED_S
        for done in progress_of(query):
            seconds.append(done.seconds)
            if time.monotonic() > until:
                break
        query.stop()
        over.set()
        writer.join()
        return [Figure("pipeline", f"batch of a follower behind {lines:,} lines", "s", tuple(seconds), aim=15.0)]

    def one_line(self, dsn: str) -> list[Figure]:
        """A run after one more line of one of many groups, in a session that has started."""
        batches = Batches(Lake(self._spark, str(self._folder / "many")))
        self._read(batches, dsn)
        costs = []
        for _ in range(self._effort.repeats):
            asyncio.run(_append(dsn))
            costs.append(self._measured("tables of one line", lambda: self._read(batches, dsn))[1])
        of = f"one line, {_MANY_GROUPS:,} groups"
        return [
            Figure("pipeline", of, "s", tuple(cost.seconds for cost in costs), aim=15.0),
            Figure("pipeline", f"CPU of {of}", "s", tuple(cost.client_cpu_s for cost in costs)),
        ]

    def _measured(self, step: str, do: Callable[[], _Result]) -> tuple[_Result, Cost]:
        server = self._server
        client_s, server_s, began = _cpu_s(os.getpid(), but=server), _cpu_s(server), time.perf_counter()
        result = do()
        seconds = time.perf_counter() - began
        client_cpu_s = _since(client_s, _cpu_s(os.getpid(), but=server))
        cost = Cost(seconds, client_cpu_s, _since(server_s, _cpu_s(server)))
        cpu = f"{cost.client_cpu_s:.2f} s of CPU, Postgres {cost.server_cpu_s:.2f} s"
        print(f"\n  {step}: {seconds:.2f} s, {cpu}", end="", flush=True, file=sys.stderr)
        return result, cost


# --- reading ----------------------------------------------------------------------------------------


def _figures(name: str, found: list[Cost], costs: dict[str, list[Cost]], lines: int) -> Iterator[Figure]:
    floor_name = "Spark, JDBC" if "Spark, JDBC" in costs else "psycopg, a server's cursor"
    floor = [] if name == floor_name else costs.get(floor_name, [])
    floor_name = floor_name if floor else ""
    way, millions = f"{name}, {lines:,} lines", lines / 1e6
    rates, floor_rates = (tuple(lines / each.seconds for each in of) for of in (found, floor))
    cpu, floor_cpu = (tuple((c.client_cpu_s + c.server_cpu_s) / millions for c in of) for of in (found, floor))
    server = tuple(cost.server_cpu_s / millions for cost in found)
    aim = 900_000 if name == _OURS and len(costs) > 1 else None
    yield Figure("pipeline", f"read: {way}", "lines/s", rates, floor_name, floor_rates, aim)
    yield Figure("pipeline", f"CPU of 1M lines: {way}", "s", cpu, floor_name, floor_cpu)
    yield Figure("pipeline", f"of it Postgres: {way}", "s", server)


def _spark_source(spark: SparkSession, dsn: str, lines: int, tasks: int = 8) -> None:
    source = spark.read.format("rota").option("url", dsn).option("linesPerTask", str(-(-lines // max(tasks, 8))))
    source.load().write.format("noop").mode("overwrite").save()


def _spark_jdbc(spark: SparkSession, dsn: str) -> None:
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


def _cpu_s(pid: int, but: int = 0) -> dict[psutil.Process, float]:
    """CPU of a process and of each that it has started, but for one of them; children that it has reaped count."""
    root = psutil.Process(pid)
    spared = {psutil.Process(but), *psutil.Process(but).children(recursive=True)} if but else set()
    found = {}
    for each in {root, *root.children(recursive=True)} - spared:
        with suppress(psutil.NoSuchProcess):
            found[each] = sum(each.cpu_times()[:4])
    return found


def _since(before: dict[psutil.Process, float], now: dict[psutil.Process, float]) -> float:
    """What the processes that live now have used since; Spark ends workers after a minute without work, uncounted."""
    return sum(cpu_s - before.get(each, 0.0) for each, cpu_s in now.items())
