"""Periodic maintenance of a replica's shards, independent of calls."""

from __future__ import annotations

import asyncio

from rota.replica.prerequisites import SWEEP_INTERVAL_MS, TAKE_IN_INTERVAL_MS
from rota.runtime.clock import Clock
from rota.runtime.host import ShardHost
from rota.runtime.ownership import Ownership


class Upkeep:
    """Run `run()` as a task that its owner awaits."""

    def __init__(self, ownership: Ownership, clock: Clock, *, has_side_door: bool) -> None:
        self._ownership = ownership
        self._clock = clock
        self._has_side_door = has_side_door

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_sweeping())
            if self._has_side_door:
                tasks.create_task(self._keep_taking_in())

    async def _keep_taking_in(self) -> None:
        """Bring commits of users' own transactions into the journal, also while no call needs them."""
        while True:
            await asyncio.sleep(TAKE_IN_INTERVAL_MS / 1_000)
            committer = self._ownership.committer
            await asyncio.gather(*(committer.take_in(host) for host in self._ownership.hosts.values()))

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_MS / 1_000)
            await self.sweep_all()

    async def sweep_all(self) -> None:
        """Expire offsets and empty groups, in every shard that is here."""
        for host in list(self._ownership.hosts.values()):
            await self._sweep(host)

    async def _sweep(self, host: ShardHost) -> None:
        began_ms = self._clock.now_ms()
        if not self._has_side_door:
            host.sweep()
            await asyncio.sleep(0)
        elif await self._ownership.committer.take_in(host):
            host.sweep(began_ms)
