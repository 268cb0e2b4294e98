"""Group commit: what all shards decided while one transaction was on its way goes out in the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import groupby

from rota.observability import tracing
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
        self._asking: dict[ShardHost, list[asyncio.Future[bool]]] = {}
        self._ended = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def want(self, host: ShardHost) -> None:
        """The host has something to write."""
        self._waiting[host] = None
        self._idle.clear()
        self._wake.set()

    async def take_in(self, host: ShardHost) -> bool:
        """Return once the shard knows what users' own transactions have committed until now.

        By then, what it had decided before this call is durable, too. False where the store does not answer.
        """
        if self._ended:
            return False
        known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asking.setdefault(host, []).append(known)
        self._idle.clear()
        self._wake.set()
        return await known

    async def flush(self) -> None:
        """Wait until nothing is waiting to be written."""
        await self._idle.wait()

    async def run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._round()
        finally:
            self._ended = True
            _answer(self._asking, known=False)

    async def _round(self) -> None:
        hosts, self._waiting = [h for h in self._waiting if not h.dropped], {}
        asking, self._asking = self._asking, {}
        try:
            if hosts:
                await self._commit({host: host.take_batch() for host in hosts})
            # Between two writes: `Shard.take_in` counts on none being on its way.
            _answer(asking, known=bool(asking) and await self._take_in(list(asking)))
        finally:
            _answer(asking, known=False)
        if not self._waiting and not self._asking:
            self._idle.set()

    async def _take_in(self, asking: list[ShardHost]) -> bool:
        hosts = {host.shard_id: host for host in asking if not host.dropped}
        try:
            commits = await self._store.side_commits(sorted(hosts))
        except StoreUnavailable:
            return False
        for shard_id, found in groupby(commits, key=lambda commit: commit.shard_id):
            hosts[shard_id].take_in(list(found))
        return True

    async def _append(self, batches: dict[ShardHost, ShardBatch]) -> set[int]:
        """The shards that somebody else owns by now. One span, linked to the calls that this makes durable."""
        spans = tracing.spans
        if spans is None:
            return set(await self._store.append(list(batches.values())))
        links = [link for host in batches for link in host.take_links()]
        with spans.within("commit", tracing.Kind.CLIENT, links=links) as span:
            span.note("rota.shards", len(batches))
            span.note("rota.events", sum(len(batch.events) for batch in batches.values()))
            refused = set(await self._store.append(list(batches.values())))
            if refused:
                span.failed("the shard belongs to somebody else")
            return refused

    async def _commit(self, batches: dict[ShardHost, ShardBatch]) -> None:
        started = time.perf_counter()
        try:
            refused = await self._append(batches)
        except StoreUnavailable as error:
            self._telemetry.on_store_failed("commit")
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


def _answer(asking: Mapping[ShardHost, list[asyncio.Future[bool]]], *, known: bool) -> None:
    for futures in asking.values():
        for future in futures:
            if not future.done():
                future.set_result(known)
