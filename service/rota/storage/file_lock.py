"""One service at a time on an embedded store: a lock that ends with its process, however it ends."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from rota.replica.ports import StoreRefused

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_log = logging.getLogger(__name__)
_MOST_BYTES = 4_096
_NOTE_BYTES = 160
"""Each note takes as much, so that it takes the place of the one before it in one write."""


class FileLock:
    """An exclusive lock on `PATH.lock`, held from `acquire` to `release`.

    While it is held no other service can write the store, so whoever holds it knows that every
    former owner of a shard is gone. The file stays when the lock is released: to delete it would let two
    processes lock two files of one name. It holds a note, by which a store that was deleted is missed.
    """

    def __init__(self, database: Path) -> None:
        # Two names of one file must meet at one lock.
        self.path = Path(f"{database.resolve()}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise `StoreRefused`; never waits."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _try_lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise StoreRefused(f"another service is using this store (it holds the lock {self.path})") from error
        self._descriptor = descriptor

    def confirm(self, note: str) -> None:
        """Make sure that the lock is the one of that name: a cleaner of old files may have deleted it.

        It is taken again then, with this note. `StoreRefused` where another service was quicker: call again later.
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
