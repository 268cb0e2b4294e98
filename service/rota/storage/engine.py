"""Connections to both engines, set up so that what they answer is durable and nothing of a session is relied upon."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakSet

import aiosqlite
from sqlalchemy import URL, Connection, event, func, select
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from rota.core.replica.ports import StoreRefused, StoreUnavailable
from rota.storage.passwords import read_password
from rota.storage.schema import POSTGRES_SCHEMA
from rota.storage.urls import PostgresLocation, SqliteLocation, StoreLocation

_CONNECT_TIMEOUT_S = 5.0
_PATIENCE_S = 0.5
"""A host of several that does not answer for so long may be dead. Less than a write may take, by far."""
_JOIN_TIMEOUT_S = 5.0
_INTERRUPTED_S = 1.0
_LOCK_POLL_MS = 100
"""A caller that gives up waits no longer for the lock of another process than this."""
_MOST_KEPT = 2
"""One for appends, and one for confirmations of leases."""
_ROWS_AT_ONCE = 64
"""The driver's own default."""
_LONGEST_LOG_BYTES = 16 * 1_048_576
"""SQLite shortens its log to this when it begins it anew; four times what usual appends take."""
_NEW_POOLER = "a pooler is in front of Postgres now, and was not when this server started: restart this server"
_NEEDS_EXTRA = "a store on Postgres needs the extra: pip install 'rota[postgres]'"


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
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
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


def postgres_engine(
    location: PostgresLocation,
    *,
    connections: int = 0,
    pool_timeout_ms: int = 0,
    session_timeout_ms: int | None = None,
    explicit_transactions: bool = False,
) -> AsyncEngine:
    """An engine on Postgres; with `connections=0` each use connects anew.

    With `session_timeout_ms` sessions are ours from their login to their end: statements are prepared and kept, and
    each is limited, also outside `postgres_transaction`. Without it each statement is sent unnamed, inside its
    transaction, which is all that a pooler in transaction mode lets pass. With `explicit_transactions` nothing begins
    or ends by itself.
    """
    pool: dict[str, Any] = {"poolclass": NullPool}
    if connections:
        # The last one that was used comes first: its statements are prepared and its caches warm.
        timeout_s = pool_timeout_ms / 1000
        pool = {"pool_size": connections, "max_overflow": 0, "pool_timeout": timeout_s, "pool_use_lifo": True}
    arguments = {"async_creator_fn": asyncpg_connect, "location": location, "session_timeout_ms": session_timeout_ms}
    isolation = "AUTOCOMMIT" if explicit_transactions else "READ COMMITTED"
    try:
        engine = create_async_engine("postgresql+asyncpg://", connect_args=arguments, isolation_level=isolation, **pool)
    except ModuleNotFoundError as error:
        raise StoreRefused(_NEEDS_EXTRA) from error
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
    return engine


def _refuse_closed(connection: Any, *_: Any) -> None:
    """Have the pool replace a connection that has ended, instead of handing it to a caller."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError("the store has ended the connection")


async def asyncpg_connect(location: PostgresLocation, session_timeout_ms: int | None = None) -> Any:
    """A connection of its own, as `postgres_engine` says."""
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise StoreRefused(_NEEDS_EXTRA) from error
    # asyncpg reads the DSN itself: sslmode and target_session_attrs mean what libpq says.
    connect = partial(_connect_to_any, location.dsns)
    if location.password_file is not None:
        connect = partial(connect, password=partial(read_password, location.password_file))
    settings = {"application_name": "rota"}
    if session_timeout_ms is None:
        # Without a cache of its own it names no statement, and parses each before it is bound.
        connection = await connect(server_settings=settings, statement_cache_size=0)
    else:
        settings |= {"default_transaction_isolation": "read committed", "default_transaction_read_only": "off"}
        settings |= {name: str(session_timeout_ms) for name in _TIMEOUTS}
        # The driver would forget each statement 5 minutes after its first use, and Postgres would plan it anew.
        connect = partial(connect, server_settings=settings, max_cached_statement_lifetime=0)
        try:
            connection = await connect()
        except asyncpg.ProtocolViolationError as error:  # So PgBouncer says that it knows no such setting.
            raise StoreUnavailable(f"{_NEW_POOLER} ({error})") from error
    try:
        if session_timeout_ms is not None:
            await _make_durable(connection)
        _keep_alive(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _connect_to_any(dsns: Sequence[str], **options: Any) -> Any:
    """A connection to the first of these hosts that takes it, in their order.

    A host that is dead, or hangs, may not even refuse. asyncpg has one time limit for all hosts of a DSN, so none but
    the first would ever be asked: here the next one is asked beside it after `_PATIENCE_S`.
    """
    from asyncpg import connect

    to_ask = [partial(connect, dsn, timeout=_CONNECT_TIMEOUT_S, **options) for dsn in dsns]
    if len(to_ask) == 1:
        return await to_ask[0]()
    asked: set[asyncio.Task[Any]] = set()
    failed: BaseException | None = None
    try:
        while to_ask or asked:
            if to_ask:
                asked.add(asyncio.create_task(to_ask.pop(0)()))
            patience_s = _PATIENCE_S if to_ask else None
            answered, _ = await asyncio.wait(asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in answered:
                asked.remove(task)
                failed = task.exception()
                if failed is None:
                    return task.result()
    finally:
        for task in asked:
            task.add_done_callback(_hang_up)
            task.cancel()
    assert failed is not None, "a URL has a host"
    raise failed


def _hang_up(task: asyncio.Task[Any]) -> None:
    """End a connection that came too late."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


async def _make_durable(connection: Any) -> None:
    """Have each commit of this session wait for the disk.

    Raises:
        StoreUnavailable: The session is a pooler's. Other clients use it as well, and nothing was set.
    """
    only_ours = f"WHERE pg_backend_pid() = {connection.get_server_pid()}"
    if await connection.execute(f"{durable(of_transaction=False)} {only_ours}") != "SELECT 1":
        raise StoreUnavailable(_NEW_POOLER)


def _keep_alive(connection: Any) -> None:
    """Have the kernel send something over an idle connection.

    Firewalls and load balancers forget connections that are idle for minutes, and notify neither side. The next append
    would wait for its timeout, and lose its shards.
    """
    channel = connection._transport.get_extra_info("socket")
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if channel.family in (socket.AF_INET, socket.AF_INET6):
        for name, value in _KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                channel.setsockopt(socket.IPPROTO_TCP, option, value)


def driver_of(connection: AsyncConnection) -> Any:
    """The connection of asyncpg or aiosqlite beneath."""
    assert connection.sync_connection is not None, "the connection is not open"
    return connection.sync_connection.connection.driver_connection


async def is_behind_pooler(connection: AsyncConnection) -> bool:
    """Whether there is a pooler between us and Postgres.

    The server that answered our login sent a process id to cancel statements with. Postgres returns its
    own; a pooler has to make one up.
    """
    own_pid = driver_of(connection).get_server_pid()
    return bool(await connection.scalar(select(func.pg_backend_pid())) != own_pid)


@asynccontextmanager
async def postgres_transaction(
    engine: AsyncEngine, timeout_ms: int, *, mode: str = ""
) -> AsyncIterator[AsyncConnection]:
    """A transaction that is committed, and durable, when the block has ended without an exception.

    Its limits travel with its BEGIN and bind nothing after it. A statement that its sender gave up on must not
    land much later, and a sender that was paused in mid-transaction must not keep its row locks from
    the next owner of the shard. A database that is set to answer before it is durable is made to wait.
    """
    local = "".join(f"SET LOCAL {setting} = {timeout_ms};" for setting in _TIMEOUTS)
    async with engine.connect() as connection, _thrown_away_on_error(connection):
        driver = driver_of(connection)
        await driver.execute(f"BEGIN {mode};{local}{durable(of_transaction=True)}")
        yield connection
        ended = await driver.execute("COMMIT")
        assert ended == "COMMIT", "a statement of this transaction had failed without an error"


class KeptConnections:
    """Connections on which each statement is a transaction: committed, and durable, once it is answered.

    They stay out of the pool, because the way there and back costs 0.2 ms of CPU, as much as a commit of one offset.
    `set_up` is called with the driver's connection before its first use.
    """

    def __init__(self, engine: AsyncEngine, set_up: Callable[[Any], Awaitable[None]]) -> None:
        self._engine = engine
        self._set_up = set_up
        self._free: list[tuple[AsyncConnection, Any]] = []
        """Each with its driver's."""

    @asynccontextmanager
    async def use(self) -> AsyncIterator[AsyncConnection]:
        connection, driver = await self._take()
        try:
            yield connection
        except BaseException:
            await _throw_away(connection, driver)
            raise
        if len(self._free) < _MOST_KEPT:
            self._free.append((connection, driver))
        else:  # The pool's are for callers that did not ask for such a connection.
            await _throw_away(connection, driver)

    async def close(self) -> None:
        while self._free:
            await _throw_away(*self._free.pop())

    async def _take(self) -> tuple[AsyncConnection, Any]:
        while self._free:
            connection, driver = self._free.pop()
            if not driver.is_closed():
                return connection, driver
            await _throw_away(connection, driver)
        connection = await self._engine.connect()
        driver = driver_of(connection)
        async with _thrown_away_on_error(connection):
            await self._set_up(driver)
        return connection, driver


@asynccontextmanager
async def _thrown_away_on_error(connection: AsyncConnection) -> AsyncIterator[None]:
    """After any error, a cancellation included, no other caller gets a connection with an open transaction."""
    driver = driver_of(connection)
    try:
        yield
    except BaseException:
        await _throw_away(connection, driver)
        raise


async def _throw_away(connection: AsyncConnection, driver: Any) -> None:
    driver.terminate()
    await connection.invalidate()
    await connection.close()


_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, and how many probes may go without an answer. macOS has TCP_KEEPALIVE for TCP_KEEPIDLE."""


def durable(*, of_transaction: bool) -> str:
    """Each commit of this transaction, or of this session, waits for the disk at least."""
    setting = "coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on')"
    return f"SELECT set_config('synchronous_commit', {setting}, {str(of_transaction).lower()})"


def single_engine(location: StoreLocation, *, writes: bool) -> AsyncEngine:
    """An engine for one transaction at a time, which relies on nothing that a pooler would not let pass."""
    match location:
        case SqliteLocation(path):
            return sqlite_engine(path, busy_timeout_ms=5_000, connections=1, writes=writes)
        case PostgresLocation():
            engine = postgres_engine(location)
            if writes:
                wait_for_the_disk = durable(of_transaction=True)
                event.listen(engine.sync_engine, "begin", lambda begun: begun.exec_driver_sql(wait_for_the_disk))
            return engine
