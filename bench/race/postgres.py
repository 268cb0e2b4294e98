"""Postgres: advisory locks for elections, LISTEN and NOTIFY for groups, rows for sessions and fenced writes."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import asyncpg

from bench.race.peer import Batch, Candidate, Group, Leading, Peer, Session, Views, WatchedGroup, Watcher, Writer
from bench.race.wire import Refused
from bench.servers import Server
from tests.support.postgres import PostgresServer

BATCH = 500
_SCHEMA = """
CREATE UNLOGGED TABLE sessions (id integer PRIMARY KEY, seen timestamptz NOT NULL) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE members ("group" text, id integer, PRIMARY KEY ("group", id));
CREATE TABLE fences (id integer PRIMARY KEY, token integer NOT NULL, position bigint NOT NULL);
"""


class Postgres(Peer):
    """One server with fsync. Rows of sessions and members are unlogged: they need not survive it."""

    name = "Postgres"
    most_sessions = 200
    lacks: ClassVar = {
        "paced": "a connection is a process",
        "large": "a connection is a process",
        "frozen": "never: an advisory lock is held while the kernel answers",
    }

    async def start(self) -> None:
        server = self.stack.enter_context(PostgresServer(settings={"max_connections": "700"}))
        server.execute(_SCHEMA)
        self.servers = [Server(server.process.pid, server.port)]
        self.dsn = server.dsn()

    async def sessions(self, count: int) -> list[Session]:
        sessions: list[Session] = []
        for number in range(count):
            connection = await asyncpg.connect(self.dsn)
            await connection.execute("INSERT INTO sessions VALUES ($1, now()) ON CONFLICT DO NOTHING", number)
            update = await connection.prepare("UPDATE sessions SET seen = now() WHERE id = $1 RETURNING 1")
            sessions.append(_Statement(connection, update, number))
        return sessions

    async def batch(self) -> Batch:
        connection = await asyncpg.connect(self.dsn)
        numbers = range(10_000, 10_000 + BATCH)
        await connection.execute(
            "INSERT INTO sessions SELECT unnest($1::integer[]), now() ON CONFLICT DO NOTHING", numbers
        )
        update = await connection.prepare(
            "WITH seen AS (UPDATE sessions SET seen = now() WHERE id = ANY($1::integer[]) RETURNING 1) "
            "SELECT count(*) FROM seen"
        )
        return _Statement(connection, update, list(numbers))

    async def group(self, name: str) -> Group:
        async def open_watcher(views: Views, number: int) -> Watcher:
            return _Member(await asyncpg.connect(self.dsn), views, name, number)

        return WatchedGroup(open_watcher)

    async def candidate(self, name: str) -> Candidate:
        return _Candidate(await asyncpg.connect(self.dsn), name)

    async def writers(self, count: int) -> list[Writer]:
        writers: list[Writer] = []
        for number in range(count):
            connection = await asyncpg.connect(self.dsn)
            await connection.execute("INSERT INTO fences VALUES ($1, 1, 0) ON CONFLICT DO NOTHING", number)
            update = await connection.prepare(
                "UPDATE fences SET position = position + 1 WHERE id = $1 AND token = 1 RETURNING 1"
            )
            writers.append(_Statement(connection, update, number))
        return writers


class _Statement:
    """A prepared statement that must return a row."""

    size = BATCH

    def __init__(self, connection: Any, statement: Any, argument: object) -> None:
        self._connection, self._statement, self._argument = connection, statement, argument

    async def write(self) -> None:
        if not await self._statement.fetchval(self._argument):
            raise Refused("no such row, or another owner's")

    async def keep_alive(self) -> None:
        await self.write()

    async def keep_alive_all(self) -> None:
        await self.write()

    def close(self) -> None:
        self._connection.terminate()


class _Member:
    """A row. Each change is notified of, and each member counts the rows again."""

    def __init__(self, connection: Any, views: Views, group: str, number: int) -> None:
        self._connection, self._views, self._group, self._number = connection, views, group, number
        self._news = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def enter(self) -> None:
        await self._connection.add_listener(self._group, lambda *_: self._news.set())
        self._list = await self._connection.prepare('SELECT id FROM members WHERE "group" = $1')
        await self._change("INSERT INTO members VALUES ($1, $2)")
        self._news.set()
        self._watching = asyncio.create_task(self._watch())

    async def leave(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._change('DELETE FROM members WHERE "group" = $1 AND id = $2')

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._connection.terminate()

    async def _change(self, statement: str) -> None:
        async with self._connection.transaction():
            await self._connection.execute(statement, self._group, self._number)
            await self._connection.execute("SELECT pg_notify($1, '')", self._group)

    async def _watch(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._views.saw(self, len(await self._list.fetch(self._group)))


class _Candidate(Candidate):
    """Waits for the lock."""

    def __init__(self, connection: Any, name: str) -> None:
        self.leads = Leading()
        self._connection, self._name = connection, name
        self._standing = asyncio.create_task(self._stand())

    async def _stand(self) -> None:
        await self._connection.execute("SELECT pg_advisory_lock(hashtext($1))", self._name)
        self.leads.set()

    async def keep_alive(self) -> None:
        """Its connection is its session."""

    async def resign(self) -> None:
        await self._connection.execute("SELECT pg_advisory_unlock(hashtext($1))", self._name)

    def kill(self) -> None:
        self._connection.terminate()

    def close(self) -> None:
        self._standing.cancel()
        self.kill()
