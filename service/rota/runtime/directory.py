"""Which replica holds which shard: what the store said at the last look, and waiting until somebody holds one."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from contextlib import suppress

from rota.runtime.clock import Clock
from rota.runtime.ports import Replica, ShardOwner, ShardStore, StoreUnavailable

LOOK_AGAIN_MS = 20
UNCLAIMED_MS = 100
"""What is free is looked at again after so long: it is due to somebody who was up a moment ago, and may be dead."""


class Directory:
    """What a replica knows of the others. `hosts` are the shards that are in memory here."""

    def __init__(
        self, store: ShardStore, clock: Clock, replica_id: str, shard_count: int, hosts: Container[int]
    ) -> None:
        self.owners: dict[int, ShardOwner] = {}
        """Every shard's owner, as of the last look."""
        self.peers: list[Replica] = []
        """The other replicas that are up."""
        self._store = store
        self._clock = clock
        self._replica_id = replica_id
        self._shard_count = shard_count
        self._hosts = hosts
        self._arrival = asyncio.Event()
        self._turn = asyncio.Lock()
        self._looks = 0
        self._looked_ms = -LOOK_AGAIN_MS

    async def look(self, *, unless_within_ms: int = 0) -> None:
        """Look at the store again. All who ask while somebody looks share the next look."""
        asked_at = self._looks
        async with self._turn:
            now_ms = self._clock.monotonic_ms()
            if self._looks == asked_at and now_ms - self._looked_ms >= unless_within_ms:
                self._looks, self._looked_ms = self._looks + 1, now_ms
                self.owners = {owner.shard_id: owner for owner in await self._store.owners()}

    def peer_of(self, shard_id: int) -> Replica | None:
        """The peer that holds a shard, if it is up and its lease was not over at the last look."""
        owner = self.owners.get(shard_id)
        if owner is None or owner.lease_left_ms <= 0:
            return None
        return next((peer for peer in self.peers if peer.replica_id == owner.replica_id), None)

    def is_free(self, shard_id: int) -> bool:
        """As far as this replica knows; whose it is, only the store decides."""
        owner = self.owners.get(shard_id)
        return owner is None or owner.lease_left_ms <= 0 or owner.replica_id == self._replica_id

    def next_free_ms(self) -> int | None:
        """When, by the monotonic clock, what is not here may become free. Who is up renews it long before."""
        elsewhere = (self.owners.get(shard_id) for shard_id in range(self._shard_count) if shard_id not in self._hosts)
        left = (owner.lease_left_ms if owner is not None else 0 for owner in elsewhere)
        return min((self._looked_ms + (left_ms if left_ms > 0 else UNCLAIMED_MS) for left_ms in left), default=None)

    def note_arrival(self) -> None:
        """A shard is in memory here now."""
        self._arrival.set()
        self._arrival = asyncio.Event()

    async def until_held(self, shard_id: int) -> None:
        """Return once the shard is in memory here, or the store names a peer that is up and holds it.

        However many wait, the store is asked once in `LOOK_AGAIN_MS`: a shard moves when everybody has most to do.
        """
        while True:
            with suppress(StoreUnavailable):
                await self.look(unless_within_ms=LOOK_AGAIN_MS)
            if shard_id in self._hosts or self.peer_of(shard_id) is not None:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_MS / 1000):
                    await self._arrival.wait()
