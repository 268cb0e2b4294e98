"""Worker processes count the rows of a table; one is killed, one is paused past its session: each row counts once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import asyncpg
import pytest

from examples.worker_pool.worker import SCHEMA, SHARDS
from rota.storage.migrate import upgrade
from tests.examples.conftest import ROOT
from tests.processes.server import Server
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes

DOCUMENTS_A_SHARD = 300
DEADLINE_S = 60.0


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    await upgrade(postgres_dsn)
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(SCHEMA)
    await connection.execute(
        "INSERT INTO documents SELECT shard, position, shard + position % 7 + 1"
        f" FROM generate_series(0, {SHARDS - 1}) AS shard, generate_series(0, {DOCUMENTS_A_SHARD - 1}) AS position"
    )
    yield connection
    await connection.close()


@pytest.fixture
def workers(processes: Processes, postgres_dsn: str, database: asyncpg.Connection) -> list[Process]:
    server = Server(processes, postgres_dsn)
    server.start_and_wait()
    environment = {"ROTA_URL": server.url, "DATABASE": postgres_dsn, "ROTA_SESSION_TIMEOUT_MS": "1000"}
    return [
        processes.start(sys.executable, "-m", "examples.worker_pool.worker", env=environment, cwd=ROOT)
        for _ in range(3)
    ]


async def counted(database: asyncpg.Connection) -> int:
    return int(await database.fetchval("SELECT coalesce(sum(documents), 0) FROM counts"))


async def until_counted(database: asyncpg.Connection, documents: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await counted(database) < documents:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.01)


@pytest.mark.thorough
async def test_each_row_counts_once_despite_a_kill_and_a_pause(
    database: asyncpg.Connection, workers: list[Process]
) -> None:
    killed, paused, _ = workers
    await until_counted(database, 200)
    killed.kill9()
    await until_counted(database, 600)
    paused.pause()
    await until_counted(database, SHARDS * DOCUMENTS_A_SHARD * 9 // 10)
    paused.resume()
    await until_counted(database, SHARDS * DOCUMENTS_A_SHARD)

    expected = "SELECT shard, sum(words) AS words, count(*) AS documents FROM documents GROUP BY shard ORDER BY shard"
    counts = "SELECT shard, words, documents FROM counts ORDER BY shard"
    assert await database.fetch(counts) == await database.fetch(expected)
    assert paused.running
