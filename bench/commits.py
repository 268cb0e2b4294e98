"""Offset commits with group commit on each store, beside a plain batch insert with as many rows a transaction.

And over HTTP on Postgres: how many a second, and what 1,000 cost the server.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from pathlib import Path

import asyncpg
import uvloop

from bench.connection import request_bytes
from bench.figures import Effort, Figure, transposed
from bench.fleet import Fleet, LoadedMemoryStore, LoadedSqlStore, coordinator_of
from bench.members import Crowd
from bench.over_http import _disperse, _load, _stable_crowds
from bench.servers import rota_server
from rota.core.replica.ports import ShardStore
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.migrate import upgrade
from tests.support.postgres import PostgresServer

COMMITTERS = (1, 64, 500)
SECONDS = 1.0
SECONDS_OVER_HTTP = 3.0
HTTP_CPU_AIM_MS = 55.0


def run(effort: Effort) -> list[Figure]:
    """Commits of one partition by 1, 64 and 500 members at a time, each of which waits for its answer."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, PostgresServer() as postgres:
        directory = Path(name)
        figures = asyncio.run(_run(effort, directory, postgres.create_database("ours"), postgres.dsn()))
        return figures + _over_http(effort, directory, postgres.create_database("http"))


def _over_http(effort: Effort, directory: Path, store_url: str) -> list[Figure]:
    """From 64 connections, one commit in flight on each."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(upgrade(store_url))
        with rota_server(directory, store_url) as ours:
            crowds = runner.run(_stable_crowds(ours.port))
            requests = [request for crowd in crowds for request in commits_of(crowd)]
            seconds = SECONDS_OVER_HTTP * effort.scale
            samples = [_load(ours, requests, 1, 1, seconds) for _ in range(effort.repeats)]
            runner.run(_disperse(crowds))
    rate, cost = transposed(samples)
    what = "over HTTP on Postgres, 64 clients"
    return [
        Figure("commits", f"commits {what}", "commits/s", rate),
        Figure("commits", f"server CPU of 1,000 commits {what}", "ms", cost, aim=HTTP_CPU_AIM_MS),
    ]


def commits_of(crowd: Crowd) -> list[str]:
    return [
        request_bytes(
            f"{crowd.path}/offsets",
            {
                "member_id": member.member_id,
                "generation_id": member.generation_id,
                "offsets": [{"topic": "orders", "partition": number, "offset": 123_456}],
            },
        ).decode()
        for number, member in enumerate(crowd.members)
    ]


async def _run(effort: Effort, directory: Path, store_dsn: str, floor_dsn: str) -> list[Figure]:
    fleet = Fleet(max(COMMITTERS), 1)
    sqlite_url = f"sqlite:///{directory / 'ours.db'}"
    await upgrade(sqlite_url)
    await upgrade(store_dsn)
    figures = await _on(effort, fleet, "memory", LoadedMemoryStore(fleet.images), None)
    figures += await _on(effort, fleet, "SQLite", LoadedSqlStore(sqlite_url, fleet.images), _SqliteFloor(directory))
    figures += await _on(effort, fleet, "Postgres", LoadedSqlStore(store_dsn, fleet.images), _PostgresFloor(floor_dsn))
    return figures


async def _on(
    effort: Effort, fleet: Fleet, name: str, store: ShardStore, floor: _SqliteFloor | _PostgresFloor | None
) -> list[Figure]:
    figures = []
    async with coordinator_of(store) as coordinator:
        for committers in COMMITTERS:
            commits = fleet.commits()[:committers]
            pairs = []
            for _ in range(effort.repeats):
                below = await floor.rows_per_second(committers, SECONDS * effort.scale) if floor else 0.0
                pairs.append((await _commits_per_second(coordinator, commits, SECONDS * effort.scale), below))
            ours, floors = transposed(pairs)
            what = f"{committers} committers on {name}"
            if floor:
                figures.append(Figure("commits", what, "commits/s", ours, floor.name.format(committers), floors))
            else:
                figures.append(Figure("commits", what, "commits/s", ours))
    return figures


async def _commits_per_second(coordinator: LocalCoordinator, commits: list[CommitOffsets], seconds: float) -> float:
    """All members commit, wait for the answer and commit again."""
    started = time.perf_counter()
    until = started + seconds

    async def commit_again_and_again(request: CommitOffsets) -> int:
        done = 0
        while time.perf_counter() < until:
            answer = await coordinator.call(request)
            assert answer.reply.error is ErrorCode.NONE, answer
            done += 1
        return done

    done = sum(await asyncio.gather(*map(commit_again_and_again, commits)))
    return done / (time.perf_counter() - started)


class _SqliteFloor:
    """The module of the standard library, with the same settings as ours: a write-ahead log, synced at each commit."""

    name = "sqlite3, {} rows a commit"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "floor.db"

    async def rows_per_second(self, rows: int, seconds: float) -> float:
        return await asyncio.to_thread(self._insert, rows, seconds)

    def _insert(self, rows: int, seconds: float) -> float:
        connection = sqlite3.connect(self._path, isolation_level=None)
        try:
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _CREATE):
                connection.execute(statement)
            values = [(f"group-{n}", "orders", n, 123_456) for n in range(rows)]
            done, started = 0, time.perf_counter()
            while time.perf_counter() < started + seconds:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT INTO floor VALUES (?, ?, ?, ?)", values)
                connection.execute("COMMIT")
                done += rows
            return done / (time.perf_counter() - started)
        finally:
            connection.close()


class _PostgresFloor:
    """asyncpg on the same server, one connection: arrays unnested into a table without an index."""

    name = "asyncpg, {} rows a commit"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def rows_per_second(self, rows: int, seconds: float) -> float:
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(_CREATE)
            numbers = list(range(rows))
            columns = ([f"group-{n}" for n in numbers], ["orders"] * rows, numbers, [123_456] * rows)
            insert = await connection.prepare(
                "INSERT INTO floor SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::bigint[])"
            )
            done, started = 0, time.perf_counter()
            while time.perf_counter() < started + seconds:
                await insert.fetch(*columns)
                done += rows
            return done / (time.perf_counter() - started)
        finally:
            await connection.close()


_CREATE = "CREATE TABLE IF NOT EXISTS floor (group_id text, topic text, partition integer, committed bigint)"
