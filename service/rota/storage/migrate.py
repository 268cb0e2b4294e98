"""Bringing a store's schema up to this release: Alembic's migrations, run by us and in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, String, column, event, inspect, select, table, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

import rota
from rota.core.replica.ports import StoreRefused
from rota.storage.errors import UPGRADE_HINT, store_errors
from rota.storage.partitions import create_partitions_ahead
from rota.storage.postgres import durable, postgres_engine
from rota.storage.schema import POSTGRES_SCHEMA
from rota.storage.sqlite import sqlite_engine
from rota.storage.store_file import FileLock, make_file
from rota.storage.urls import PostgresLocation, SqliteLocation, StoreLocation, parse_store_url


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """The versions of a store's schema: `current` is None if it has none yet, `head` is this release's."""

    current: str | None
    head: str
    is_newer: bool
    """A later release made the schema. By the rules of migrations this one still works on it."""

    @property
    def up_to_date(self) -> bool:
        return self.current == self.head

    @property
    def usable(self) -> bool:
        return self.up_to_date or self.is_newer


async def upgrade(store_url: str, revision: str = "head") -> MigrationStatus:
    """Make the schema, or bring it up to this release, or to a `revision` of it, and say where it stands then.

    All or nothing. Concurrent calls wait for one another. On SQLite no service may be running on
    the file (`StoreRefused`); on Postgres replicas of the previous release may run on.
    """
    location = parse_store_url(store_url)
    async with _migrating(location) as connection:
        status = await connection.run_sync(read_status)
        if not status.usable:
            await migrate(connection, revision)
        if not isinstance(location, SqliteLocation):
            # Here, too, because a service's own login need not own the tables.
            await create_partitions_ahead(connection)
        return await connection.run_sync(read_status)


async def check(store_url: str) -> MigrationStatus:
    """Where the schema stands. Changes nothing, and may run beside a service."""
    location = parse_store_url(store_url)
    if isinstance(location, SqliteLocation) and not location.path.exists():
        return status_of(None)
    async with transaction(location, writes=False) as connection:
        return await connection.run_sync(read_status)


def read_status(connection: Connection) -> MigrationStatus:
    """Where the schema stands, as this transaction sees it."""
    schema = POSTGRES_SCHEMA if connection.dialect.name == "postgresql" else None
    if not inspect(connection).has_table("alembic_version", schema):
        return status_of(None)
    version = select(column("version_num", String)).select_from(table("alembic_version", schema=schema))
    return status_of(connection.scalar(version))


def status_of(current: str | None) -> MigrationStatus:
    """Where a schema stands that is at this revision."""
    known = revisions()
    return MigrationStatus(current, known[-1], is_newer=current is not None and current not in known)


def revisions() -> list[str]:
    """The migrations of this release in their order. The name of each file begins with its number."""
    return sorted(path.name.partition("_")[0] for path in (migrations_folder() / "versions").glob("*.py"))


async def migrate(connection: AsyncConnection, revision: str = "head") -> None:
    """Run the migrations up to `revision` in this transaction."""
    await connection.run_sync(_run_alembic, revision)


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


@asynccontextmanager
async def transaction(location: StoreLocation, *, writes: bool) -> AsyncIterator[AsyncConnection]:
    """The one transaction of a command, whatever the schema is."""
    with store_errors():
        engine = single_engine(location, writes=writes)
        try:
            async with engine.begin() as connection:
                yield connection
        finally:
            await engine.dispose()


@asynccontextmanager
async def usable(location: StoreLocation, *, writes: bool) -> AsyncIterator[AsyncConnection]:
    """The one transaction of a command on a store that is there, with a schema that this release knows."""
    refuse_missing(location)
    async with transaction(location, writes=writes) as connection:
        await check_schema(connection, location)
        yield connection


def refuse_missing(location: StoreLocation) -> None:
    """Raise `StoreRefused` if there is no such file; a database is asked instead."""
    if isinstance(location, SqliteLocation) and not location.path.exists():
        raise StoreRefused(f"there is no store at {location.path}")


async def check_schema(connection: AsyncConnection, location: StoreLocation) -> None:
    """Raise `StoreRefused` if the schema is not one that this release knows."""
    status = await connection.run_sync(read_status)
    if not status.usable:
        stands = f"is at {status.current}" if status.current else "is missing"
        raise StoreRefused(f"the schema of {location} {stands}, this release needs {status.head}: {UPGRADE_HINT}")


@asynccontextmanager
async def _migrating(location: StoreLocation) -> AsyncIterator[AsyncConnection]:
    """The one transaction in which migrations run, while no other such transaction does."""
    match location:
        case SqliteLocation(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path) as lock:
                make_file(path, lock)
                async with transaction(location, writes=True) as connection:
                    yield connection
        case PostgresLocation():
            async with transaction(location, writes=True) as connection:
                await lock_migrations(connection)
                yield connection


async def lock_migrations(connection: AsyncConnection) -> None:
    """Have no other migration run until this transaction ends, and make the schema `rota` if it is missing."""
    # A concurrent migration is waited for; other users of the tables are not, for long:
    # all others would queue up behind us.
    await connection.execute(text("SET LOCAL lock_timeout = '60s'"))
    await connection.execute(text("SELECT pg_advisory_xact_lock(7682002)"))
    await connection.execute(text("SET LOCAL lock_timeout = '5s'"))
    # IF NOT EXISTS would ask for the right to create schemas even if there is nothing to create.
    if await connection.scalar(text(f"SELECT to_regnamespace('{POSTGRES_SCHEMA}')")) is None:
        await _check_encoding(connection)
        await connection.execute(text(f"CREATE SCHEMA {POSTGRES_SCHEMA}"))


async def _check_encoding(connection: AsyncConnection) -> None:
    """Raise `StoreRefused` where some texts of clients could not be stored: each such call would fail its shard."""
    encoding = await connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise StoreRefused(
            f"the encoding of this database is {encoding}, and must be UTF8: make another database, with "
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )


def _run_alembic(connection: Connection, revision: str) -> None:
    # Alembic takes 0.1 s to import, and most commands on a store migrate nothing.
    from alembic import command
    from alembic.config import Config

    config = Config(str(migrations_folder() / "alembic.ini"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def migrations_folder() -> Path:
    """Where the migrations are: inside the package when it is installed, beside `service/` in a checkout."""
    package = Path(rota.__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parents[1] / "migrations"
