"""SQLite: its connections, each with a thread, set up so that what they answer is durable."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakSet

import aiosqlite
from sqlalchemy import URL, Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from rota.core.replica.ports import ShardBatch, StoreUnavailable
from rota.storage.append import append_to_sqlite, driver_of, refuse_closed
from rota.storage.errors import UPGRADE_HINT, store_errors
from rota.storage.schema import POSTGRES_SCHEMA
from rota.storage.store_file import StoreFile, read_length, read_standing, recognise

_log = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 5.0
_INTERRUPTED_S = 1.0
_LOCK_POLL_MS = 100
"""A caller that gives up waits no longer for the lock of another process than this."""
_ROWS_AT_ONCE = 64
"""The driver's own default."""
_LONGEST_LOG_BYTES = 16 * 1_048_576
"""SQLite shortens its log to this when it begins it anew; four times what usual appends take."""
_READERS = 2
_LOCK_TIMEOUT_MS = 100
_CLOSE_S = 2.0
"""A disk that hangs is not waited for any longer when the store is closed."""


def sqlite_engine(
    path: Path, *, busy_timeout_ms: int, connections: int, writes: bool, drivers: SqliteDrivers | None = None
) -> AsyncEngine:
    """An engine on a SQLite file. With `writes`, each transaction takes the write lock when it begins."""
    connect = (drivers or SqliteDrivers()).connect
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        # The driver would begin transactions by rules of its own; the begin event below does it instead.
        connect_args={"isolation_level": None, "timeout": busy_timeout_ms / 1000, "async_creator_fn": connect},
        pool_size=connections,
        max_overflow=0,
        pool_timeout=busy_timeout_ms / 1000,
        # Each user of a connection ends its transaction. The pool would roll back once more: a visit to its thread.
        pool_reset_on_return=None,
        execution_options={"schema_translate_map": {POSTGRES_SCHEMA: None}},
    )
    pragmas = [
        "journal_mode = WAL",
        # FULL syncs the log at every commit, so that an answered fact survives the loss of power, too.
        "synchronous = FULL",
        "foreign_keys = ON",
        # While a reader keeps its snapshot, the log only grows: without a limit it would keep that length.
        f"journal_size_limit = {_LONGEST_LOG_BYTES}",
        f"query_only = {'OFF' if writes else 'ON'}",
    ]
    if writes:
        # From now on `begin_immediate` waits for the lock.
        pragmas.append(f"busy_timeout = {_LOCK_POLL_MS}")

    def set_up(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def begin(connection: Connection) -> None:
        if writes:
            connection.connection.run_async(lambda driver: driver.begin_immediate())
        else:
            connection.exec_driver_sql("BEGIN DEFERRED")

    event.listen(engine.sync_engine, "connect", set_up)
    event.listen(engine.sync_engine, "begin", begin)
    event.listen(engine.sync_engine, "checkout", refuse_closed)
    return engine


class SqliteConnection(sqlite3.Connection):
    """A connection that frees its files and its locks when it is closed.

    SQLite keeps the files and the open transaction of a closed connection for as long as one of its statements lives.
    A cursor keeps its statement, and the traceback of an exception keeps the cursor until the next garbage collection.
    """

    def __init__(self, database: str, *, timeout: float, **options: Any) -> None:
        super().__init__(database, timeout=timeout, **options)
        self._lock_timeout_s = timeout
        self.is_given_up = False
        """No caller waits for the statement that runs."""
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *args: Any) -> Any:
        cursor = super().cursor(*args)
        self._cursors.add(cursor)
        return cursor

    def begin_immediate(self) -> None:
        """Wait for the write lock; SQLite's own wait cannot be interrupted."""
        until = monotonic() + self._lock_timeout_s
        while True:
            try:
                self.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if self.is_given_up or error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() >= until:
                    raise
            else:
                return

    def close(self) -> None:
        with suppress(sqlite3.Error):
            for cursor in self._cursors:
                cursor.close()
            self.rollback()
        super().close()


class SqliteDriver(aiosqlite.Connection):
    """A connection and its thread. When a caller is cancelled, its statement is interrupted, and both end.

    A thread that waits for the disk cannot be interrupted: the caller waits for it for `_INTERRUPTED_S` at most, and
    `SqliteDrivers` for as long as it takes, before it opens the next connection.
    """

    def __init__(self, database: str, options: Mapping[str, Any]) -> None:
        super().__init__(self._open, _ROWS_AT_ONCE)
        # A process that ends without closing the store must not hang.
        self._thread.daemon = True
        self._database, self._options = database, options
        self._opened: SqliteConnection | None = None
        self.ended: asyncio.Future[Any] | None = None
        """Done when the thread has closed the connection. None while it is in use."""

    def _open(self) -> SqliteConnection:
        self._opened = sqlite3.connect(self._database, factory=SqliteConnection, **self._options)
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def is_closed(self) -> bool:
        return self.ended is not None

    async def begin_immediate(self) -> None:
        await self._execute(SqliteConnection.begin_immediate, self._conn)

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await super()._execute(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        except asyncio.CancelledError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        if self.ended is None and self._opened is not None:
            self._opened.is_given_up = True
            self._opened.interrupt()
            self.stop()

    async def rollback(self) -> None:
        # The end of a connection rolls back. An error here would take the place of its caller's cancellation.
        if self.ended is None:
            await super().rollback()

    def stop(self) -> asyncio.Future[Any] | None:
        if self.ended is None:
            # The driver itself forgets a connection whose opening was cancelled.
            self._tx.put_nowait((None, self._close))
            self.ended = super().stop()
        return self.ended

    async def close(self) -> None:
        limit_s = None if self.ended is None else _INTERRUPTED_S
        if (ended := self.stop()) is not None:
            await asyncio.wait({ended}, timeout=limit_s)


class SqliteDrivers:
    """The connections of one engine. None is opened while the thread of one that was given up still works."""

    def __init__(self) -> None:
        self._opened: list[SqliteDriver] = []

    async def connect(self, database: str, **options: Any) -> SqliteDriver:
        while ending := [each.ended for each in self._opened if each.ended is not None and not each.ended.done()]:
            await asyncio.wait(ending)
        self._opened = [each for each in self._opened if each._thread.is_alive()]
        driver = SqliteDriver(database, options)
        self._opened.append(driver)
        await driver
        return driver

    async def join(self) -> bool:
        """Wait for the threads of the connections, which have been closed; False if one does not end."""
        for driver in self._opened:
            if driver._thread.is_alive():
                await asyncio.to_thread(driver._thread.join, _JOIN_TIMEOUT_S)
        return not any(driver._thread.is_alive() for driver in self._opened)


class OneConnection:
    """The only connection of an engine, for one user after the other: `async with` it.

    It is closed only after an error and in the end: with its way to the pool and back, a commit of one offset takes
    0.70 ms of CPU instead of 0.49. `check` is called before each use, and after each that ended without an
    exception: a write counts only if the file of that name is still the one that was written.
    """

    def __init__(self, engine: AsyncEngine, check: Callable[[], None]) -> None:
        self._engine = engine
        self._check = check
        self._free = asyncio.Lock()
        self._kept: AsyncConnection | None = None

    async def __aenter__(self) -> AsyncConnection:
        self._check()
        await self._free.acquire()
        try:
            self._kept = self._kept or await self._engine.connect()
        except BaseException:
            self._free.release()
            raise
        return self._kept

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                await self._close()
        finally:
            self._free.release()
        if kind is None:
            self._check()

    async def close(self) -> None:
        async with self._free:
            await self._close()

    async def _close(self) -> None:
        connection, self._kept = self._kept, None
        if connection is not None:
            await connection.invalidate()
            await connection.close()


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
        self._readers = sqlite_engine(path, connections=_READERS + 1, writes=False, drivers=reading, **timeout)
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
                async with asyncio.timeout(_CLOSE_S):
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
            driver = driver_of(connection)
            # What each of the driver's public methods does with a single statement.
            written: set[int] = await driver._execute(append_to_sqlite, driver._conn, batches)
            return written

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
