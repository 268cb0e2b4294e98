"""The console's port to the store, for data that no call of the protocol returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rota.access.sessions import SessionRecord
from rota.replica.ports import JournalEvent, ShardOwner


class ConsoleStore(Protocol):
    """Every method raises `StoreUnavailable` when the store cannot answer. Only sessions are written."""

    async def namespaces(self) -> list[str]:
        """The namespaces that have groups or topics, ordered by name."""

    async def owners(self) -> Sequence[ShardOwner]:
        """Every shard that was ever claimed, with its owner."""

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        """Journal lines with `seq > after_seq` in order, of one group where it is named."""

    async def add_session(self, record: SessionRecord, now_ms: int) -> None:
        """Keep a session of the console. The oldest one of its caller ends if that has too many."""

    async def read_session(self, digest: str) -> SessionRecord | None:
        """The session of that name; None if it has ended."""

    async def end_session(self, digest: str) -> None:
        """Remove the session of that name, if there is one."""
