"""Keeps the gate of a shard (ADR 15) open for the shard's owner.

Transactions of users pass the gate while they commit, which takes milliseconds. A session may stay there longer: one
whose own deferred trigger sleeps, or one that holds an advisory lock of the same key, which every role may take. The
owner's append waits for it, and all groups of the shard wait for the append. So sessions in the way of an append are
terminated after `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from sqlalchemy import Row, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.storage.errors import sqlstate
from rota.storage.schema import FENCE_GATE

PATIENCE_S = 0.5
"""So long an append waits for its gate, and a transaction that commits for an append (`rota.fence_at_commit`)."""

NO_RIGHT = "42501"

OnTerminated = Callable[[str], None]

_log = logging.getLogger(__name__)

# Sessions of this service are left alone: their statements end at their own time-outs.
_HOLDERS = text(
    """
    SELECT DISTINCT holder.pid, session.usename AS role, session.application_name AS application,
        CAST(waiter.objid AS bigint) AS shard_id
    FROM pg_locks AS waiter
    JOIN pg_stat_activity AS owner ON owner.pid = waiter.pid
    JOIN pg_locks AS holder USING (locktype, database, classid, objid, objsubid)
    JOIN pg_stat_activity AS session ON session.pid = holder.pid
    WHERE locktype = 'advisory' AND classid = :gate AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND NOT waiter.granted AND waiter.waitstart < clock_timestamp() - make_interval(secs => :patience_s)
        AND owner.usename = current_user AND owner.application_name = 'rota'
        AND holder.granted AND (session.usename <> current_user OR session.application_name <> 'rota')
    """
)
_TERMINATE = text("SELECT pg_terminate_backend(:pid)")


class Gate:
    """Terminates sessions that hold a gate while an append waits for it.

    `transaction` opens a transaction on another connection than the append's. `on_terminated` is called with the role
    of each session that was terminated.
    """

    def __init__(
        self,
        transaction: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
        on_terminated: OnTerminated | None = None,
    ) -> None:
        self._transaction = transaction
        self._on_terminated = on_terminated
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """An append: if it takes longer than `PATIENCE_S`, sessions that hold its gate are terminated."""
        ended = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._begin, ended)
        try:
            yield
        finally:
            ended.set()
            timer.cancel()

    async def close(self) -> None:
        """Wait for transactions in progress: they end by their timeout."""
        await asyncio.gather(*self._tasks)

    def _begin(self, ended: asyncio.Event) -> None:
        task = asyncio.create_task(self._open(ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, ended: asyncio.Event) -> None:
        """Terminate holders until the append has ended."""
        try:
            while not ended.is_set():
                await self._terminate_holders()
                await asyncio.sleep(PATIENCE_S / 2)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            _log.warning("sessions that hold the gate of a shard cannot be read", extra={"error": str(error)})

    async def _terminate_holders(self) -> None:
        values = {"gate": FENCE_GATE, "patience_s": PATIENCE_S * 0.9}
        async with self._transaction() as connection:
            holders = (await connection.execute(_HOLDERS, values)).all()
        for holder in holders:
            await self._terminate(holder)

    async def _terminate(self, holder: Row[tuple[int, str, str, int]]) -> None:
        details = {"role": holder.role, "application": holder.application, "shard_id": holder.shard_id}
        try:
            async with self._transaction() as connection:
                await connection.execute(_TERMINATE, {"pid": holder.pid})
        except SQLAlchemyError as error:
            if sqlstate(error) != NO_RIGHT:
                raise
            _log.error(
                "a session holds the gate of a shard and cannot be terminated: grant pg_signal_backend", extra=details
            )
            return
        _log.warning("a session that held the gate of a shard was terminated", extra=details)
        if self._on_terminated is not None:
            self._on_terminated(holder.role)
