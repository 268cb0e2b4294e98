"""Group commit: what all shards decided while one transaction was on its way goes out in the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rota.runtime.host import ShardHost
from rota.runtime.ports import ShardBatch, ShardStore, StoreUnavailable
from rota.runtime.telemetry import Telemetry


class Committer:
    """Writes batches one transaction at a time. Run `run()` as a task that somebody awaits."""

    def __init__(self, store: ShardStore, telemetry: Telemetry, give_up: Callable[[ShardHost, str], None]) -> None:
        self._store = store
        self._telemetry = telemetry
        self._give_up = give_up
        self._waiting: dict[ShardHost, None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def want(self, host: ShardHost) -> None:
        """The host has something to write."""
        self._waiting[host] = None
        self._idle.clear()
        self._wake.set()

    async def flush(self) -> None:
        """Wait until nothing is waiting to be written."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            hosts, self._waiting = [h for h in self._waiting if not h.dropped], {}
            if hosts:
                await self._commit({host: host.take_batch() for host in hosts})
            if not self._waiting:
                self._idle.set()

    async def _commit(self, batches: dict[ShardHost, ShardBatch]) -> None:
        started = time.perf_counter()
        try:
            refused = set(await self._store.append(list(batches.values())))
        except StoreUnavailable as error:
            # It may have landed or not. Only a new claim, with a new epoch, finds out (reliability.md R3).
            for host in batches:
                self._give_up(host, f"a write has an unknown outcome: {error}")
            return
        events = sum(len(batch.events) for batch in batches.values())
        self._telemetry.on_commit(len(batches), events, time.perf_counter() - started)
        for host, batch in batches.items():
            if host.shard_id in refused:
                self._give_up(host, "the shard belongs to somebody else now")
            else:
                host.committed(batch)
