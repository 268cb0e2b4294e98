"""Links between replicas, and from them to Postgres and Redis, are cut and slow: members who stay notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.faults.load import SESSION_MS, Load
from tests.faults.verdict import judge
from tests.support.cluster import NAMES, Cluster
from tests.support.cluster_network import POSTGRES, REDIS, Network

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FACTS = 150


def cut_all_from_redis(network: Network) -> None:
    for name in NAMES:
        network.cut(name, REDIS)


def cut_all_from_each_other(network: Network) -> None:
    for one, other in (("r1", "r2"), ("r1", "r3"), ("r2", "r3")):
        network.cut(one, other)


CUTS: dict[str, Callable[[Network], None]] = {
    "two replicas from each other": lambda network: network.cut("r1", "r2"),
    "all replicas from each other": cut_all_from_each_other,
    "what one sends to another": lambda network: network.cut_one_way("r1", "r2"),
    "one from Postgres": lambda network: network.cut("r1", POSTGRES),
    "what Postgres answers to one": lambda network: network.cut_one_way(POSTGRES, "r1"),
    "one from Redis": lambda network: network.cut("r1", REDIS),
    "all from Redis": cut_all_from_redis,
    "one from everything but its clients": lambda network: network.isolate("r1"),
}


@pytest.mark.parametrize("cut", CUTS)
async def test_nobody_is_evicted_and_nothing_lost_when_a_link_is_cut(cluster: Cluster, seed: int, cut: str) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed)
    async with load.running():
        await load.until_all_hold()
        quiet_since_ms = load.record.clock.now_ms()
        CUTS[cut](cluster.network)
        # So long that who is not heard would be gone.
        await asyncio.sleep(1.2 * SESSION_MS / 1_000)
        await load.until_facts(FACTS)
        cluster.network.heal()
        await cluster.until_settled()
        await load.until_facts(FACTS)

    verdict = await judge(load, cluster, quiet_since_ms=quiet_since_ms)
    verdict.assert_clean()
    assert verdict.gave_up == 0
    cluster.verify()


async def test_nobody_is_evicted_and_nothing_lost_when_postgres_and_peers_are_slow(cluster: Cluster, seed: int) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed)
    async with load.running():
        await load.until_all_hold()
        quiet_since_ms = load.record.clock.now_ms()
        for name in NAMES:
            cluster.network.delay(name, POSTGRES, 0.02)
        cluster.network.delay("r1", "r2", 0.1)
        await load.until_facts(2 * FACTS)
        cluster.network.heal()
        await load.until_facts(FACTS)

    (await judge(load, cluster, quiet_since_ms=quiet_since_ms)).assert_clean()
