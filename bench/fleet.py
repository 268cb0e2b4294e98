"""Many Stable groups at once, in a coordinator that finds them in its store when it starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.groups import LIMITS, NAMESPACE, SESSION_TIMEOUT_MS, StableGroup
from rota.core.group.rows import ShardImage
from rota.core.group.shard import Shard
from rota.core.replica.ports import ShardStore
from rota.protocol.ids import shard_of
from rota.protocol.messages import CommitOffsets, Heartbeat, OffsetToCommit
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.runtime.telemetry import Telemetry
from rota.storage.store import SqlStore
from rota.testing.memory import MemoryStore

SHARDS = 64
LEASE_MS = 60_000
"""So long that a bench which holds the event loop up on a busy machine loses no shard."""


class Fleet:
    """`groups` groups of `size` members each: as the rows of their store, and as what their members send."""

    def __init__(self, groups: int, size: int, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
        self.shards = [Shard(shard_id, LIMITS) for shard_id in range(SHARDS)]
        self._groups = [self._a_group(f"g{number}", size, session_timeout_ms) for number in range(groups)]
        self.images = [shard.image() for shard in self.shards]

    def heartbeats(self) -> list[Heartbeat]:
        """One of each member."""
        return [heartbeat for group in self._groups for heartbeat in group.heartbeats()]

    def commits(self) -> list[CommitOffsets]:
        """One of each member, of a partition of its own."""
        return [
            CommitOffsets(
                NAMESPACE, group.group_id, group.group.generation_id, (OffsetToCommit("orders", n, 123_456),), member_id
            )
            for group in self._groups
            for n, member_id in enumerate(group.member_ids)
        ]

    def shard_of(self, heartbeat: Heartbeat) -> Shard:
        return self.shards[shard_of(NAMESPACE, heartbeat.group_id, SHARDS)]

    def _a_group(self, group_id: str, size: int, session_timeout_ms: int) -> StableGroup:
        shard = self.shards[shard_of(NAMESPACE, group_id, SHARDS)]
        return StableGroup(shard, group_id, size, session_timeout_ms=session_timeout_ms)


def _shown(images: Sequence[ShardImage], stored: Sequence[ShardImage]) -> list[ShardImage]:
    return [replace(images[image.shard_id], last_seq=image.last_seq) for image in stored]


class LoadedMemoryStore(MemoryStore):
    """A store in memory that holds a fleet."""

    def __init__(self, images: Sequence[ShardImage]) -> None:
        super().__init__(SystemClock().monotonic_ms)
        self._images = images

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        return _shown(self._images, await super().load(shard_ids))


class LoadedSqlStore(SqlStore):
    """A real store that shows a fleet when a shard is loaded, and then keeps all writes."""

    def __init__(self, url: str, images: Sequence[ShardImage]) -> None:
        super().__init__(url)
        self._images = images

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        return _shown(self._images, await super().load(shard_ids))


@asynccontextmanager
async def coordinator_of(
    store: ShardStore, *, clock: SystemClock | None = None, telemetry: Telemetry | None = None
) -> AsyncIterator[LocalCoordinator]:
    """A coordinator that has loaded every shard of `store`, which is closed behind it."""
    await store.open(SHARDS)
    try:
        async with LocalCoordinator(
            store, shard_count=SHARDS, limits=LIMITS, clock=clock, telemetry=telemetry, lease_ms=LEASE_MS, steal=True
        ) as coordinator:
            await coordinator.wait_until_ready()
            yield coordinator
    finally:
        await store.close()
