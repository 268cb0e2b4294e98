"""The file of an embedded store: one service uses it, it is the same file all the while, and no stranger reads it."""

from __future__ import annotations

import os
from pathlib import Path

from rota.replica.ports import StoreRefused, StoreUnavailable
from rota.storage.file_lock import FileLock

_OWNER_ONLY = 0o600


class StoreFile:
    """A SQLite file and its lock, from `open` to `close`.

    SQLite goes on writing into a file that was deleted or replaced by another: these writes are lost at the next
    restart. So a write counts only after a `check`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path)
        self._opened: os.stat_result | None = None
        self._incarnation = ""

    def open(self, hint: str) -> None:
        """Take the lock. `StoreRefused` where there is no such file, or another service may use it."""
        if not self._path.exists():
            raise StoreRefused(f"there is no store at {self._path}: {hint}")
        opened = self._path.stat()
        if opened.st_nlink > 1:
            raise StoreRefused(
                f"{self._path} has {opened.st_nlink} names (hard links): a service on each of them would not see the "
                "other one's lock. Delete the other names"
            )
        self._lock.acquire()
        self._opened = opened

    def note(self, incarnation: str) -> None:
        """Leave a note of which store was here, so that it is missed where its file is deleted."""
        self._incarnation = incarnation
        if self._lock.note != incarnation:
            self._lock.write_note(incarnation)

    def check(self) -> None:
        """Raise `StoreUnavailable` where the file is not the one that was opened, or another service may use it."""
        assert self._opened is not None, "the store is not open"
        try:
            is_same = os.path.samestat(self._opened, self._path.stat())
        except OSError:
            is_same = False
        if not is_same:
            raise StoreUnavailable(
                f"the file {self._path} was deleted or replaced while this service used it: nothing is accepted any "
                "more. Put the right file there, and restart this service"
            )
        try:
            self._lock.confirm(self._incarnation)
        except StoreRefused as error:
            raise StoreUnavailable(str(error)) from error

    def close(self) -> None:
        self._lock.release()


def make_file(path: Path, lock: FileLock) -> None:
    """Make the file of a new store, for its owner alone. SQLite gives its other files the same rights.

    Raises:
        StoreRefused: There was a store, which is gone.
    """
    if path.exists():
        return
    if lock.note:
        raise StoreRefused(
            f"there was a store at {path} (incarnation {lock.note}), and its file is gone. Restore it; or, to begin "
            f"with an empty store, delete {lock.path}"
        )
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY))
