"""The store in memory that stands for a database in tests of what calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rota.group.rows import ShardImage, SideCommit
from rota.replica.ports import Floor, JournalEvent, Renewal, Replica, ShardBatch, ShardClaim, ShardOwner
from rota.storage.memory import MemoryTables


class MemoryStore:
    """`ShardStore` on `MemoryTables`. It never waits; closing it leaves the tables as they are."""

    has_side_door = True

    def __init__(self, clock_ms: Callable[[], int], *, tables: MemoryTables | None = None) -> None:
        self.tables = tables if tables is not None else MemoryTables(clock_ms)

    @property
    def incarnation(self) -> str:
        return self.tables.incarnation

    async def open(self, shard_count: int) -> None:
        self.tables.open(shard_count)

    async def close(self) -> None:
        """Do nothing: the tables stay."""

    async def ping(self) -> None:
        """Always there."""

    async def register(self, replica: Replica, ttl_ms: int) -> list[Replica]:
        return self.tables.register(replica, ttl_ms)

    async def deregister(self, replica_id: str) -> None:
        self.tables.deregister(replica_id)

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
        return self.tables.claim(shard_ids, replica_id, address, lease_ms, steal=steal, known_epochs=known_epochs)

    async def raise_floors(self, floors: Mapping[int, Floor]) -> None:
        self.tables.raise_floors(floors)

    async def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        return self.tables.renew(claims, replica_id, lease_ms)

    async def confirm(self, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        return self.tables.confirm(claims, replica_id)

    async def release(self, claims: Sequence[ShardClaim], replica_id: str) -> None:
        self.tables.release(claims, replica_id)

    async def owners(self) -> list[ShardOwner]:
        return self.tables.owners()

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        return [self.tables.load(shard_id) for shard_id in shard_ids]

    async def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        return self.tables.append(batches)

    async def side_commits(self, shard_ids: Sequence[int]) -> list[SideCommit]:
        return self.tables.side_commits(shard_ids)

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        return self.tables.read_events(shard_id, after_seq, limit, namespace=namespace, group_id=group_id)
