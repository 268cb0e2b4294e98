"""Backups of a store on Postgres: the schema `rota` alone, as a dump of `pg_dump`, whose rows alone are restored.

A dump is text for a database to run, written by anyone that can write where backups are kept. So nothing of it is run:
the release's migrations make the schema, and the rows are copied into their tables (ADR 103).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.replica.ports import StoreRefused
from rota.storage.append import driver_of
from rota.storage.backup_files import moment
from rota.storage.errors import as_store_error
from rota.storage.incarnation import start_again
from rota.storage.migrate import lock_migrations, migrate, status_of, transaction, usable
from rota.storage.objects import differences, read_objects, refuse_differences
from rota.storage.partitions import PARTITION_PREFIX, create_partitions, create_partitions_ahead
from rota.storage.restored import (
    Facts,
    Replaced,
    highest_of,
    read_facts,
    refuse_live_replicas,
    refuse_other_release,
    report,
)
from rota.storage.schema import ALONE, POSTGRES_SCHEMA, fence_roles, side_commits
from rota.storage.transfer import COPIED
from rota.storage.urls import PostgresLocation, read_password

_SHOWN_LINES = 5
_CONNECT_TIMEOUT_S = "10"


class PostgresProgramFailed(StoreRefused):
    """A program ended with an error; the message ends with its output."""


def program(name: str) -> str:
    """Where the program is."""
    found = shutil.which(name)
    if found is None:
        raise StoreRefused(
            f"{name} is not on PATH: install PostgreSQL's client programs, of the server's major release or a later one"
        )
    return found


def run(command: Sequence[str], location: PostgresLocation | None = None) -> bytes:
    """Run a program to its end; returns its output.

    With a `location`, `-d` and its connection string are added.
    """
    arguments, environment = [*command], dict(os.environ)
    if location is not None:
        dsn, environment = connection_of(location)
        arguments += ["-d", dsn]
    done = subprocess.run(arguments, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise _failed(command[0], done.stderr)
    return done.stdout


@contextmanager
def output_of(command: Sequence[str]) -> Iterator[IO[bytes]]:
    """Gives the output of a program while it runs.

    Raises:
        PostgresProgramFailed: The program ended with an error, although the block did not.
    """
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said) as process,
    ):
        assert process.stdout is not None, "there is a pipe"
        yield process.stdout
        if process.wait():
            said.seek(0)
            raise _failed(command[0], said.read())


def connection_of(location: PostgresLocation) -> tuple[str, dict[str, str]]:
    """The connection string without a password, which all users of the machine may see; and the environment with it."""
    parts = urlsplit(location.writable_dsn)
    login, at, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    pairs = [pair for pair in parts.query.split("&") if pair]
    given = [pair.partition("=")[2] for pair in pairs if pair.startswith("password=")]
    query = "&".join(pair for pair in pairs if not pair.startswith("password="))
    # A host that hangs would be waited for without an end.
    environment = {"PGCONNECT_TIMEOUT": _CONNECT_TIMEOUT_S, **os.environ, "PGAPPNAME": "rota"}
    if location.password_file is not None:
        environment["PGPASSWORD"] = read_password(location.password_file)
    elif password or given:
        environment["PGPASSWORD"] = unquote(given[-1] if given else password)
    # Not by urlunsplit, which leaves the slashes out where the host is (`postgresql:///rota`).
    return f"postgresql://{user}{at}{hosts}{parts.path}{query and f'?{query}'}", environment


def _failed(command: str, said: bytes) -> PostgresProgramFailed:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    name = Path(command).name
    return PostgresProgramFailed(f"{name} failed: {' / '.join(lines[:_SHOWN_LINES]) or 'it did not say why'}")


# The last one is Postgres' since 17.
_UNLIMITED = text(
    "SELECT set_config(name, '0', true) FROM pg_settings"
    " WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')"
)
_LOCK_WAIT_MS = 60_000
"""As long as a migration of the schema is waited for."""
_REVISION = re.compile(rf"^COPY {POSTGRES_SCHEMA}\.alembic_version [^;]*;\n(?P<revision>\w+)\n", re.MULTILINE)
_ENTRY = re.compile(
    r"^\d+; \d+ \d+ (?P<kind>[A-Z]+(?: [A-Z]+)*) (?P<schema>\S+) (?P<name>.+) \S+$",
    re.MULTILINE,
)
_NO_OBJECTS = ("ACL", "COMMENT", "INDEX ATTACH", "SEQUENCE OWNED BY", "SEQUENCE SET", "TABLE ATTACH", "TABLE DATA")
_PARTITION = re.compile(rf"TABLE {PARTITION_PREFIX}(\d{{8}})")
_TABLES = frozenset(table.name for table in (*COPIED, side_commits, fence_roles))
"""The tables whose rows are restored. Rows of `fence_checks` live no longer than their transaction."""
_COPY = re.compile(rf"COPY {POSTGRES_SCHEMA}\.(?P<table>\w+) \((?P<columns>[^)]*)\) FROM stdin;\n".encode())
_BETWEEN = re.compile(rb"\n|--|SELECT pg_catalog\.|\\(?:un)?restrict |SET (?!client_encoding = (?!'UTF8'))")
"""Lines between the rows of two tables, which are not used."""
_END_OF_ROWS = b"\\.\n"
_ROWS = 1_000
# The rights that were given on the schema that was there. Those on fences stand in a table, too.
_RIGHTS = text("""
WITH objects AS (
    SELECT 'SCHEMA rota' AS name, nspacl AS rights, nspowner AS owner FROM pg_namespace WHERE nspname = :kept_as
    UNION ALL
    SELECT format('%s rota.%I', CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, relname), relacl, relowner
    FROM pg_class WHERE relnamespace = to_regnamespace(:kept_as) AND relkind IN ('r', 'p', 'S')
        AND to_regclass(format('rota.%I', relname)) IS NOT NULL
    UNION ALL
    SELECT format('FUNCTION rota.%I(%s)', proname, oidvectortypes(proargtypes)), proacl, proowner
    FROM pg_proc WHERE pronamespace = to_regnamespace(:kept_as)
        AND to_regprocedure(format('rota.%I(%s)', proname, oidvectortypes(proargtypes))) IS NOT NULL
)
SELECT format('GRANT %s ON %s TO %s', privilege_type, name, CASE grantee WHEN 0 THEN 'PUBLIC'
    ELSE quote_ident(pg_get_userbyid(grantee)) END)
FROM objects, aclexplode(rights) WHERE grantee <> owner
""")
_FENCE_RIGHTS = text(
    "SELECT rota.grant_fences(role_name, namespace) FROM rota.fence_roles JOIN pg_roles ON rolname = role_name"
)
_NEXT_SIDE_COMMIT = text(
    "SELECT setval(pg_get_serial_sequence('rota.side_commits', 'id'), max(id)) FROM rota.side_commits"
)


async def dump_postgres(location: PostgresLocation, target: Path) -> None:
    """Dump the schema `rota`, as of one moment, into a file; servers may run.

    No pruning meanwhile: truncated rows disappear from earlier snapshots, too.
    """
    dump = [program("pg_dump"), "--format=custom", f"--schema={POSTGRES_SCHEMA}", "--no-unlogged-table-data"]
    # A role or a database may set another encoding of clients, which need not have all characters.
    dump += [f"--lock-wait-timeout={_LOCK_WAIT_MS}", "--encoding=UTF8", f"--file={target}"]
    async with usable(location, writes=False) as connection:
        await connection.execute(_UNLIMITED)
        await connection.execute(ALONE)
        await asyncio.to_thread(run, dump, location)


async def restore_postgres(location: PostgresLocation, source: Path, *, raise_by: int, force: bool) -> Replaced:
    """Make the schema `rota` anew, with the rows of `source`, and floors above all that the store may have granted.

    The schema that was there stays under another name. All or nothing: one transaction. A server cannot come in
    between: it finds the former state, or the restored one.

    Raises:
        StoreRefused: A server uses the store (unless `force`), or the source is no dump of it, or of a later release.
    """
    contents = _contents(source)
    async with transaction(location, writes=True) as connection:
        await connection.execute(_UNLIMITED)
        kept_as, former, unreadable = await _put_aside(connection, force=force)
        await lock_migrations(connection)
        await migrate(connection, contents.revision)
        await create_partitions(connection, contents.days)
        refuse_differences(source, differences(contents.objects, await read_objects(connection)))
        await _load(connection, source)
        await migrate(connection)
        await create_partitions_ahead(connection)
        await start_again(connection, raise_by=raise_by, known=highest_of(former, None))
        for grant in (await connection.scalars(_RIGHTS, {"kept_as": kept_as})).all():
            await connection.exec_driver_sql(grant)
        await connection.execute(_FENCE_RIGHTS)
        return Replaced(await report(connection, former), kept_as, unreadable)


@dataclass(frozen=True, slots=True)
class _Contents:
    """What a dump's list of contents names."""

    revision: str
    objects: dict[str, str]
    """Names with empty definitions, for those of a dump are not used."""
    days: list[date]
    """Those of the journal's partitions."""


def _contents(source: Path) -> _Contents:
    """Raises `StoreRefused` for a file that is no dump, or of a later release."""
    if not source.is_file():
        raise StoreRefused(f"there is no backup at {source}")
    pg_restore = program("pg_restore")
    try:
        listed = run([pg_restore, "--list", str(source)]).decode(errors="replace")
        version = run([pg_restore, "--data-only", "--table=alembic_version", "--file=-", str(source)]).decode()
    except (PostgresProgramFailed, UnicodeError) as failed:
        raise _no_dump(source, failed) from failed
    found = _REVISION.search(version)
    status = status_of(found["revision"] if found else None)
    refuse_other_release(status, source)
    entries = (entry for entry in _ENTRY.finditer(listed) if entry["kind"] not in _NO_OBJECTS)
    names = [_name(entry) for entry in entries if (entry["kind"], entry["name"]) != ("SCHEMA", POSTGRES_SCHEMA)]
    try:
        days = [date.fromisoformat(day[1]) for name in names if (day := _PARTITION.fullmatch(name))]
    except ValueError as error:
        raise _no_dump(source, error) from error
    return _Contents(str(status.current), dict.fromkeys(names, ""), days)


def _name(entry: re.Match[str]) -> str:
    place = "" if entry["schema"] == POSTGRES_SCHEMA else f"{entry['schema']}."
    return f"{entry['kind']} {place}{entry['name']}"


def _no_dump(source: Path, why: Exception) -> StoreRefused:
    return StoreRefused(f"{source} is no whole dump in the custom format of pg_dump: {why}")


async def _put_aside(connection: AsyncConnection, *, force: bool) -> tuple[str, Facts | None, str]:
    """Rename the schema that is there, and make an empty one of the same owner; refuses live replicas.

    Returns the new name (empty if there was no schema), and its facts, or why they cannot be read. The rest of the
    transaction has the owner's rights and no more: the restored store is as much its own.
    """
    owner = await connection.scalar(
        text(f"SELECT quote_ident(pg_get_userbyid(nspowner)) FROM pg_namespace WHERE nspname = '{POSTGRES_SCHEMA}'")
    )
    if owner is None:
        return "", None, ""
    if not force and await connection.scalar(text(f"SELECT to_regclass('{POSTGRES_SCHEMA}.shards')")) is not None:
        await refuse_live_replicas(connection)
    former, unreadable = None, ""
    try:
        async with connection.begin_nested():
            former = await read_facts(connection)
    except DBAPIError as error:
        unreadable = str(as_store_error(error))
    kept_as = f"{POSTGRES_SCHEMA}_before_{moment().lower()}"
    await connection.exec_driver_sql(f"ALTER SCHEMA {POSTGRES_SCHEMA} RENAME TO {kept_as}")
    await connection.exec_driver_sql(f"CREATE SCHEMA {POSTGRES_SCHEMA} AUTHORIZATION {owner}")
    await connection.exec_driver_sql(f"SET LOCAL ROLE {owner}")
    return kept_as, former, unreadable


async def _load(connection: AsyncConnection, source: Path) -> None:
    """Copy the rows of a dump into the tables. No other line of it is run; `StoreRefused` for one that is unknown."""
    from asyncpg import PostgresError

    try:
        with output_of([program("pg_restore"), "--data-only", "--file=-", str(source)]) as script:
            for line in script:
                if copied := _COPY.fullmatch(line):
                    await _copy(connection, copied["table"].decode(), copied["columns"].decode(), _rows(script, source))
                elif not _BETWEEN.match(line):
                    raise StoreRefused(f"{source} holds a line that is no row: {line[:80].decode(errors='replace')!r}")
    except PostgresProgramFailed as failed:
        raise _no_dump(source, failed) from failed
    except PostgresError as error:
        raise StoreRefused(f"{source} holds a row that the release's tables refuse: {error}") from error
    await connection.execute(_NEXT_SIDE_COMMIT)


def _rows(script: IO[bytes], source: Path) -> Iterator[bytes]:
    """The lines up to the one that ends a table's rows."""
    for line in script:
        if line == _END_OF_ROWS:
            return
        yield line
    raise StoreRefused(f"{source} is damaged: its end is missing")


async def _copy(connection: AsyncConnection, table: str, columns: str, rows: Iterator[bytes]) -> None:
    table = "group_events" if table.startswith(PARTITION_PREFIX) else table
    if table not in _TABLES:
        for _ in rows:
            pass
        return
    await driver_of(connection).copy_to_table(
        table,
        schema_name=POSTGRES_SCHEMA,
        columns=[column.strip(' "') for column in columns.split(",")],
        source=_chunks(rows),
        format="text",
    )


async def _chunks(rows: Iterator[bytes]) -> AsyncIterator[bytes]:
    while chunk := b"".join(islice(rows, _ROWS)):
        yield chunk
