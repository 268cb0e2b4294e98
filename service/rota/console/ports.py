"""What the console needs of the store, beside the coordinator: what no call of the protocol tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rota.runtime.ports import JournalEvent, ShardOwner


class ConsoleStore(Protocol):
    """Read only; every method raises `StoreUnavailable` when the store cannot answer."""

    async def namespaces(self) -> list[str]:
        """The namespaces that have groups, ordered by name."""

    async def owners(self) -> Sequence[ShardOwner]:
        """Every shard that was ever claimed, and who holds it."""

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        """Journal lines with `seq > after_seq` in order, of one group where it is named."""
