"""Files of backups: whole or not there, for their owner alone, and never in the place of another file.

Each has a manifest beside it, with its digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

import rota
from rota.core.replica.ports import StoreRefused

_OWNER_ONLY = 0o600


def named(target: Path, suffix: str) -> Path:
    """The file to make: in a folder, one with the moment (UTC) in its name."""
    return target / f"rota-{moment()}{suffix}" if target.is_dir() else target


def moment() -> str:
    """The present moment, as part of a file's name."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def manifest_of(backup: Path) -> Path:
    """The path of a backup's manifest, beside the file that a symbolic link leads to."""
    return Path(f"{backup.resolve()}.json")


@contextmanager
def new_backup(target: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Gives a file as `new_file` does, and facts for the manifest that is published with it."""
    facts: dict[str, Any] = {}
    with new_file(manifest_of(target)) as manifest, new_file(target) as file:
        yield file, facts
        made = {"made_at": moment(), "release": rota.__version__, "sha256": _sha256(file)}
        manifest.write_text(json.dumps({**made, **facts}, indent=2) + "\n")


def read_manifest(backup: Path) -> dict[str, Any] | None:
    """The manifest of a backup, which holds the file's digest; None if there is no manifest.

    Raises:
        StoreRefused: The file is not the one that the manifest describes.
    """
    path = manifest_of(backup)
    if not path.is_file() or not backup.is_file():
        return None
    try:
        manifest = json.loads(path.read_bytes())
        stated = manifest["sha256"]
    except (ValueError, TypeError, LookupError) as error:
        raise StoreRefused(f"{path} is damaged: it is no manifest of a backup. Nothing was changed") from error
    if stated != _sha256(backup):
        raise StoreRefused(
            f"{backup} was changed after it was made: its SHA-256 is not the one in {path}. Nothing was changed: use "
            "another backup"
        )
    return manifest  # type: ignore[no-any-return]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Gives the path of an empty file beside `target`, which takes that name when the block has ended without an error.

    Raises:
        StoreRefused: There is a file of that name.
    """
    target = target.absolute()
    refuse_existing(target)
    # Not by the process id, which is the same in each container: one that was killed must not stop the next one.
    partial = target.with_name(f".{target.name}.{token_hex(4)}.partial")
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
    try:
        yield partial
        sync(partial)
        _publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    sync(target.parent)


def refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise StoreRefused(f"{target} is there already, and no backup takes the place of a file: name another one")
    if not target.parent.is_dir():
        raise StoreRefused(f"there is no folder {target.parent}")


def sync(path: Path) -> None:
    """Return when the file, or the names in the folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner_of(file: Path | int, like: Path) -> None:
    """If root runs this, the server may run as another user: give it a file, or its descriptor, that it must open."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        owner = like.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


def _publish(partial: Path, target: Path) -> None:
    """Give the file its name. A hard link never replaces a file; without links there is a moment in which one would."""
    try:
        os.link(partial, target)
    except FileExistsError as error:
        raise StoreRefused(f"{target} was made by another process meanwhile") from error
    except OSError:  # A file system without links.
        refuse_existing(target)
        partial.rename(target)
