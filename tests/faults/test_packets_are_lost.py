"""Packets between clients, replicas and stores are dropped, refused and lost at random: no fact is lost with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.faults.asking import a_commit, a_question, ask, groups_on
from tests.faults.hurts import LOSSES, PACKETS
from tests.faults.load import PATIENT, Crowd, Load
from tests.faults.verdict import judge
from tests.support.cluster import Cluster
from tests.support.cluster_wiring import POSTGRES
from tests.support.namespaced_network import NamespacedNetwork
from tests.support.namespaces import skip_without_namespaces
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

FACTS = 60


@pytest.fixture
def network() -> NamespacedNetwork:
    skip_without_namespaces()
    return NamespacedNetwork()


@pytest.fixture
async def cluster(processes: Processes, network: NamespacedNetwork) -> AsyncIterator[Cluster]:
    async with Cluster(processes, network=network) as cluster:
        yield cluster


@pytest.mark.slow
async def test_an_owner_cut_off_beyond_its_lease_writes_nothing(
    cluster: Cluster, network: NamespacedNetwork, seed: int
) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed, Crowd(groups=3, workers=2))
    async with load.running():
        await load.until_facts(FACTS)
        url, owned, before = cluster.replicas["r1"].url, cluster.shards_of("r1"), cluster.epochs()
        groups = groups_on(owned, cluster.shard_count)
        await ask(load.record, url, [a_commit(group, 1) for group in groups])
        network.cut("r1", POSTGRES)
        # It is still the owner, and what it writes now is sent again and again by its kernel until the cut is healed.
        asked = asyncio.create_task(ask(load.record, url, [a_commit(group, 2) for group in groups]))
        await cluster.until_moved("r1")
        taken = cluster.epochs()
        late = await ask(load.record, url, [each for g in groups for each in (a_commit(g, 3), a_question(g))])
        assert network.hit() > 0
        network.heal()
        late += await ask(load.record, url, [each for g in groups for each in (a_commit(g, 4), a_question(g))])
        answers = await asked + late
        await cluster.until_settled()
        await load.until_facts(FACTS)

    assert all(taken[shard_id] > before[shard_id] for shard_id in owned)
    # An answer of the new owner, through the old one, is good; of its own it has only that it does not know.
    for shard_id, epoch in answers:
        assert epoch == 0 or epoch >= taken[shard_id], f"shard {shard_id}: answered as of epoch {epoch}"
    (await judge(load, cluster)).assert_clean()
    cluster.verify()


@pytest.mark.slow
@pytest.mark.parametrize("hurt", PACKETS)
async def test_a_dead_link_evicts_no_member_and_loses_nothing(
    cluster: Cluster, network: NamespacedNetwork, seed: int, hurt: str
) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed, PATIENT)
    async with load.running():
        await load.until_all_hold()
        quiet_since_ms = load.record.clock.now_ms()
        hit = await outlive(PACKETS[hurt], network, cluster, load)

    # A replica that happens to own none of the groups has nothing to publish in Redis.
    assert hit > 0 or hurt == "one from Redis"
    verdict = await judge(load, cluster, quiet_since_ms=quiet_since_ms)
    verdict.assert_clean()
    assert verdict.gave_up == 0
    cluster.verify()


@pytest.mark.slow
@pytest.mark.parametrize("hurt", LOSSES)
async def test_some_lost_packets_evict_no_member_and_lose_nothing(
    cluster: Cluster, network: NamespacedNetwork, seed: int, hurt: str
) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed)
    async with load.running():
        await load.until_all_hold()
        hit = await outlive(LOSSES[hurt], network, cluster, load)

    assert hit > 0
    (await judge(load, cluster)).assert_clean()
    cluster.verify()


async def outlive(
    hurt: Callable[[NamespacedNetwork], None], network: NamespacedNetwork, cluster: Cluster, load: Load
) -> int:
    """Cut the network so long that a member without heartbeats would expire, and heal it; how many packets that hit."""
    hurt(network)
    await asyncio.sleep(1.2 * load.crowd.session_ms / 1_000)
    await load.until_facts(FACTS)
    hit = network.hit()
    network.heal()
    await cluster.until_settled()
    await load.until_facts(FACTS)
    return hit
