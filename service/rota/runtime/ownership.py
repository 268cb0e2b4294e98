"""Claiming shards, loading them, keeping their leases, and letting go of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from rota.protocol.limits import Limits
from rota.runtime.clock import Clock
from rota.runtime.committer import Committer
from rota.runtime.host import ShardHost
from rota.runtime.ports import JournalEvent, ShardClaim, ShardStore, StoreUnavailable
from rota.runtime.telemetry import Telemetry
from rota.runtime.timer_task import TimerTask

logger = logging.getLogger(__name__)

LOADING_AT_ONCE = 8


class Ownership:
    """Which shards are in memory here. `run()` keeps the leases and takes what is free, until cancelled."""

    def __init__(
        self,
        store: ShardStore,
        clock: Clock,
        limits: Limits,
        telemetry: Telemetry,
        timers: TimerTask,
        *,
        replica_id: str,
        address: str,
        shard_count: int,
        lease_ms: int,
        steal: bool,
        on_events: Callable[[int, list[JournalEvent]], None],
    ) -> None:
        self.hosts: dict[int, ShardHost] = {}
        self.committer = Committer(store, telemetry, self.give_up)
        self._store = store
        self._clock = clock
        self._limits = limits
        self._telemetry = telemetry
        self._timers = timers
        self._replica_id = replica_id
        self._address = address
        self._shard_count = shard_count
        self._lease_ms = lease_ms
        self._steal = steal
        self._on_events = on_events
        self._wake = asyncio.Event()
        self.complete = asyncio.Event()
        """Set while every shard is in memory here."""

    def is_complete(self) -> bool:
        return len(self.hosts) == self._shard_count

    def give_up(self, host: ShardHost, reason: str) -> None:
        """Stop answering for a shard whose memory cannot be trusted; it is claimed and loaded again."""
        if self.hosts.get(host.shard_id) is host:
            del self.hosts[host.shard_id]
            self.complete.clear()
            logger.warning("shard dropped", extra={"shard_id": host.shard_id, "reason": reason})
            self._telemetry.on_shard_dropped(host.shard_id, host.claim.epoch, reason)
        host.drop(reason)
        self._wake.set()

    async def run(self) -> None:
        """Renew and acquire, a few times a lease, and at once after a shard was dropped."""
        while True:
            try:
                await self._renew()
                await self._acquire()
            except StoreUnavailable as error:
                logger.warning("the store does not answer", extra={"error": str(error)})
            self._wake.clear()
            await self._pause()

    async def release_all(self) -> None:
        """Let go of everything at once, so that nobody has to wait for a lease to run out."""
        claims = [host.claim for host in self.hosts.values()]
        for host in list(self.hosts.values()):
            host.drop("this replica is stopping")
        self.hosts.clear()
        if claims:
            await self._store.release(claims, self._replica_id)

    async def _pause(self) -> None:
        interval_s = self._lease_ms / 3 / 1000
        if not self.is_complete():
            interval_s = min(interval_s, 0.2)
        try:
            async with asyncio.timeout(interval_s):
                await self._wake.wait()
                # A store that keeps failing is asked again after a breath, not in a tight loop.
                await asyncio.sleep(0.02)
        except TimeoutError:
            pass

    async def _renew(self) -> None:
        if not self.hosts:
            return
        hosts = dict(self.hosts)
        sent_ms = self._clock.monotonic_ms()
        kept = set(await self._store.renew([h.claim for h in hosts.values()], self._replica_id, self._lease_ms))
        for shard_id, host in hosts.items():
            # A host that was dropped meanwhile stays dropped: this answer is about its old claim (R2).
            if shard_id not in kept:
                self.give_up(host, "the lease went to somebody else")
            elif not host.may_answer():
                # Nobody could heartbeat in the meantime, so every session has to start afresh.
                self.give_up(host, "the lease had run out before it was renewed")
            else:
                host.lease_until_ms = sent_ms + self._lease_ms

    async def _acquire(self) -> None:
        missing = [shard_id for shard_id in range(self._shard_count) if shard_id not in self.hosts]
        if not missing:
            return
        sent_ms = self._clock.monotonic_ms()
        claims = await self._store.claim(missing, self._replica_id, self._address, self._lease_ms, steal=self._steal)
        for some in _chunks(claims, LOADING_AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for claim in some:
                    group.create_task(self._load(claim, sent_ms + self._lease_ms))

    async def _load(self, claim: ShardClaim, lease_until_ms: int) -> None:
        started = time.perf_counter()
        try:
            image = await self._store.load(claim.shard_id)
        except StoreUnavailable as error:
            logger.warning("a shard could not be loaded", extra={"shard_id": claim.shard_id, "error": str(error)})
            return
        host = ShardHost(
            claim,
            image,
            self._limits,
            self._clock,
            replica_id=self._replica_id,
            lease_until_ms=lease_until_ms,
            set_timer=self._timers.set,
            want_commit=self.committer.want,
            give_up=self.give_up,
            on_events=self._on_events,
        )
        self.hosts[claim.shard_id] = host
        if self.is_complete():
            self.complete.set()
        seconds = time.perf_counter() - started
        self._telemetry.on_shard_loaded(claim.shard_id, claim.epoch, len(host.shard.groups), seconds)


def _chunks(claims: list[ShardClaim], size: int) -> Iterable[list[ShardClaim]]:
    return (claims[start : start + size] for start in range(0, len(claims), size))
