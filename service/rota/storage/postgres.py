"""Postgres: its connections, set up so that what they answer is durable and nothing of a session is relied upon."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from sqlalchemy import event, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from rota.core.replica.ports import ShardBatch, StoreRefused, StoreUnavailable
from rota.storage.append import append_to_postgres, driver_of, plan_once, refuse_closed
from rota.storage.errors import UPGRADE_HINT, sqlstate
from rota.storage.gate import NO_RIGHT, Gate, OnTerminated
from rota.storage.partitions import create_partitions_ahead
from rota.storage.schema import POSTGRES_SCHEMA
from rota.storage.urls import PostgresLocation, read_password

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 5.0
_PATIENCE_S = 0.5
"""A host of several that does not answer for so long may be dead. Less than a write may take, by far."""
_MOST_KEPT = 2
"""One for appends, and one for confirmations of leases."""
_NEW_POOLER = "a pooler is in front of Postgres now, and was not when this server started: restart this server"
_NEEDS_EXTRA = "a store on Postgres needs the extra: pip install 'rota[postgres]'"
_CONNECTIONS = 8
_MODE = "ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Set explicitly, because a pooler may hand us a session with another value from its last user."""
_NOT_WRITABLE = text(
    "SELECT name FROM unnest(ARRAY['group_events', 'groups', 'members', 'offsets', 'topics'])"
    f" AS name WHERE NOT has_table_privilege('{POSTGRES_SCHEMA}.' || name, 'INSERT')"
)
CLOSE_S = 2.0
"""A server closes a connection at once when it is asked to. One that hangs is not waited for any longer."""


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
    event.listen(engine.sync_engine, "checkout", refuse_closed)
    return engine


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
            connections=_CONNECTIONS,
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
