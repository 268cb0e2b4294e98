"""The owner of each shard: reading it from the store, once for all that wait, and waiting until a shard has one."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from contextlib import suppress

from rota.replica.known_owners import KnownOwners
from rota.replica.ports import ShardStore, StoreUnavailable
from rota.runtime.clock import Clock

LOOK_AGAIN_MS = 20


class Directory(KnownOwners):
    """The known owners, and the way to read them again. `here` are the shards that are in memory here."""

    def __init__(
        self, store: ShardStore, clock: Clock, replica_id: str, shard_count: int, here: Container[int]
    ) -> None:
        super().__init__(replica_id, shard_count)
        self._store = store
        self._clock = clock
        self._here = here
        self._arrival = asyncio.Event()
        self._turn = asyncio.Lock()
        self._looks = 0
        self.read_ms = -LOOK_AGAIN_MS

    async def look(self, *, unless_within_ms: int = 0) -> None:
        """Look at the store again. All that ask while a look is under way share the next one."""
        asked_at = self._looks
        async with self._turn:
            now_ms = self._clock.monotonic_ms()
            if self._looks == asked_at and now_ms - self.read_ms >= unless_within_ms:
                self._looks, self.read_ms = self._looks + 1, now_ms
                self.update(await self._store.owners(), now_ms)

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
            if shard_id in self._here or self.peer_of(shard_id) is not None:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_MS / 1000):
                    await self._arrival.wait()
