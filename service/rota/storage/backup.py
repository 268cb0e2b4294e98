"""`rota db backup` and `rota db restore`: a file that holds a whole store, and a store made of such a file."""

from __future__ import annotations

from pathlib import Path

from rota.protocol.limits import GENERATIONS_RAISED
from rota.storage.backup_files import named, new_backup, read_manifest
from rota.storage.backup_postgres import dump_postgres, restore_postgres
from rota.storage.backup_sqlite import copy_sqlite, refuse_own_file, restore_sqlite
from rota.storage.objects import describe, refuse_differences
from rota.storage.restored import Replaced
from rota.storage.urls import SqliteLocation, parse_store_url


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
