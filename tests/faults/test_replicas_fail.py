"""Replicas are killed and paused under load: nothing acknowledged is lost, no live member is expired."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.asking import a_commit, a_question, ask, groups_on
from tests.faults.load import Crowd, Load
from tests.faults.verdict import judge
from tests.support.cluster import Cluster

pytestmark = pytest.mark.processes

FACTS = 100


@pytest.mark.slow
async def test_killing_each_of_three_replicas_in_turn_loses_nothing(cluster: Cluster, seed: int) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed, Crowd(churn_s=5.0))
    async with load.running():
        for replica in cluster.replicas.values():
            await load.until_facts(FACTS)
            replica.kill9()
            await cluster.until_moved(replica.name)
            await load.until_facts(FACTS)
            (await judge(load, cluster)).assert_clean()
            replica.start()
            await cluster.until_settled()

    (await judge(load, cluster)).assert_clean()
    cluster.verify()


@pytest.mark.slow
async def test_members_do_not_notice_a_killed_replica(cluster: Cluster, seed: int) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed)
    async with load.running():
        await load.until_all_hold()
        quiet_since_ms = load.record.clock.now_ms()
        for replica in cluster.replicas.values():
            replica.kill9()
            await cluster.until_moved(replica.name)
            await load.until_facts(FACTS)
            replica.start()
            await cluster.until_settled()

    verdict = await judge(load, cluster, quiet_since_ms=quiet_since_ms)
    verdict.assert_clean()
    assert verdict.gave_up == 0


@pytest.mark.thorough
async def test_an_owner_paused_beyond_its_lease_writes_nothing(cluster: Cluster, seed: int) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed, Crowd(groups=3, workers=2))
    async with load.running():
        await load.until_facts(FACTS)
        paused = cluster.replicas["r1"]
        owned, before = cluster.shards_of("r1"), cluster.epochs()
        groups = groups_on(owned, cluster.shard_count)
        await ask(load.record, paused.url, [a_commit(group, 1) for group in groups])
        paused.process.pause()
        # These wait in its sockets until it goes on, and then they are the first thing that it sees.
        asked = asyncio.create_task(
            ask(load.record, paused.url, [each for g in groups for each in (a_commit(g, 2), a_question(g))])
        )
        await cluster.until_moved("r1")
        taken = cluster.epochs()
        paused.process.resume()
        answers = await asked
        await cluster.until_settled()
        await load.until_facts(FACTS)

    assert all(taken[shard_id] > before[shard_id] for shard_id in owned)
    # An answer of the new owner, through the old one, is good; of its own it has only that it does not know.
    for shard_id, epoch in answers:
        assert epoch == 0 or epoch >= taken[shard_id], f"shard {shard_id}: answered as of epoch {epoch}"
    (await judge(load, cluster)).assert_clean()
    cluster.verify()
