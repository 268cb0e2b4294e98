"""The owner of each shard: reading it from the store, once for all that wait, and waiting until a shard has one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rota.replica.forwarding import POLL_MS
from rota.replica.known_owners import KnownOwners
from rota.replica.ports import ShardStore, StoreUnavailable
from rota.runtime.clock import Clock


class Directory(KnownOwners):
    """The known owners, and the way to read them again."""

    def __init__(self, store: ShardStore, clock: Clock, replica_id: str, shard_count: int) -> None:
        super().__init__(replica_id, shard_count)
        self._store = store
        self._clock = clock
        self._arrival = asyncio.Event()
        self._turn = asyncio.Lock()
        self._looks = 0
        self.read_ms = -POLL_MS

    async def look(self, *, unless_within_ms: int = 0) -> None:
        """Look at the store again. All that ask while a look is under way share the next one."""
        asked_at = self._looks
        async with self._turn:
            now_ms = self._clock.monotonic_ms()
            if self._looks == asked_at and now_ms - self.read_ms >= unless_within_ms:
                self._looks, self.read_ms = self._looks + 1, now_ms
                asked = self.memory.ask()
                owners = await self._store.owners()
                self.update(owners, now_ms, self._clock.monotonic_ms(), asked)

    def note_arrival(self) -> None:
        """A shard is in memory here now."""
        self._arrival.set()
        self._arrival = asyncio.Event()

    async def read_for_waiting(self, until_ms: int) -> None:
        """Read the owners as a call asks for that waits for one: see `forwarding.ReadOwners`."""
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(self._left_s(until_ms)):
                await self.look(unless_within_ms=POLL_MS)

    async def await_arrival(self, until_ms: int) -> None:
        """Return once a shard is loaded here, or at `until_ms`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._left_s(until_ms)):
                await self._arrival.wait()

    def _left_s(self, until_ms: int) -> float:
        return max(0, until_ms - self._clock.monotonic_ms()) / 1000
