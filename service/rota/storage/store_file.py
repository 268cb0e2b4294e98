"""The file of an embedded store: one service uses it, it is the same file all the while, and no stranger reads it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from rota.replica.ports import Floor, StoreRefused, StoreUnavailable
from rota.storage.file_lock import FileLock

_OWNER_ONLY = 0o600
_OF_OTHERS = 0o006
"""The group is left out: to share the files with one is a decision that was made for this store."""
_log = logging.getLogger(__name__)
_NOTHING = Floor(0, 0)


@dataclass(frozen=True, slots=True)
class Note:
    """What the lock's file says of the store: an earlier copy that is put in its place is known by it."""

    incarnation: str
    length: int = 0
    """Lines that its journal ever had, those of all shards together."""
    highest: Floor = _NOTHING
    """The highest numbers that it granted, or keeps from being granted."""

    @classmethod
    def parse(cls, text: str) -> Note | None:
        """None where there is no note. One of an earlier release names the incarnation alone."""
        incarnation, *numbers = text.split() or [""]
        if not incarnation:
            return None
        if len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
            return cls(incarnation)
        length, generation_id, epoch = map(int, numbers)
        return cls(incarnation, length, Floor(generation_id, epoch))

    def __str__(self) -> str:
        return f"{self.incarnation} {self.length} {self.highest.generation_id} {self.highest.epoch}"


def read_note(lock: FileLock) -> Note | None:
    return Note.parse(lock.note)


def write_note(lock: FileLock, note: Note) -> None:
    lock.write_note(str(note))


class StoreFile:
    """A SQLite file and its lock, from `open` to `close`.

    SQLite goes on writing into a file that was deleted or replaced by another: these writes are lost at the next
    restart. So a write counts only after a `check`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path)
        self._opened: os.stat_result | None = None
        self._noted = ""

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
        self._noted = self._lock.note
        self._opened = opened
        if opened.st_mode & _OF_OTHERS:
            _log.warning("other users of this machine can read the store %s: chmod 600 its files", self._path)

    @property
    def note(self) -> Note | None:
        """The note of the last service that had the store open, or this one's; None where there was none."""
        return Note.parse(self._noted)

    def write_note(self, note: Note, *, is_synced: bool = True) -> None:
        """Say how the store stands, so that it is missed where its file is deleted, or an earlier copy is put there."""
        if self._noted != str(note):
            self._lock.write_note(str(note), is_synced=is_synced)
            self._noted = str(note)

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
            self._lock.confirm(self._noted)
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
    note = read_note(lock)
    if note is not None:
        raise StoreRefused(
            f"there was a store at {path} (incarnation {note.incarnation}), and its file is gone. Restore it with "
            f"`rota db restore`; or, to begin with an empty store, delete {lock.path}"
        )
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY))
