"""The lock of a lake in an object store: a lease, which ends by itself if its holder dies.

The lease is a Delta table without rows. A process takes it by committing the next number: of two that try, the object
store lets one create the next object of the log. The commit says until when the lease lasts, by the holder's clock; a
thread renews it. Clocks may be wrong and processes may pause, so a lease alone is not enough: a process that takes one
that was not released writes its number into every table first, and each commit of a table has its writer's number. So
a writer that was overtaken cannot commit anything.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rota.pipeline.failures import LakeBusy, LakeUnreachable
from rota.pipeline.places import reached

if TYPE_CHECKING:
    from deltalake import DeltaTable

LEASE = "rota-lease"
"""In the lock's table and in all others: the application that has the number of a lease as its transaction."""
LASTS_S = 60.0
_UNTIL = "rota.until_ms"
_HOLDER = "rota.holder"
_SCHEMA = pa.schema([pa.field("holder", pa.string())])
_SETTINGS = {"delta.logRetentionDuration": "interval 1 hours", "delta.checkpointInterval": "50"}


class Lease:
    """One process's view of the lock."""

    def __init__(self, url: str, *, lasts_s: float = LASTS_S, clock: Callable[[], float] = time.time) -> None:
        self.number = 0
        """The one that this process took last."""
        self._url = url
        self._lasts_s = lasts_s
        self._clock = clock
        self._holder = f"{socket.gethostname()} {os.getpid()}"

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold it; gives whether the holder before did not release it."""
        overtakes = self._take()
        over = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(over,), name="lease", daemon=True)
        renewing.start()
        try:
            yield overtakes
        finally:
            over.set()
            renewing.join()
            self._extend(0.0)

    def _take(self) -> bool:
        with reached(self._url):
            table = self._table()
            last = table.history(1)[0]
            until_s = int(last.get(_UNTIL, 0)) / 1000
            if until_s > self._clock():
                raise LakeBusy(f"another process ({last.get(_HOLDER)}) is writing to the tables beside {self._url}")
            self.number = (table.transaction_version(LEASE) or 0) + 1
            self._commit(table, self._lasts_s)
        return until_s > 0

    def _renew(self, over: threading.Event) -> None:
        while not over.wait(self._lasts_s / 3):
            self._extend(self._lasts_s)

    def _extend(self, seconds: float) -> None:
        """Let it last for so long from now, or end with 0 seconds.

        Where another process has taken it, the fence in the tables keeps this one from writing. Where the object store
        does not answer, the lease ends by itself.
        """
        with suppress(LakeBusy, LakeUnreachable), reached(self._url):
            table = self._table()
            if table.transaction_version(LEASE) == self.number:
                self._commit(table, seconds)

    def _commit(self, table: DeltaTable, seconds: float) -> None:
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import Transaction

        until_ms = int((self._clock() + seconds) * 1000) if seconds else 0
        properties = CommitProperties(
            custom_metadata={_UNTIL: str(until_ms), _HOLDER: self._holder},
            app_transactions=[Transaction(LEASE, self.number)],
        )
        try:
            table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise LakeBusy(f"another process has just taken the lock at {self._url}") from error

    def _table(self) -> DeltaTable:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import create_table_with_add_actions

        if not DeltaTable.is_deltatable(self._url):
            schema: Any = Schema.from_arrow(_SCHEMA)
            try:
                create_table_with_add_actions(self._url, schema, [], "error", configuration=_SETTINGS)
            except DeltaError as error:
                if not DeltaTable.is_deltatable(self._url):
                    raise LakeBusy(f"another process has just made the lock at {self._url}") from error
        return DeltaTable(self._url)
