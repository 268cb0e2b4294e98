"""`rota db backup` and `rota db restore`: a file that holds a whole store, and a store made of such a file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from urllib.parse import quote

from rota.core.replica.ports import StoreRefused, StoreUnavailable
from rota.protocol.limits import GENERATIONS_RAISED
from rota.storage.backup_files import give_to_owner_of, moment, named, new_backup, read_manifest, sync
from rota.storage.backup_postgres import dump_postgres, restore_postgres
from rota.storage.incarnation import start_again
from rota.storage.migrate import refuse_missing, status_of, transaction, upgrade
from rota.storage.objects import SQLITE_OBJECTS, describe, differences, refuse_differences
from rota.storage.restored import Facts, Replaced, facts_of, highest_of, refuse_other_release, report
from rota.storage.store_file import FileLock, Note, read_note, read_standing, write_note
from rota.storage.transfer import COPIED
from rota.storage.urls import SqliteLocation, parse_store_url

_BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, and would take for a part of another one of that name."""


def copy_sqlite(store: Path, target: Path) -> None:
    """Copy a store with what its write-ahead log holds, as of one moment, into a file; a server may write meanwhile.

    Raises:
        StoreRefused: The file is no store of Rota, or damaged.
    """
    refuse_missing(SqliteLocation(store))
    with (
        _reading(store),
        closing(sqlite3.connect(_read_only(store), uri=True)) as origin,
        closing(sqlite3.connect(target)) as copy,
    ):
        origin.backup(copy)
        # One file without a log: it can be read where nothing can be written.
        copy.execute("PRAGMA journal_mode = DELETE")
        _revision(copy, "main", store)
        _refuse_damage(copy, "main", store)


def refuse_own_file(store: Path, file: Path) -> None:
    """Raise `StoreRefused` for a file that SQLite or a server uses with the store."""
    if file.resolve() in {Path(f"{store.resolve()}{suffix}") for suffix in ("", ".lock", *_BESIDE)}:
        raise StoreRefused(f"{file} is a file of the store itself")


async def restore_sqlite(store: Path, source: Path, *, raise_by: int) -> Replaced:
    """Put a new store with the rows of `source` in the store's place, with floors above all that it may have granted.

    The store that was there stays beside it. Nothing is changed before the new one is complete, checked and migrated.

    Raises:
        StoreRefused: A server uses the store; or the source is no store, damaged, or of a later release.
    """
    store, source = _checked(store, source)
    with FileLock(store) as lock, _room_for_a_copy(store) as copy:
        await _rebuild(source, copy)
        former, unreadable = await _former(store)
        noted = read_note(lock) or Note(former.incarnation if former is not None else "unknown")
        noted = replace(noted, highest=highest_of(former, noted))
        async with transaction(SqliteLocation(copy), writes=True) as connection:
            await start_again(connection, raise_by=raise_by, known=noted.highest)
            done = await report(connection, former)
            note = await read_standing(connection)
        # From here on a start must not find an empty place and begin an empty store; nor must a second attempt, after
        # this one was killed, know less than this one.
        write_note(lock, noted)
        kept_as = _exchange(store, copy, lock.path)
        write_note(lock, note)
    return Replaced(done, kept_as, unreadable)


def _checked(store: Path, source: Path) -> tuple[Path, Path]:
    """The file behind each name, which may be a symbolic link."""
    refuse_own_file(store, source)
    if not source.is_file():
        raise StoreRefused(f"there is no backup at {source}")
    store.resolve().parent.mkdir(parents=True, exist_ok=True)
    return store.resolve(), source.resolve()


@contextmanager
def _room_for_a_copy(store: Path) -> Iterator[Path]:
    """An empty file beside the store. The store's lock is held, so a file of an earlier attempt is of no use."""
    copy = store.with_name(f"{store.name}.restoring")
    _delete(copy)
    os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield copy
    finally:
        _delete(copy)


def _delete(copy: Path) -> None:
    for suffix in ("", ".lock", *_BESIDE):
        Path(f"{copy}{suffix}").unlink(missing_ok=True)


async def _rebuild(source: Path, copy: Path) -> None:
    """Make a store of this release in `copy`, with the rows of `source`: nothing of its schema is believed.

    Its objects are compared before a row is read: what a view or an index computes is computed by the reader.
    """
    with _reading(source), closing(sqlite3.connect(":memory:", uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("ATTACH ? AS source", (_read_only(source),))
        revision = _revision(connection, "source", source)
        refuse_other_release(status_of(revision), source)
        await upgrade(f"sqlite:///{quote(str(copy))}", revision)
        connection.execute("ATTACH ? AS copy", (str(copy),))
        refuse_differences(source, differences(_objects(connection, "source"), _objects(connection, "copy")))
        _refuse_damage(connection, "source", source)
        _refuse_cut(source)
        for table in (each.name for each in COPIED):
            columns = ", ".join(f'"{row[1]}"' for row in connection.execute(f"PRAGMA copy.table_info({table})"))
            if columns:  # An earlier release may lack the table.
                connection.execute(f"INSERT INTO copy.{table} ({columns}) SELECT {columns} FROM source.{table}")
        connection.commit()
    await upgrade(f"sqlite:///{quote(str(copy))}")


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # The second one if the words of an error are damaged.
        raise StoreRefused(f"{source} cannot be copied: {error}") from error


def _read_only(path: Path) -> str:
    return f"file:{quote(str(path.absolute()))}?mode=ro"


def _refuse_damage(connection: sqlite3.Connection, database: str, source: Path) -> None:
    found = str(connection.execute(f"PRAGMA {database}.integrity_check(1)").fetchone()[0])
    if found != "ok":
        raise StoreRefused(f"{source} is damaged: {found.splitlines()[-1]}")


def _refuse_cut(source: Path) -> None:
    """Raise `StoreRefused` for a database that ends within a page: SQLite reads the rest of that one as zeros."""
    with source.open("rb") as file:
        page_bytes = int.from_bytes(file.read(18)[16:], "big")
    if page_bytes > 1 and source.stat().st_size % page_bytes:  # 1 stands for 65,536.
        raise StoreRefused(f"{source} is damaged: its end is missing")


def _revision(connection: sqlite3.Connection, database: str, source: Path) -> str:
    """The revision of a store's schema; `StoreRefused` if it is no store of Rota."""
    objects = _objects(connection, database)
    if not {"TABLE alembic_version", "TABLE store", "TABLE shards"} <= objects.keys():
        raise StoreRefused(f"{source} is no store of Rota")
    return str(connection.execute(f"SELECT max(version_num) FROM {database}.alembic_version").fetchone()[0])


def _objects(connection: sqlite3.Connection, database: str) -> dict[str, str]:
    return dict(connection.execute(SQLITE_OBJECTS.format(f"{database}.")))


async def _former(store: Path) -> tuple[Facts | None, str]:
    """What the store holds that is about to be replaced, or why that cannot be read."""
    location = SqliteLocation(store)
    try:
        refuse_missing(location)
    except StoreRefused:
        return None, ""
    try:
        # The driver would leave a connection open to a file that is not a database.
        with closing(sqlite3.connect(store)) as connection:
            connection.execute("PRAGMA schema_version")
        return await facts_of(location), ""
    except (StoreRefused, StoreUnavailable, sqlite3.Error) as error:
        return None, str(error)


def _exchange(store: Path, copy: Path, lock: Path) -> str:
    """Put the copy in the store's place, which keeps its owner; returns the name that the store gets instead."""
    for each in (copy, lock):
        give_to_owner_of(each, store if store.exists() else store.parent)
    sync(copy)
    kept_as = _put_aside(store)
    copy.rename(store)
    sync(store.parent)
    return kept_as


def _put_aside(store: Path) -> str:
    """Rename the store with all that SQLite keeps beside it; the new name, or nothing if there was no store."""
    name, was_there = f"{store}.before-{moment()}", store.exists()
    names = chain((name,), (f"{name}.{number}" for number in count(2)))
    aside = next(each for each in names if not os.path.lexists(each))
    # The database first: without it SQLite does nothing with its log.
    for suffix in ("", *_BESIDE):
        part = Path(f"{store}{suffix}")
        if part.exists():
            part.rename(f"{aside}{suffix}")
    return aside if was_there else ""


async def backup(store_url: str, target: Path) -> Path:
    """Write the store, as of one moment, into a new file, or into one with a dated name in the folder `target`.

    Servers may run. The file is for its owner alone, and on the disk when this returns. Its manifest lies beside it.

    Raises:
        StoreRefused: There is a file of that name, or no store, or a program of Postgres' is missing.
    """
    location = parse_store_url(store_url)
    if isinstance(location, SqliteLocation):
        refuse_own_file(location.path, target)
    target = named(target, ".db" if isinstance(location, SqliteLocation) else ".dump")
    with new_backup(target) as (file, facts):
        if isinstance(location, SqliteLocation):
            copy_sqlite(location.path, file)
        else:
            await dump_postgres(location, file)
        facts.update(await describe(location))
    return target


async def restore(store_url: str, source: Path, *, raise_by: int = GENERATIONS_RAISED, force: bool = False) -> Replaced:
    """Make the store what `source` holds, with a new incarnation and floors above all that it may have granted.

    The backup's rows are copied into a schema that this release makes; nothing else of it is used. The store that was
    there is kept under another name. `force` has no meaning on SQLite, where a lock tells whether a
    server runs.

    Raises:
        StoreRefused: A server uses the store, or the source is not to be used. Nothing was changed.
    """
    location = parse_store_url(store_url)
    manifest = read_manifest(source)
    if manifest is not None:
        refuse_differences(source, manifest.get("foreign_objects") or ())
    if isinstance(location, SqliteLocation):
        return await restore_sqlite(location.path, source, raise_by=raise_by)
    return await restore_postgres(location, source, raise_by=raise_by, force=force)
