"""What can be done to a cluster, each as a block: it is hurt while the block runs, and whole again after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeAlias, TypeVar

import redis

from tests.faults.stalls import STALLS_BY_PROXIES, STALLS_OF_POSTGRES, stall_again_and_again
from tests.support.cluster import NAMES, Cluster, ReplicaProcess
from tests.support.cluster_network import ProxiedNetwork
from tests.support.cluster_wiring import POSTGRES, REDIS, Network
from tests.support.namespaced_network import CLIENTS, NamespacedNetwork
from tests.support.postgres import StopMode

N = TypeVar("N", bound=Network)
Hurt: TypeAlias = Callable[[Cluster, random.Random], AbstractAsyncContextManager[None]]


def _cut_all_from_redis(network: Network) -> None:
    for name in NAMES:
        network.cut(name, REDIS)


def _cut_from_its_peers(network: Network) -> None:
    for other in ("r2", "r3"):
        network.cut("r1", other)


def _cut_all_from_each_other(network: Network) -> None:
    for one, other in (("r1", "r2"), ("r1", "r3"), ("r2", "r3")):
        network.cut(one, other)


def slow_down(network: ProxiedNetwork) -> None:
    """Postgres for all replicas, and two of the replicas to each other."""
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


def _cut_publishing(network: Network) -> None:
    for name in NAMES:
        network.cut_one_way(name, REDIS)


def _refuse_to_its_peers(network: NamespacedNetwork) -> None:
    for other in ("r2", "r3"):
        network.refuse("r1", other)


def _lose_of_clients(network: NamespacedNetwork) -> None:
    for name in NAMES:
        network.lose(CLIENTS, name, 20)


def _lose_between_replicas_and_stores(network: NamespacedNetwork) -> None:
    for name in NAMES:
        network.lose(name, POSTGRES, 10)
        network.lose(name, REDIS, 10)


PACKETS: dict[str, Callable[[NamespacedNetwork], None]] = {
    **CUTS,
    "one from the other replicas": _cut_from_its_peers,
    "what one sends to Postgres": lambda network: network.cut_one_way("r1", POSTGRES),
    "what all send to Redis": _cut_publishing,
    "one refused by Postgres": lambda network: network.refuse("r1", POSTGRES),
    "one refused by the other replicas": _refuse_to_its_peers,
}
"""What proxies can do, and what needs packets: whole links."""
LOSSES: dict[str, Callable[[NamespacedNetwork], None]] = {
    "a fifth of what clients and replicas send": _lose_of_clients,
    "a tenth of what replicas and their stores send": _lose_between_replicas_and_stores,
}
"""So many packets, at random. Any call may take longer than a lease, though few do."""


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
    """Back at once: while it is away, no replica can be notified of anything."""
    await asyncio.to_thread(cluster.postgres.stop, StopMode.IMMEDIATE)
    await asyncio.to_thread(cluster.postgres.start)
    yield


@asynccontextmanager
async def redis_flushed(cluster: Cluster, _: random.Random) -> AsyncIterator[None]:
    await asyncio.to_thread(cluster.valkey.flushall)
    yield


def poisoned(cluster: Cluster) -> None:
    """Another program writes into the keys of all shards."""
    with redis.Redis(port=cluster.valkey.port) as client:
        for key in client.scan_iter():
            now_ms = 1_000 * client.time()[0]
            client.zadd(key, {"another program's member": now_ms, b"\xff\xfe": now_ms, "a/b": "inf", "": "inf"})


def overwritten(cluster: Cluster) -> None:
    """Another program overwrites every second key."""
    with redis.Redis(port=cluster.valkey.port) as client:
        for key in sorted(client.scan_iter())[::2]:
            client.set(key, "another program's value")


def in_wrong_forms(write: Callable[[Cluster], None]) -> Hurt:
    """Another program writes into Rota's keys, which are deleted at the end."""

    @asynccontextmanager
    async def wrong(cluster: Cluster, _: random.Random) -> AsyncIterator[None]:
        await asyncio.to_thread(write, cluster)
        yield
        await asyncio.to_thread(cluster.valkey.flushall)

    return wrong


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


def stalling(stall: Callable[[Cluster], AbstractAsyncContextManager[None]]) -> Hurt:
    """The store stalls for seconds, again and again, and answers in between."""

    @asynccontextmanager
    async def stalled(cluster: Cluster, chance: random.Random) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as stalls:
            stalled = stalls.create_task(stall_again_and_again(partial(stall, cluster), chance))
            yield
            stalled.cancel()

    return stalled


def on_the_network(network: N, change: Callable[[N], None]) -> Hurt:
    @asynccontextmanager
    async def changed(_cluster: Cluster, _: random.Random) -> AsyncIterator[None]:
        change(network)
        yield
        network.heal()

    return changed


_OF_PROCESSES: dict[str, Hurt] = {
    "a replica killed": killed,
    "a replica stopped in order": stopped_in_order,
    "a replica paused": paused,
    "Postgres crashed": postgres_crashed,
    "Redis flushed": redis_flushed,
    "Redis poisoned": in_wrong_forms(poisoned),
    "Redis overwritten": in_wrong_forms(overwritten),
    "Redis killed": redis_killed,
    "Redis paused": redis_paused,
    **{f"stalls: {name}": stalling(stall) for name, stall in STALLS_OF_POSTGRES.items()},
}


def hurts_of(network: ProxiedNetwork | NamespacedNetwork) -> dict[str, Hurt]:
    """All that can be done to a cluster on that network."""
    if isinstance(network, NamespacedNetwork):
        packets = {f"packets: {name}": on_the_network(network, hurt) for name, hurt in (PACKETS | LOSSES).items()}
        return _OF_PROCESSES | packets
    cuts = {f"cut: {name}": on_the_network(network, cut) for name, cut in CUTS.items()}
    stalls = {f"stalls: {name}": stalling(stall) for name, stall in STALLS_BY_PROXIES.items()}
    return _OF_PROCESSES | cuts | stalls | {"Postgres and peers slow": on_the_network(network, slow_down)}


def _one_of(cluster: Cluster, chance: random.Random) -> ReplicaProcess:
    return cluster.replicas[chance.choice(sorted(cluster.replicas))]
