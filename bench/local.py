"""The runtime without a transport: heartbeats through the coordinator, beside the core that decides them."""

from __future__ import annotations

import asyncio
import time

from bench.figures import Effort, Figure, transposed
from bench.fleet import Fleet, LoadedMemoryStore, coordinator_of
from bench.groups import CALL
from rota.protocol.messages import Heartbeat
from rota.server.runtime.coordinator import LocalCoordinator

GROUPS = 100
MEMBERS_OF_A_GROUP = 10
ROUNDS = 50


def run(effort: Effort) -> list[Figure]:
    """Heartbeats of 1,000 members in 100 groups on 64 shards, that do not wait; per second of CPU."""
    return asyncio.run(_run(effort))


async def _run(effort: Effort) -> list[Figure]:
    fleet = Fleet(GROUPS, MEMBERS_OF_A_GROUP)
    heartbeats = fleet.heartbeats()
    pairs = []
    async with coordinator_of(LoadedMemoryStore(fleet.images)) as coordinator:
        for _ in range(effort.repeats):
            ours = await _through_the_coordinator(coordinator, heartbeats, effort.times(ROUNDS))
            pairs.append((ours, _through_the_core(fleet, heartbeats, effort.times(ROUNDS))))
    samples, floor = transposed(pairs)
    return [Figure("local", "try_heartbeat", "heartbeats/s", samples, "Shard.handle", floor)]


async def _through_the_coordinator(coordinator: LocalCoordinator, heartbeats: list[Heartbeat], rounds: int) -> float:
    seconds = 0.0
    for _ in range(rounds):
        started = time.thread_time()
        for heartbeat in heartbeats:
            assert coordinator.try_heartbeat(heartbeat) is not None
        seconds += time.thread_time() - started
        await asyncio.sleep(0)
    return rounds * len(heartbeats) / seconds


def _through_the_core(fleet: Fleet, heartbeats: list[Heartbeat], rounds: int) -> float:
    addressed = [(fleet.shard_of(heartbeat), heartbeat) for heartbeat in heartbeats]
    started = time.thread_time()
    for _ in range(rounds):
        for shard, heartbeat in addressed:
            shard.handle(heartbeat, CALL, 0)
    return rounds * len(heartbeats) / (time.thread_time() - started)
