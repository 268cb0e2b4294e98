"""Links between replicas, and from them to Postgres and Redis, are cut and slow: members that stay notice nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.hurts import CUTS, slow_down
from tests.faults.load import PATIENT, Load
from tests.faults.verdict import judge
from tests.support.cluster import Cluster
from tests.support.cluster_network import ProxiedNetwork
from tests.support.processes import Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FACTS = 150


@pytest.mark.parametrize("cut", CUTS)
async def test_nobody_is_evicted_and_nothing_lost_when_a_link_is_cut(cluster: Cluster, seed: int, cut: str) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed, PATIENT)
    async with load.running():
        await load.until_all_hold()
        quiet_since_ms = load.record.clock.now_ms()
        CUTS[cut](cluster.network)
        # So long that a member without heartbeats would expire.
        await asyncio.sleep(1.2 * PATIENT.session_ms / 1_000)
        await load.until_facts(FACTS)
        cluster.network.heal()
        await cluster.until_settled()
        await load.until_facts(FACTS)

    verdict = await judge(load, cluster, quiet_since_ms=quiet_since_ms)
    verdict.assert_clean()
    assert verdict.gave_up == 0
    cluster.verify()


async def test_slow_postgres_and_peers_evict_no_member(processes: Processes, seed: int) -> None:
    network = ProxiedNetwork()
    async with Cluster(processes, network=network) as cluster:
        load = Load(cluster.urls, cluster.shard_count, seed)
        async with load.running():
            await load.until_all_hold()
            quiet_since_ms = load.record.clock.now_ms()
            slow_down(network)
            await load.until_facts(2 * FACTS)
            network.heal()
            await load.until_facts(FACTS)

        (await judge(load, cluster, quiet_since_ms=quiet_since_ms)).assert_clean()
