"""The file of an embedded store: one service uses it, it is the same file all the while, and no stranger reads it.

A lock says that one service uses it. It ends with its process, however that ends.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.replica.ports import Floor, StoreLost, StoreRefused
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import GENERATIONS_RAISED
from rota.storage.backup_files import give_to_owner_of
from rota.storage.incarnation import highest_in, read_incarnation, start_again
from rota.storage.schema import shards

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_MOST_BYTES = 4_096
_NOTE_BYTES = 160
"""Each note takes as much, so that it takes the place of the one before it in one write."""
_OWNER_ONLY = 0o600
_OF_OTHERS = 0o006
"""The group is left out: to share the files with one is a decision that was made for this store."""
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_log = logging.getLogger(__name__)
_NOTHING = Floor(0, 0)


class FileLock:
    """An exclusive lock on `PATH.lock`, held from `acquire` to `release`.

    While it is held no other service can write the store, so its holder knows that every
    former owner of a shard is gone. The file stays when the lock is released: to delete it would let two
    processes lock two files of one name. It holds a note, by which a store that was deleted is missed.
    """

    def __init__(self, database: Path) -> None:
        # Two names of one file must meet at one lock.
        self._database = database.resolve()
        self.path = Path(f"{self._database}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise `StoreRefused`; never waits."""
        descriptor = self._opened()
        try:
            _try_lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise StoreRefused(f"another service is using this store (it holds the lock {self.path})") from error
        self._descriptor = descriptor

    def _opened(self) -> int:
        """A new lock is the database's owner's, as SQLite's own files are; one that is there stays whose it is."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        except FileExistsError:
            return os.open(self.path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
        with suppress(OSError):
            give_to_owner_of(descriptor, self._database)
        return descriptor

    def confirm(self, note: str) -> None:
        """Make sure that the lock is the one of that name: a cleaner of old files may have deleted it.

        It is taken again then, with this note. `StoreRefused` if another service was quicker: call again later.
        """
        if self._descriptor is not None:
            try:
                if os.path.samestat(os.fstat(self._descriptor), self.path.stat()):
                    return
            except FileNotFoundError:
                pass
            _log.warning("the lock %s was deleted or replaced: another service may have opened the store", self.path)
            self.release()
        self.acquire()
        self.write_note(note)

    @property
    def note(self) -> str:
        """The text that this process or an earlier one wrote into the lock's file."""
        assert self._descriptor is not None, "the lock is not held"
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, _MOST_BYTES).decode(errors="replace").strip()

    def write_note(self, text: str, *, is_synced: bool = True) -> None:
        """Replace the note. Without a sync, a loss of power may bring an earlier one back."""
        assert self._descriptor is not None, "the lock is not held"
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, f"{text:<{_NOTE_BYTES - 1}}\n".encode())
        os.ftruncate(self._descriptor, _NOTE_BYTES)
        if is_synced:
            os.fsync(self._descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


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
        """None if there is no note. Of a damaged one the incarnation alone is believed."""
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

    SQLite goes on writing into a file that was deleted or replaced by another, the log included: these writes are lost
    at the next restart. So a write counts only after a `check`. Without the index of the log, processes do not see each
    other's writes and locks: each writes over what the others have written, such as a token's revocation.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path)
        self._opened: os.stat_result | None = None
        self._log, self._index = (f"{path.resolve()}{suffix}" for suffix in ("-wal", "-shm"))
        self._opened_log: os.stat_result | None = None
        self._opened_index: os.stat_result | None = None
        self._noted = ""

    def open(self, hint: str) -> None:
        """Take the lock. `StoreRefused` if there is no such file, or another service may use it."""
        if not self._path.exists():
            raise StoreRefused(f"there is no store at {self._path}: {hint}")
        opened = self._path.stat()
        if opened.st_nlink > 1:
            raise StoreRefused(
                f"{self._path} has {opened.st_nlink} names (hard links): a service on each of them would not see the "
                "other one's lock. Delete the other names"
            )
        if _is_mount(self._path):
            raise StoreRefused(
                f"{self._path} is mounted as a single file: its log and its lock stay behind when this mount ends, and "
                "a service at the file's other name sees neither. Mount its folder"
            )
        self._lock.acquire()
        self._noted = self._lock.note
        self._opened = opened
        if opened.st_mode & _OF_OTHERS:
            _log.warning("other users of this machine can read the store %s: chmod 600 its files", self._path)

    def keep_log(self) -> None:
        """From now on the log, and its index, is the one that is there: a connection is open that keeps SQLite from
        deleting them.
        """
        self._opened_log, self._opened_index = os.stat(self._log), os.stat(self._index)

    @property
    def note(self) -> Note | None:
        """The note of the last service that had the store open, or this one's; None if there was none."""
        return Note.parse(self._noted)

    def write_note(self, note: Note, *, is_synced: bool = True) -> None:
        """Say how the store stands, so that it is missed when its file is deleted, or an earlier copy is put there."""
        if self._noted != str(note):
            self._lock.write_note(str(note), is_synced=is_synced)
            self._noted = str(note)

    def check(self) -> None:
        """Raise `StoreLost` where a file is not the one that was opened, or another service may use it."""
        assert self._opened is not None, "the store is not open"
        if not _is_at(self._path, self._opened):
            raise StoreLost(
                f"the file {self._path} was deleted or replaced while this service used it: nothing is accepted any "
                "more. Put the right file there, and restart this service"
            )
        if self._opened_log is not None and not _is_at(self._log, self._opened_log):
            raise StoreLost(
                f"the file {self._log} was deleted or replaced while this service used it: nothing is accepted any "
                "more. Stop this service with SIGTERM, which saves its writes, and start it again"
            )
        if self._opened_index is not None and not _is_at(self._index, self._opened_index):
            raise StoreLost(
                f"the file {self._index} was deleted or replaced while this service used it: nothing is accepted any "
                "more. Kill this service (SIGKILL), and start it again: all writes are in the log"
            )
        try:
            self._lock.confirm(self._noted)
        except StoreRefused as error:
            raise StoreLost(str(error)) from error

    def close(self) -> None:
        self._opened_log = self._opened_index = None
        self._lock.release()


def _is_mount(path: Path) -> bool:
    """Whether this very file is the place of a mount, as Linux lists them."""
    try:
        mounts = _MOUNTS.read_bytes().splitlines()
    except OSError:  # Another system.
        return False
    places = (_ESCAPED.sub(lambda code: bytes((int(code[1], 8),)), line.split()[4]) for line in mounts)
    return os.fsencode(path.resolve()) in places


def _is_at(path: str | Path, opened: os.stat_result) -> bool:
    try:
        return os.path.samestat(opened, os.stat(path))
    except OSError:
        return False


def make_file(path: Path, lock: FileLock) -> None:
    """Make the file of a new store, for its owner alone. SQLite gives its other files the same rights.

    Raises:
        StoreRefused: There was a store, whose file is gone or empty.
    """
    if path.exists() and path.stat().st_size:
        return
    note = read_note(lock)
    if note is not None:
        stands = "empty" if path.exists() else "gone"
        raise StoreRefused(
            f"there was a store at {path} (incarnation {note.incarnation}), and its file is {stands}. Restore it with "
            f"`rota db restore`; or, to begin with an empty store, delete {lock.path}"
        )
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY))


async def read_length(connection: AsyncConnection) -> int:
    """How many lines the journal ever had, those of all shards together."""
    counted = select(func.sum(shards.c.last_seq)).where(shards.c.shard_id != NO_SHARD)
    return int(await connection.scalar(counted) or 0)


async def read_standing(connection: AsyncConnection) -> Note:
    """The note that means the store as this transaction sees it."""
    return Note(await read_incarnation(connection), await read_length(connection), await highest_in(connection))


async def recognise(connection: AsyncConnection, note: Note | None) -> bool:
    """Whether the store is an earlier state than its note says, or another store; raises its floors then.

    So is a store without a note with a shard that was claimed: a copy whose original may have gone on. What was granted
    since the note or the copy was made is not known, so the floors are raised well above the known values.
    """
    found = await read_standing(connection)
    if note is None:
        if not await connection.scalar(select(func.max(shards.c.claimed_epoch))):
            return False
        note = Note("")
    elif found.incarnation == note.incarnation and found.length >= note.length:
        return False
    incarnation = await start_again(connection, raise_by=GENERATIONS_RAISED, known=note.highest)
    _log.error(
        "the store went back to an earlier state, is another one, or is a copy without its lock's file: "
        "its generations were raised, and the changes since that state are lost",
        extra={
            "noted_incarnation": note.incarnation,
            "found_incarnation": found.incarnation,
            "incarnation": incarnation,
            "noted_lines": note.length,
            "found_lines": found.length,
            "generation_floor": (await highest_in(connection)).generation_id,
        },
    )
    return True
