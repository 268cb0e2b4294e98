"""One service at a time on an embedded store: a lock that ends with its process, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from rota.replica.ports import StoreRefused

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileLock:
    """An exclusive lock on `PATH.lock`, held from `acquire` to `release`.

    While it is held no other service can write the store, so whoever holds it knows that every
    former owner of a shard is gone. The file stays when the lock is released: to delete it would let two
    processes lock two files of one name.
    """

    def __init__(self, database: Path) -> None:
        # Two names of one file must meet at one lock.
        self._path = Path(f"{database.resolve()}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise `StoreRefused`; never waits."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _try_lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise StoreRefused(f"another service is using this store (it holds the lock {self._path})") from error
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
