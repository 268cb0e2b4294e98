"""Directories for the data of servers, outside of pytest's own, which another user may not enter."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.support import reaper

NOBODY = 65534


def server_user() -> int | None:
    """The user of a server that refuses root: the system's `nobody` if we are root, otherwise ourselves."""
    return NOBODY if os.geteuid() == 0 else None


def make_server_directory(purpose: str) -> Path:
    """A new empty directory that `server_user` owns, removed at the latest when the test run is gone."""
    directory = Path(tempfile.mkdtemp(prefix=f"rota-{purpose}-", dir=_parent()))
    reaper.remember("directory", str(directory))
    hand_over(directory)
    return directory


def remove_server_directory(directory: Path) -> None:
    """Remove a directory from `make_server_directory` with all that is in it."""
    shutil.rmtree(directory, ignore_errors=True)
    reaper.forget("directory", str(directory))


def hand_over(path: Path) -> None:
    """Make `server_user` the owner of a path; nothing to do unless we are root."""
    user = server_user()
    if user is not None:
        os.chown(path, user, user)


def open_to_everyone(path: Path) -> bool:
    """Whether every user may enter the directories down to `path`, as a server of another user must."""
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def _parent() -> Path | None:
    """Where new directories go: the usual place, or /tmp if only root may enter that."""
    usual = Path(tempfile.gettempdir())
    return None if server_user() is None or open_to_everyone(usual / "new") else Path("/tmp")
