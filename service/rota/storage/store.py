"""The durable store: `ShardStore` on Postgres or SQLite, one code for both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from sqlalchemy import false, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.access.quotas import Stored
from rota.core.access.sessions import SessionRecord
from rota.core.access.tokens import TokenRecord
from rota.core.group.rows import ShardImage, SideCommit
from rota.core.replica.ports import (
    Floor,
    JournalEvent,
    Renewal,
    Replica,
    ShardBatch,
    ShardClaim,
    ShardOwner,
    StoreLost,
    StoreRefused,
    StoreUnavailable,
)
from rota.protocol.errors import check_in_journal
from rota.storage.access import add_session, end_session, note_uses, read_session, read_stored, read_tokens
from rota.storage.errors import UPGRADE_HINT, is_locked, store_errors
from rota.storage.gate import OnTerminated
from rota.storage.incarnation import fix_identity, read_incarnation
from rota.storage.leases import Leases, Replicas
from rota.storage.migrate import check_schema
from rota.storage.postgres import PostgresConnections
from rota.storage.rows import load_images, load_side_commits, read_events, read_namespaces
from rota.storage.schema import shards
from rota.storage.sqlite import SqliteConnections
from rota.storage.urls import SqliteLocation, parse_store_url

_log = logging.getLogger(__name__)


class SqlStore:
    """`ShardStore` on `sqlite:///…` or `postgresql://…`.

    A write (lease or append) that takes more than `write_timeout_ms` raises `StoreUnavailable`, and
    Postgres gives up its statements after that time, too: keep it below the lease. The reads that a renewal, a commit
    or the console's first page waits for (`owners`, `side_commits`, `namespaces`) end by then, too. `on_terminated`
    gets the role of each session that was terminated because it kept the gate of a shard (`gate.py`).
    """

    def __init__(
        self,
        url: str,
        *,
        write_timeout_ms: int = 3_000,
        read_timeout_ms: int = 30_000,
        on_terminated: OnTerminated | None = None,
    ) -> None:
        self.location = parse_store_url(url)
        self.incarnation = ""
        """Random id of this journal, known once the store is open: its sequence numbers mean nothing in another."""
        self.went_back = False
        """Whether the store was an earlier state of itself when it was opened, so that its floors were raised."""
        self._write_timeout_s = write_timeout_ms / 1000
        self._read_timeout_s = read_timeout_ms / 1000
        self._connections: SqliteConnections | PostgresConnections
        if isinstance(self.location, SqliteLocation):
            self._connections = SqliteConnections(self.location.path, write_timeout_ms=write_timeout_ms)
        else:
            self._connections = PostgresConnections(
                self.location,
                write_timeout_ms=write_timeout_ms,
                read_timeout_ms=read_timeout_ms,
                on_terminated=on_terminated,
            )
        self._is_in_use = False
        self._replicas = Replicas(self._connections.dialect)
        self._leases = Leases(self._connections.dialect)

    @property
    def has_side_door(self) -> bool:
        return self._connections.dialect == "postgresql"

    # --- opening and closing ------------------------------------------------------------------

    async def open(self, shard_count: int) -> None:
        try:
            with store_errors():
                await self._connections.open()
            async with self._reading() as connection:
                await check_schema(connection, self.location)
                await self._connections.check_rights(connection)
            async with self._writing() as connection:
                self.incarnation = await fix_identity(connection, shard_count)
                self.went_back = await self._connections.recognise(connection)
                if self.went_back:
                    self.incarnation = await read_incarnation(connection)
            try:
                await self.maintain()
            except StoreUnavailable as error:
                # A store on Postgres serves without its upkeep; the note of an embedded one belongs to its opening.
                if isinstance(self.location, SqliteLocation):
                    raise
                _log.warning(
                    "the journal's partitions were not made, the default one takes the lines: %s, which has no time "
                    "limit",
                    UPGRADE_HINT,
                    extra={"error": str(error)},
                )
        except BaseException:
            await self.close()
            raise
        self._is_in_use = True

    async def close(self) -> None:
        await self._connections.close()

    async def maintain(self) -> None:
        """Upkeep, to be called every few hours: makes the journal's partitions of the next days, or notes its end."""
        with store_errors(is_in_use=self._is_in_use):
            async with asyncio.timeout(self._read_timeout_s):
                await self._connections.maintain()

    async def ping(self) -> None:
        async with self._reading() as connection:
            await connection.scalar(select(1))

    async def needs_restart(self) -> bool:
        """Whether a new process could write to the store, to be asked when this one has failed for long.

        No other service has the file of an embedded store, so a lock on it that stays is taken for our own.
        """
        try:
            with store_errors():
                async with asyncio.timeout(self._write_timeout_s), self._connections.writing_anew() as connection:
                    # It changes no row, and waits for those who have locked the table.
                    await connection.execute(update(shards).where(false()).values(last_seq=0))
        except StoreLost:
            return True
        except (StoreUnavailable, StoreRefused) as error:
            return is_locked(error)
        return True

    # --- replicas and leases --------------------------------------------------------------------

    async def register(self, replica: Replica, ttl_ms: int) -> list[Replica]:
        async with self._writing() as connection:
            return await self._replicas.register(connection, replica, ttl_ms)

    async def deregister(self, replica_id: str) -> None:
        async with self._writing() as connection:
            await self._replicas.deregister(connection, replica_id)

    async def claim(
        self,
        shard_ids: Sequence[int],
        replica_id: str,
        address: str,
        lease_ms: int,
        *,
        steal: bool = False,
        known_epochs: Mapping[int, int] | None = None,
    ) -> list[ShardClaim]:
        if not shard_ids:
            return []
        async with self._writing() as connection:
            return await self._leases.claim(
                connection, shard_ids, replica_id, address, lease_ms, steal=steal, known_epochs=known_epochs
            )

    async def raise_floors(self, floors: Mapping[int, Floor]) -> None:
        if floors:
            async with self._writing() as connection:
                await self._leases.raise_floors(connection, floors)

    async def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        if not claims:
            return []
        async with self._writing() as connection:
            return await self._leases.renew(connection, claims, replica_id, lease_ms)

    async def confirm(self, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        if not claims:
            return []
        async with self._writing(self._connections.single()) as connection:
            return await self._leases.confirm(connection, claims, replica_id)

    async def release(self, claims: Sequence[ShardClaim], replica_id: str) -> None:
        if claims:
            async with self._writing() as connection:
                await self._leases.release(connection, claims, replica_id)

    async def owners(self) -> list[ShardOwner]:
        async with self._reading(self._write_timeout_s) as connection:
            await self._connections.note_length(connection)
            return await self._leases.owners(connection)

    # --- state and journal --------------------------------------------------------------------

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        async with self._reading() as connection:
            return await load_images(connection, shard_ids)

    async def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        if not batches:
            return []
        with store_errors(is_in_use=self._is_in_use):
            async with asyncio.timeout(self._write_timeout_s):
                written = await self._connections.append(batches)
        return [batch.shard_id for batch in batches if batch.shard_id not in written]

    async def side_commits(self, shard_ids: Sequence[int]) -> list[SideCommit]:
        if not self.has_side_door or not shard_ids:
            return []
        async with self._reading(self._write_timeout_s) as connection:
            return await load_side_commits(connection, shard_ids)

    async def namespaces(self) -> list[str]:
        """The namespaces that have groups or topics, ordered by name."""
        async with self._reading(self._write_timeout_s) as connection:
            return await read_namespaces(connection)

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        async with self._reading(isolated=False) as connection:
            names = {"namespace": namespace, "group_id": group_id}
            page = await read_events(connection, shard_id, after_seq, limit, **names)
        # After the transaction, for an exception in it would cost its connection.
        check_in_journal(after_seq, page.first_seq, page.last_seq, page.incarnation)
        return page.events

    async def count_lines(self) -> int:
        """The lines of the whole journal that are not pruned: the difference of their numbers, which have no gaps."""
        async with self._reading() as connection:
            lines = func.sum(shards.c.last_seq - shards.c.first_seq + 1)
            return int(await connection.scalar(select(lines)) or 0)

    # --- access ---------------------------------------------------------------------------------

    async def read_tokens(self) -> list[TokenRecord]:
        async with self._reading() as connection:
            return await read_tokens(connection)

    async def note_token_uses(self, used_at_ms: Mapping[str, int]) -> None:
        async with self._writing() as connection:
            await note_uses(connection, used_at_ms)

    async def add_session(self, record: SessionRecord, now_ms: int) -> None:
        async with self._writing() as connection:
            await add_session(connection, record, now_ms)

    async def read_session(self, digest: str) -> SessionRecord | None:
        async with self._reading() as connection:
            return await read_session(connection, digest)

    async def end_session(self, digest: str) -> None:
        async with self._writing() as connection:
            await end_session(connection, digest)

    async def read_stored(self, namespace: str, *, counts_bytes: bool) -> Stored:
        async with self._reading() as connection:
            return await read_stored(connection, namespace, counts_bytes=counts_bytes)

    # --- transactions -------------------------------------------------------------------------

    @asynccontextmanager
    async def _writing(
        self, transaction: AbstractAsyncContextManager[AsyncConnection] | None = None
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction with a deadline. When the block has ended without an exception, its writes are durable.

        A cancelled or late one leaves a connection in an unknown state; SQLAlchemy then closes it
        instead of handing it to the next caller.
        """
        with store_errors(is_in_use=self._is_in_use):
            async with asyncio.timeout(self._write_timeout_s), transaction or self._connections.writing() as connection:
                yield connection

    @asynccontextmanager
    async def _reading(
        self, timeout_s: float | None = None, *, isolated: bool = True
    ) -> AsyncIterator[AsyncConnection]:
        with store_errors(is_in_use=self._is_in_use):
            transaction = self._connections.reading(isolated=isolated)
            async with asyncio.timeout(timeout_s or self._read_timeout_s), transaction as connection:
                yield connection
