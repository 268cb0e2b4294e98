"""Backups of an embedded store: one file, made while the server runs, and put back while it does not."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.ext.asyncio import AsyncConnection

from rota.replica.ports import StoreRefused, StoreUnavailable
from rota.storage.backup_files import give_to_owner_of, moment, named, new_file, sync
from rota.storage.engine import single_engine
from rota.storage.errors import store_errors
from rota.storage.identity import read_incarnation
from rota.storage.lost_facts import Facts
from rota.storage.migrate import read_status, upgrade
from rota.storage.raising import start_again
from rota.storage.restored import Replaced, facts_of, highest_of, is_there, refuse_other_release, report
from rota.storage.store_file import FileLock, Note, read_note, write_note
from rota.storage.store_note import read_standing
from rota.storage.urls import SqliteLocation

_BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, and would take for a part of another one of that name."""


def back_up_sqlite(store: Path, target: Path) -> Path:
    """Copy the store, as of one moment, into a new file; a server may write meanwhile. Returns the file's path."""
    target = named(target, ".db")
    if target.resolve() in _files_of(store.resolve()):
        raise StoreRefused(f"{target} is a file of the store itself")
    if not store.is_file():
        raise StoreRefused(f"there is no store at {store}")
    with new_file(target) as copy:
        _copy(store, copy)
    return target


async def restore_sqlite(store: Path, source: Path, *, raise_by: int) -> Replaced:
    """Put a copy of `source` in the store's place, with floors above all that the store may have granted.

    The store that was there stays beside it. Nothing is changed before the copy is complete, checked and migrated.

    Raises:
        StoreRefused: A server uses the store; or the source is no store, damaged, or of a later release.
    """
    store, source = _checked(store, source)
    with FileLock(store) as lock, _room_for_a_copy(store) as copy:
        _copy(source, copy)
        _refuse_cut(source)
        await _migrate(copy, source)
        former, unreadable = await _former(store)
        noted = read_note(lock) or Note(former.incarnation if former is not None else "unknown")
        noted = replace(noted, highest=highest_of(former, noted))
        async with _transaction(copy) as connection:
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
    if source.resolve() in _files_of(store.resolve()):
        raise StoreRefused(f"{source} is a file of the store itself")
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


def _copy(source: Path, target: Path) -> None:
    """Copy a database with what its write-ahead log holds; `StoreRefused` where it is none of ours, or damaged."""
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=ro", uri=True)) as origin,
            closing(sqlite3.connect(target)) as copy,
        ):
            origin.backup(copy)
            # One file without a log: it can be read where nothing can be written.
            copy.execute("PRAGMA journal_mode = DELETE")
            found = str(copy.execute("PRAGMA integrity_check(1)").fetchone()[0])
            tables = {row[0] for row in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except (sqlite3.Error, UnicodeDecodeError) as error:  # The second one where the words of an error are damaged.
        raise StoreRefused(f"{source} cannot be copied: {error}") from error
    if found != "ok":
        raise StoreRefused(f"{source} is damaged: {found.splitlines()[-1]}")
    if not {"alembic_version", "store", "shards"} <= tables:
        raise StoreRefused(f"{source} is no store of Rota")


def _refuse_cut(source: Path) -> None:
    """Raise `StoreRefused` for a database that ends within a page: SQLite reads the rest of that one as zeros."""
    with source.open("rb") as file:
        page_bytes = int.from_bytes(file.read(18)[16:], "big")
    if page_bytes > 1 and source.stat().st_size % page_bytes:  # 1 stands for 65,536.
        raise StoreRefused(f"{source} is damaged: its end is missing")


async def _migrate(copy: Path, source: Path) -> None:
    async with _transaction(copy, writes=False) as connection:
        status = await connection.run_sync(read_status)
        refuse_other_release(status, source)
        await read_incarnation(connection)
    await upgrade(f"sqlite:///{quote(str(copy))}")


async def _former(store: Path) -> tuple[Facts | None, str]:
    """What the store holds that is about to be replaced, or why that cannot be read."""
    location = SqliteLocation(store)
    if not is_there(location):
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
    """Rename the store with all that SQLite keeps beside it; the new name, or nothing where there was no store."""
    name, was_there = f"{store}.before-{moment()}", store.exists()
    names = chain((name,), (f"{name}.{number}" for number in count(2)))
    aside = next(each for each in names if not os.path.lexists(each))
    # The database first: without it SQLite does nothing with its log.
    for suffix in ("", *_BESIDE):
        part = Path(f"{store}{suffix}")
        if part.exists():
            part.rename(f"{aside}{suffix}")
    return aside if was_there else ""


def _files_of(store: Path) -> set[Path]:
    return {Path(f"{store}{suffix}") for suffix in ("", ".lock", *_BESIDE)}


@asynccontextmanager
async def _transaction(path: Path, *, writes: bool = True) -> AsyncIterator[AsyncConnection]:
    engine = single_engine(SqliteLocation(path), writes=writes)
    try:
        with store_errors():
            async with engine.begin() as connection:
                yield connection
    finally:
        await engine.dispose()
