"""What differs between the engines: how connections are opened, how a transaction is set up, and maintenance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rota.core.replica.ports import ShardBatch, StoreRefused, StoreUnavailable
from rota.storage.append import append_to_postgres, append_to_sqlite, plan_once
from rota.storage.engine import (
    KeptConnections,
    OneConnection,
    SqliteDrivers,
    is_behind_pooler,
    postgres_engine,
    postgres_transaction,
    sqlite_engine,
)
from rota.storage.errors import UPGRADE_HINT, sqlstate, store_errors
from rota.storage.gate import NO_RIGHT, Gate, OnTerminated
from rota.storage.partitions import create_partitions_ahead
from rota.storage.schema import POSTGRES_SCHEMA
from rota.storage.store_file import StoreFile, read_length, read_standing, recognise
from rota.storage.urls import PostgresLocation

_log = logging.getLogger(__name__)

_POSTGRES_CONNECTIONS = 8
_SQLITE_READERS = 2
_LOCK_TIMEOUT_MS = 100
_MODE = "ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Set explicitly, because a pooler may hand us a session with another value from its last user."""
_NOT_WRITABLE = text(
    "SELECT name FROM unnest(ARRAY['group_events', 'groups', 'members', 'offsets', 'topics'])"
    f" AS name WHERE NOT has_table_privilege('{POSTGRES_SCHEMA}.' || name, 'INSERT')"
)
CLOSE_S = 2.0
"""A server closes a connection at once when it is asked to. One that hangs is not waited for any longer."""


class SqliteConnections:
    """One connection that writes, and a few that read beside it, on a file that no other service has open.

    What the driver raises comes through as it is, here and in `PostgresConnections`.
    """

    dialect = "sqlite"

    def __init__(self, path: Path, *, write_timeout_ms: int) -> None:
        self._path = path
        self._file = StoreFile(path)
        self._is_noted = False
        """The store that is open is the one that the note means."""
        self._drivers = SqliteDrivers(), SqliteDrivers()
        writing, reading = self._drivers
        timeout: dict[str, int] = {"busy_timeout_ms": write_timeout_ms}
        self._writers = sqlite_engine(path, connections=1, writes=True, drivers=writing, **timeout)
        self._writer = OneConnection(self._writers, self._file.check)
        # One more, which stays open: SQLite would delete its log with the last connection.
        self._readers = sqlite_engine(path, connections=_SQLITE_READERS + 1, writes=False, drivers=reading, **timeout)
        self._lasting: AsyncConnection | None = None

    async def open(self) -> None:
        self._file.open(UPGRADE_HINT)
        self._lasting = await self._readers.connect()
        async with self._lasting.begin():
            await self._lasting.exec_driver_sql("SELECT * FROM sqlite_master LIMIT 1")
        self._file.keep_log()

    async def close(self) -> None:
        """Close all connections; more than once does no harm."""
        if self._is_noted:
            with suppress(StoreUnavailable), store_errors(is_in_use=True):
                async with asyncio.timeout(CLOSE_S):
                    await self.maintain()
            self._is_noted = False
        if self._lasting is not None:
            await self._lasting.close()
            self._lasting = None
        await self._readers.dispose()
        await self._writer.close()
        await self._writers.dispose()
        if all([await drivers.join() for drivers in self._drivers]):
            self._file.close()
        else:
            # A thread may still write: no other service may open the file before this process ends.
            _log.warning("the disk does not answer: the store's lock ends with this process")

    async def recognise(self, connection: AsyncConnection) -> bool:
        """Whether this is an earlier state of the store than was seen here; raises its floors then."""
        return await recognise(connection, self._file.note)

    async def note_length(self, connection: AsyncConnection) -> None:
        """Remember how long the journal is, outside of the store itself.

        Without a sync: each round on the leases does this, and an earlier note only shows less.
        """
        if (note := self._file.note) is not None:
            self._file.write_note(replace(note, length=await read_length(connection)), is_synced=False)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed and durable when the block has ended without an exception."""
        async with self._writer as connection, connection.begin():
            yield connection

    async def append(self, batches: Sequence[ShardBatch]) -> set[int]:
        """Write the batches of the shards that pass the check, in a transaction; returns these shards."""
        async with self._writer as connection:
            return await append_to_sqlite(connection, batches)

    @asynccontextmanager
    async def writing_anew(self) -> AsyncIterator[AsyncConnection]:
        """A transaction on a new connection, such as another process would open."""
        self._file.check()
        engine = sqlite_engine(self._path, connections=1, writes=True, busy_timeout_ms=_LOCK_TIMEOUT_MS)
        try:
            async with engine.begin() as connection:
                yield connection
        finally:
            await engine.dispose()

    def single(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """For one statement that writes nothing: in one round trip if the engine can do that."""
        return self._readers.begin()

    def reading(self, *, isolated: bool = True) -> AbstractAsyncContextManager[AsyncConnection]:  # noqa: ARG002
        """A transaction in which every statement sees the same snapshot.

        If it is not `isolated`, each statement may see a later snapshot than the one before it.
        """
        return self._readers.begin()

    async def check_rights(self, connection: AsyncConnection) -> None:
        """The file was opened for writing."""

    async def maintain(self) -> None:
        """Upkeep that is due every few hours: note the store's state. SQLite moves its log into the file by itself."""
        async with self.writing() as connection:
            note = await read_standing(connection)
        self._file.write_note(note)
        self._is_noted = True


class PostgresConnections:
    """A pool on Postgres, directly or through a pooler in transaction mode."""

    dialect = "postgresql"

    def __init__(
        self,
        location: PostgresLocation,
        *,
        write_timeout_ms: int,
        read_timeout_ms: int,
        on_terminated: OnTerminated | None = None,
    ) -> None:
        self._location = location
        self._write_timeout_ms = write_timeout_ms
        self._read_timeout_ms = read_timeout_ms
        self._engine: AsyncEngine | None = None
        self._kept: KeptConnections | None = None
        self._gate = Gate(self.writing, on_terminated)

    async def open(self) -> None:
        probe = postgres_engine(self._location, explicit_transactions=True)
        async with postgres_transaction(probe, self._read_timeout_ms) as connection:
            is_direct = not await is_behind_pooler(connection)
        self._engine = postgres_engine(
            self._location,
            connections=_POSTGRES_CONNECTIONS,
            pool_timeout_ms=self._write_timeout_ms,
            session_timeout_ms=self._write_timeout_ms if is_direct else None,
            explicit_transactions=True,
        )
        if is_direct:
            self._kept = KeptConnections(self._engine, plan_once)

    async def recognise(self, connection: AsyncConnection) -> bool:  # noqa: ARG002
        """The replicas' memory and the server's timeline show it instead."""
        return False

    async def note_length(self, connection: AsyncConnection) -> None:
        """There is no place for it outside of the store."""

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._close()
        except TimeoutError:
            _log.warning("Postgres does not answer: its connections end with this process")

    async def _close(self) -> None:
        await self._gate.close()
        if self._kept is not None:
            await self._kept.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.dispose()

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return postgres_transaction(self._opened(), self._write_timeout_ms, mode=_MODE)

    def writing_anew(self) -> AbstractAsyncContextManager[AsyncConnection]:
        engine = postgres_engine(self._location, explicit_transactions=True)
        return postgres_transaction(engine, self._write_timeout_ms, mode=_MODE)

    async def append(self, batches: Sequence[ShardBatch]) -> set[int]:
        with self._gate.watched():
            async with self.single() as connection:
                return await append_to_postgres(connection, batches)

    def single(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return self._kept.use() if self._kept is not None else self.writing()

    async def check_rights(self, connection: AsyncConnection) -> None:
        """Raise `StoreRefused` if the login may not write a table of appends: the shard of each commit would fail."""
        table = await connection.scalar(_NOT_WRITABLE)
        if table is not None:
            raise StoreRefused(f"the store refuses us: permission denied for table {table}")

    def reading(self, *, isolated: bool = True) -> AbstractAsyncContextManager[AsyncConnection]:
        mode = f"ISOLATION LEVEL {'REPEATABLE READ' if isolated else 'READ COMMITTED'} READ ONLY"
        return postgres_transaction(self._opened(), self._read_timeout_ms, mode=mode)

    def _opened(self) -> AsyncEngine:
        assert self._engine is not None, "the store is not open"
        return self._engine

    async def maintain(self) -> None:
        """Make the journal's partitions of the next days; without the right to, the default one takes the lines."""
        try:
            async with self.writing() as connection:
                created = await create_partitions_ahead(connection)
        except DBAPIError as error:
            if sqlstate(error) != NO_RIGHT:
                raise
            _log.warning(
                "no permission to create the journal's partitions: run %s as the owner of the tables", UPGRADE_HINT
            )
        else:
            _log.debug("created partitions of the journal: %s", created)
