"""The console's port to the store, for data that no call of the protocol returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rota.core.access.sessions import SessionRecord
from rota.core.replica.ports import JournalEvent, ShardOwner


class ConsoleStore(Protocol):
    """The store. Every method raises `StoreUnavailable` when the store cannot answer. Only sessions are written."""

    async def namespaces(self) -> list[str]:
        """Return the namespaces that have groups or topics, ordered by name."""

    async def owners(self) -> Sequence[ShardOwner]:
        """Return every shard that was ever claimed, with its owner."""

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        """Return journal lines with `seq > after_seq` in order, of one group if it is named."""

    async def add_session(self, record: SessionRecord, now_ms: int) -> None:
        """Store a session of the console. If its caller has too many, the oldest ends."""

    async def read_session(self, digest: str) -> SessionRecord | None:
        """Return the session with that digest; None if it has ended."""

    async def end_session(self, digest: str) -> None:
        """Remove the session with that digest, if it exists."""
