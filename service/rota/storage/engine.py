"""Connections to both engines, set up so that what they answer is durable and nothing of a session is relied upon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, event, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from rota.runtime.ports import StoreRefused
from rota.storage.schema import POSTGRES_SCHEMA
from rota.storage.urls import PostgresLocation, SqliteLocation, StoreLocation

_CONNECT_TIMEOUT_S = 5.0


def sqlite_engine(path: Path, *, busy_timeout_ms: int, connections: int, writes: bool) -> AsyncEngine:
    """An engine on a SQLite file. With `writes`, each transaction takes the write lock when it begins."""
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        # The driver would begin transactions by rules of its own; the begin event below does it instead.
        connect_args={"isolation_level": None},
        pool_size=connections,
        max_overflow=0,
        pool_timeout=busy_timeout_ms / 1000,
        execution_options={"schema_translate_map": {POSTGRES_SCHEMA: None}},
    )
    begin = "BEGIN IMMEDIATE" if writes else "BEGIN DEFERRED"
    pragmas = (
        f"busy_timeout = {busy_timeout_ms}",
        "journal_mode = WAL",
        # FULL syncs the log at every commit, so that an answered fact survives the loss of power, too.
        "synchronous = FULL",
        "foreign_keys = ON",
        f"query_only = {'OFF' if writes else 'ON'}",
    )

    def set_up(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    event.listen(engine.sync_engine, "connect", set_up)
    event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def postgres_engine(dsn: str, *, connections: int, pool_timeout_ms: int, prepared_statements: bool) -> AsyncEngine:
    """An engine on Postgres; with `connections=0` each use connects anew.

    Without `prepared_statements` each statement is sent unnamed, inside its transaction, which
    is all that a pooler in transaction mode lets pass.
    """
    pool: dict[str, Any] = {"poolclass": NullPool}
    if connections:
        pool = {"pool_size": connections, "max_overflow": 0, "pool_timeout": pool_timeout_ms / 1000}
    arguments: dict[str, Any] = {"async_creator_fn": _asyncpg_connect, "dsn": dsn}
    if not prepared_statements:
        arguments |= {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str}
    return create_async_engine("postgresql+asyncpg://", connect_args=arguments, **pool)


async def _asyncpg_connect(dsn: str) -> Any:
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise StoreRefused("a store on Postgres needs the extra: pip install 'rota[postgres]'") from error
    # asyncpg reads the DSN itself: several hosts, sslmode and target_session_attrs mean what libpq says.
    # Its own cache of statements is off, because SQLAlchemy keeps one (or none).
    return await asyncpg.connect(
        dsn,
        timeout=_CONNECT_TIMEOUT_S,
        statement_cache_size=0,
        server_settings={"application_name": "rota"},
    )


async def is_behind_pooler(connection: AsyncConnection) -> bool:
    """Whether somebody between us and Postgres hands out its connections.

    Who answered our login told us a process id to cancel statements with. Postgres tells its
    own; a pooler has to make one up.
    """
    told = (await connection.get_raw_connection()).driver_connection.get_server_pid()  # type: ignore[union-attr]
    return bool(await connection.scalar(select(func.pg_backend_pid())) != told)


_LIMITS = text("""
    SELECT set_config('statement_timeout', :limit, true),
           set_config('lock_timeout', :limit, true),
           set_config('idle_in_transaction_session_timeout', :limit, true),
           CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
""")


async def limit_transaction(connection: AsyncConnection, timeout_ms: int) -> None:
    """Bind this Postgres transaction, and nothing after it, to `timeout_ms` and to durability.

    A statement that its sender gave up on must not land much later, and a sender that was paused
    in mid-transaction must not keep its row locks from the next owner of the shard. A database
    that is set to answer before it is durable is told to wait.
    """
    await connection.execute(_LIMITS, {"limit": f"{timeout_ms}ms"})


def single_engine(location: StoreLocation, *, writes: bool) -> AsyncEngine:
    """An engine for one transaction at a time, which relies on nothing that a pooler would not let pass."""
    match location:
        case SqliteLocation(path):
            return sqlite_engine(path, busy_timeout_ms=5_000, connections=1, writes=writes)
        case PostgresLocation(dsn):
            return postgres_engine(dsn, connections=0, pool_timeout_ms=0, prepared_statements=False)
