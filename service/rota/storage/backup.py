"""`rota db backup` and `rota db restore`: a file that holds a whole store, and a store made of such a file."""

from __future__ import annotations

from pathlib import Path

from rota.protocol.limits import GENERATIONS_RAISED
from rota.storage.backup_postgres import back_up_postgres, restore_postgres
from rota.storage.backup_sqlite import back_up_sqlite, restore_sqlite
from rota.storage.restored import Replaced
from rota.storage.urls import SqliteLocation, parse_store_url


async def backup(store_url: str, target: Path) -> Path:
    """Write the store, as of one moment, into a new file, or into one with a dated name in the folder `target`.

    Servers may run. The file is for its owner alone, and on the disk when this returns.

    Raises:
        StoreRefused: There is a file of that name, or no store, or a program of Postgres' is missing.
    """
    location = parse_store_url(store_url)
    if isinstance(location, SqliteLocation):
        return back_up_sqlite(location.path, target)
    return await back_up_postgres(store_url, location, target)


async def restore(store_url: str, source: Path, *, raise_by: int = GENERATIONS_RAISED, force: bool = False) -> Replaced:
    """Make the store what `source` holds, with a new incarnation and floors above all that it may have granted.

    The store that was there is kept under another name. `force` has no meaning on SQLite, where a lock tells whether a
    server runs.

    Raises:
        StoreRefused: A server uses the store, or the source is not to be used. Nothing was changed.
    """
    location = parse_store_url(store_url)
    if isinstance(location, SqliteLocation):
        return await restore_sqlite(location.path, source, raise_by=raise_by)
    return await restore_postgres(store_url, location, source, raise_by=raise_by, force=force)
