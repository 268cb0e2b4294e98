"""What can be done to a cluster, each as a block: it is hurt while the block runs, and whole again after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from tests.support.cluster import NAMES, Cluster, ReplicaProcess
from tests.support.cluster_network import POSTGRES, REDIS, Network
from tests.support.postgres import StopMode

Hurt: TypeAlias = Callable[[Cluster, random.Random], AbstractAsyncContextManager[None]]


def _cut_all_from_redis(network: Network) -> None:
    for name in NAMES:
        network.cut(name, REDIS)


def _cut_all_from_each_other(network: Network) -> None:
    for one, other in (("r1", "r2"), ("r1", "r3"), ("r2", "r3")):
        network.cut(one, other)


def slow_down(network: Network) -> None:
    """Postgres for everybody, and two of the replicas to each other."""
    for name in NAMES:
        network.delay(name, POSTGRES, 0.02)
    network.delay("r1", "r2", 0.1)


CUTS: dict[str, Callable[[Network], None]] = {
    "two replicas from each other": lambda network: network.cut("r1", "r2"),
    "all replicas from each other": _cut_all_from_each_other,
    "what one sends to another": lambda network: network.cut_one_way("r1", "r2"),
    "one from Postgres": lambda network: network.cut("r1", POSTGRES),
    "what Postgres answers to one": lambda network: network.cut_one_way(POSTGRES, "r1"),
    "one from Redis": lambda network: network.cut("r1", REDIS),
    "all from Redis": _cut_all_from_redis,
    "one from everything but its clients": lambda network: network.isolate("r1"),
}


@asynccontextmanager
async def killed(cluster: Cluster, chance: random.Random) -> AsyncIterator[None]:
    replica = _one_of(cluster, chance)
    replica.kill9()
    yield
    replica.start()


@asynccontextmanager
async def stopped_in_order(cluster: Cluster, chance: random.Random) -> AsyncIterator[None]:
    replica = _one_of(cluster, chance)
    await replica.terminate()
    yield
    replica.start()


@asynccontextmanager
async def paused(cluster: Cluster, chance: random.Random) -> AsyncIterator[None]:
    replica = _one_of(cluster, chance)
    replica.process.pause()
    yield
    replica.process.resume()


@asynccontextmanager
async def postgres_crashed(cluster: Cluster, _: random.Random) -> AsyncIterator[None]:
    """Back at once: while it is away, nobody can be told anything."""
    await asyncio.to_thread(cluster.postgres.stop, StopMode.IMMEDIATE)
    await asyncio.to_thread(cluster.postgres.start)
    yield


@asynccontextmanager
async def redis_flushed(cluster: Cluster, _: random.Random) -> AsyncIterator[None]:
    await asyncio.to_thread(cluster.valkey.flushall)
    yield


@asynccontextmanager
async def redis_killed(cluster: Cluster, _: random.Random) -> AsyncIterator[None]:
    await asyncio.to_thread(cluster.valkey.kill9)
    yield
    await asyncio.to_thread(cluster.valkey.start)


@asynccontextmanager
async def redis_paused(cluster: Cluster, _: random.Random) -> AsyncIterator[None]:
    cluster.valkey.process.pause()
    yield
    cluster.valkey.process.resume()


def on_the_network(change: Callable[[Network], None]) -> Hurt:
    @asynccontextmanager
    async def changed(cluster: Cluster, _: random.Random) -> AsyncIterator[None]:
        change(cluster.network)
        yield
        cluster.network.heal()

    return changed


HURTS: dict[str, Hurt] = {
    "a replica killed": killed,
    "a replica stopped in order": stopped_in_order,
    "a replica paused": paused,
    "Postgres crashed": postgres_crashed,
    "Redis flushed": redis_flushed,
    "Redis killed": redis_killed,
    "Redis paused": redis_paused,
    "Postgres and peers slow": on_the_network(slow_down),
    **{f"cut: {name}": on_the_network(cut) for name, cut in CUTS.items()},
}


def _one_of(cluster: Cluster, chance: random.Random) -> ReplicaProcess:
    return cluster.replicas[chance.choice(sorted(cluster.replicas))]
