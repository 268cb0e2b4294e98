"""Backups of a store on Postgres: the schema `rota` alone, as a dump of `pg_dump`, put back in one transaction."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Executable, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.replica.ports import StoreRefused
from rota.storage.backup_files import moment, named, new_file
from rota.storage.engine import durable, single_engine
from rota.storage.errors import as_store_error, store_errors
from rota.storage.identity import read_incarnation
from rota.storage.lost_facts import Facts, read_facts
from rota.storage.migrate import check_encoding, status_of, upgrade
from rota.storage.postgres_programs import PostgresProgramFailed, program, psql, run
from rota.storage.raising import new_incarnation, no_room, raising
from rota.storage.readers import opened
from rota.storage.restored import Replaced, highest_of, refuse_live_replicas, refuse_other_release, report
from rota.storage.schema import ALONE, POSTGRES_SCHEMA
from rota.storage.urls import PostgresLocation

_FIRST_WITH_FLOORS = "0008"
# The second one is Postgres' since 17.
_UNLIMITED = text(
    "SELECT set_config(name, '0', true) FROM pg_settings"
    " WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"
)
_LOCK_WAIT_MS = 60_000
"""As long as a migration of the schema is waited for."""
_REVISION = re.compile(rf"^COPY {POSTGRES_SCHEMA}\.alembic_version [^;]*;\n(?P<revision>\w+)\n", re.MULTILINE)
_ENTRY = re.compile(
    r"^\d+; \d+ \d+ (?:SCHEMA - (?P<schema>\S+)|TABLE (?!DATA |ATTACH )(?P<owner>\S+) \S+) ", re.MULTILINE
)
_NO_ROLE = re.compile(r'role "(?P<role>[^"]+)" does not exist')


async def back_up_postgres(store_url: str, location: PostgresLocation, target: Path) -> Path:
    """Dump the schema `rota`, as of one moment, into a new file; servers may run. Returns the file's path.

    No pruning meanwhile: truncated rows disappear from earlier snapshots, too.
    """
    target = named(target, ".dump")
    dump = [program("pg_dump"), "--format=custom", f"--schema={POSTGRES_SCHEMA}", "--no-unlogged-table-data"]
    # A role or a database may set another encoding of clients, which need not have all characters.
    dump += [f"--lock-wait-timeout={_LOCK_WAIT_MS}", "--encoding=UTF8"]
    async with opened(store_url, writes=False) as engine:
        with new_file(target) as file, store_errors():
            async with engine.begin() as connection:
                await read_incarnation(connection)
                await connection.execute(_UNLIMITED)
                await connection.execute(ALONE)
                await asyncio.to_thread(run, [*dump, f"--file={file}"], location)
    return target


async def restore_postgres(
    store_url: str, location: PostgresLocation, source: Path, *, raise_by: int, force: bool
) -> Replaced:
    """Put what `source` holds in the place of the schema `rota`, with floors above all that the store may have granted.

    The schema that was there stays under another name. All or nothing: one transaction, begun after the whole dump was
    read once. A server cannot come in between: it finds the former state, or the restored one.

    Raises:
        StoreRefused: A server uses the store (unless `force`), or the source is no dump of it, or of a later release.
    """
    await asyncio.to_thread(_check_dump, source)
    engine = single_engine(location, writes=True)
    try:
        with store_errors():
            async with engine.connect() as connection:
                kept_as = await _name_to_keep(connection)
                if not kept_as:
                    await check_encoding(connection)
                former, unreadable = await _former(connection, force=force) if kept_as else (None, "")
        statements = raising("postgresql", new_incarnation(), raise_by, highest_of(former, None))
        await asyncio.to_thread(_load, location, source, kept_as, statements, raise_by)
        # Also where the dump is of this release: it lacks the journal's partitions of today.
        await upgrade(store_url)
        with store_errors():
            async with engine.connect() as connection:
                return Replaced(await report(connection, former), kept_as, unreadable)
    finally:
        await engine.dispose()


def _check_dump(source: Path) -> None:
    """Read all of it; `StoreRefused` where it cannot be put back as it is."""
    if not source.is_file():
        raise StoreRefused(f"there is no backup at {source}")
    pg_restore = program("pg_restore")
    try:
        listed = run([pg_restore, "--list", str(source)]).decode()
        version = run([pg_restore, "--data-only", "--table=alembic_version", "--file=-", str(source)]).decode()
        run([pg_restore, f"--file={os.devnull}", str(source)])
    except PostgresProgramFailed as failed:
        raise StoreRefused(f"{source} is no whole dump in the custom format of pg_dump: {failed}") from failed
    schemas = {found["schema"] or found["owner"] for found in _ENTRY.finditer(listed)}
    if schemas != {POSTGRES_SCHEMA}:
        raise StoreRefused(
            f"{source} is no dump of the schema {POSTGRES_SCHEMA} alone. Where that is one of several, restore it with "
            "pg_restore, and then run `rota db restored`"
        )
    found = _REVISION.search(version)
    status = status_of(found["revision"] if found else None)
    refuse_other_release(status, source)
    if str(status.current) < _FIRST_WITH_FLOORS:
        raise StoreRefused(
            f"{source} is of an earlier release than the first with floors: restore it with pg_restore, then run "
            "`rota db upgrade` and `rota db restored`"
        )


async def _name_to_keep(connection: AsyncConnection) -> str:
    """Under which name the schema stays that is there; empty where there is none."""
    has_schema = await connection.scalar(text(f"SELECT to_regnamespace('{POSTGRES_SCHEMA}') IS NOT NULL"))
    return f"{POSTGRES_SCHEMA}_before_{moment().lower()}" if has_schema else ""


async def _former(connection: AsyncConnection, *, force: bool) -> tuple[Facts | None, str]:
    """What the schema holds that is about to be replaced, or why that cannot be read; refuses live replicas."""
    if not await connection.scalar(text(f"SELECT to_regclass('{POSTGRES_SCHEMA}.shards') IS NOT NULL")):
        return None, "it has no tables"
    if not force:
        await refuse_live_replicas(connection)
    try:
        return await read_facts(connection), ""
    except DBAPIError as error:
        return None, str(as_store_error(error))


def _load(
    location: PostgresLocation, source: Path, keep_as: str, statements: Sequence[Executable], raise_by: int
) -> None:
    """One transaction, in which nothing but `psql` can read what a dump holds."""
    keep = f"ALTER SCHEMA {POSTGRES_SCHEMA} RENAME TO {keep_as};\n" if keep_as else ""
    try:
        with psql(location) as script:
            script.write(f"BEGIN;\n{durable(of_transaction=True)};\n{keep}".encode())
            script.flush()
            run([program("pg_restore"), "--file=-", str(source)], stdout=script)
            script.write("".join(f"{_as_text(each)};\n" for each in (*statements, text("COMMIT"))).encode())
    except PostgresProgramFailed as failed:
        raise StoreRefused(_explained(str(failed), raise_by)) from failed


def _as_text(statement: Executable) -> str:
    assert hasattr(statement, "compile"), "each statement is a clause"
    dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    return str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _explained(failed: str, raise_by: int) -> str:
    """What the programs said, and what to do about it; nothing was changed."""
    if "integer out of range" in failed:
        return no_room(raise_by, None)
    if missing := _NO_ROLE.search(failed):
        role = missing["role"]
        return (
            f'nothing was changed: the dump grants rights to, or is owned by, the role "{role}", which this server '
            f'lacks. Make it first: CREATE ROLE "{role}" NOLOGIN'
        )
    return f"nothing was changed: {failed}"
