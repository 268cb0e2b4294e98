"""Migrations on both engines: the result is what the statements are written against."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.replica.ports import StoreRefused
from rota.storage.backup import backup, restore
from rota.storage.migrate import check, single_engine, upgrade
from rota.storage.schema import POSTGRES_SCHEMA, metadata_for
from rota.storage.store import SqlStore
from rota.storage.urls import parse_store_url
from tests.contracts.conftest import SHARD_COUNT
from tests.support.postgres import PostgresServer, binary


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store could be: a file that is not there, an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new' / 'rota.db'}"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncConnection]:
    engine = single_engine(parse_store_url(url), writes=True)
    async with engine.begin() as connection:
        yield connection
    await engine.dispose()


def our_schema(connection: Connection) -> str | None:
    return POSTGRES_SCHEMA if connection.dialect.name == "postgresql" else None


def table_names(connection: Connection) -> set[str]:
    names = inspect(connection).get_table_names(schema=our_schema(connection))
    return {name for name in names if not name.startswith("group_events_")}


def differences(connection: Connection) -> list[object]:
    """What Alembic would put into the next migration."""
    on_postgres = connection.dialect.name == "postgresql"

    def is_ours(name: str | None, kind: str, _parents: object) -> bool:
        return name == POSTGRES_SCHEMA if kind == "schema" else not (name or "").startswith("group_events_2")

    options = {
        "version_table_schema": our_schema(connection),
        "include_schemas": on_postgres,
        "include_name": is_ours if on_postgres else None,
        "compare_type": True,
    }
    context = MigrationContext.configure(connection, opts=options)
    return [
        found
        for found in compare_metadata(context, metadata_for(connection.dialect.name))
        if "group_events_default" not in str(found)
    ]


def primary_keys(connection: Connection) -> dict[str, list[str]]:
    tables = metadata_for(connection.dialect.name).sorted_tables
    schema = our_schema(connection)
    return {
        table.name: inspect(connection).get_pk_constraint(table.name, schema=schema)["constrained_columns"]
        for table in tables
    }


async def test_upgrading_makes_a_store_and_repeats_harmlessly(empty_url: str) -> None:
    before = await check(empty_url)

    first, second = await upgrade(empty_url), await upgrade(empty_url)

    assert (before.current, before.usable) == (None, False)
    assert first == second == await check(empty_url)
    assert (first.current, first.up_to_date, first.is_newer) == (first.head, True, False)


async def test_the_migrated_schema_is_the_one_in_the_statements(empty_url: str) -> None:
    await upgrade(empty_url)

    async with connected(empty_url) as connection:
        assert await connection.run_sync(differences) == []
        keys = await connection.run_sync(primary_keys)
        model = metadata_for(connection.dialect.name)
    for table in model.sorted_tables:
        expected = [column.name for column in table.primary_key]
        if table.name == "group_events" and empty_url.startswith("sqlite"):
            expected.remove("at")
        assert keys[table.name] == expected


async def test_a_migration_that_fails_leaves_nothing_behind(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    def fail_late(_name: str, *_columns: object, **_options: object) -> None:
        raise RuntimeError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(op, "create_index", fail_late)
        with pytest.raises(RuntimeError, match="no more"):
            await upgrade(empty_url)

    assert (await check(empty_url)).current is None
    async with connected(empty_url) as connection:
        assert await connection.run_sync(table_names) <= {"alembic_version"}
    assert (await upgrade(empty_url)).up_to_date


async def test_a_store_without_schema_is_rejected_with_the_command(empty_url: str) -> None:
    store = SqlStore(empty_url)

    with pytest.raises(StoreRefused, match="rota db upgrade"):
        await store.open(SHARD_COUNT)


async def test_no_store_is_made_where_texts_could_not_be_stored(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{binary('pg_dump').parent}{os.pathsep}{os.environ['PATH']}")
    store = SqlStore(postgres_url)
    await store.open(SHARD_COUNT)
    await store.close()
    dump = await backup(postgres_url, tmp_path / "dump")
    locale = "LC_COLLATE 'C' LC_CTYPE 'C'"
    postgres_server.execute(f"CREATE DATABASE latin TEMPLATE template0 ENCODING 'WIN1252' {locale}")

    says = "encoding of this database is WIN1252, and must be UTF8"
    with pytest.raises(StoreRefused, match=says):
        await upgrade(postgres_server.dsn("latin"))
    with pytest.raises(StoreRefused, match=says):
        await restore(postgres_server.dsn("latin"), dump)

    postgres_server.drop_database("latin")


async def test_a_later_schema_is_accepted(empty_url: str) -> None:
    await upgrade(empty_url)
    async with connected(empty_url) as connection:
        schema = "rota." if connection.dialect.name == "postgresql" else ""
        await connection.execute(text(f"UPDATE {schema}alembic_version SET version_num = 'of-a-later-release'"))

    status = await upgrade(empty_url)
    assert (status.current, status.is_newer, status.usable) == ("of-a-later-release", True, True)
    new = SqlStore(empty_url)
    await new.open(SHARD_COUNT)
    await new.close()


async def test_replicas_that_upgrade_at_once_wait_for_one_another(postgres_dsn: str) -> None:
    statuses = await asyncio.gather(*(upgrade(postgres_dsn) for _ in range(4)))

    assert all(status.up_to_date for status in statuses)


async def test_users_tables_of_the_same_names_are_left_alone(postgres_dsn: str) -> None:
    async with connected(postgres_dsn) as connection:
        await connection.execute(text("CREATE TABLE public.groups (mine TEXT)"))
        await connection.execute(text("INSERT INTO public.groups VALUES ('still here')"))

    await upgrade(postgres_dsn)
    store = SqlStore(postgres_dsn)
    await store.open(SHARD_COUNT)
    await store.close()

    async with connected(postgres_dsn) as connection:
        assert await connection.scalar(text("SELECT mine FROM public.groups")) == "still here"
