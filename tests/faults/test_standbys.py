"""A synchronous standby is lost, comes back, or takes over: each acknowledged fact is on both servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.faults.load import Load
from tests.faults.verdict import judge
from tests.support.cluster import Cluster
from tests.support.standby import Standby

pytestmark = pytest.mark.processes

FACTS = 150


@pytest.fixture
async def standby(cluster: Cluster) -> AsyncIterator[Standby]:
    with Standby(cluster.postgres) as standby:
        standby.become_synchronous()
        await cluster.until(lambda: standby.states() == "streaming|sync", "the standby is synchronous")
        yield standby


def written(load: Load) -> Counter[str]:
    """Acknowledged facts that stand in the store; heartbeats are answered without it."""
    return Counter({kind: count for kind, count in load.record.acked.items() if kind != "heartbeats"})


@pytest.mark.slow
async def test_nothing_is_acknowledged_while_the_standby_is_lost(cluster: Cluster, standby: Standby, seed: int) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed)
    async with load.running():
        await load.until_all_hold()
        for _ in range(2):
            await asyncio.to_thread(standby.kill9)
            await asyncio.sleep(1.0)  # The primary notices that the connection is gone.
            before = written(load)
            await asyncio.sleep(4.0)
            assert written(load) == before
            await asyncio.to_thread(standby.start)
            await load.until_facts(FACTS)

    (await judge(load, cluster)).assert_clean()
    cluster.verify()


@pytest.mark.slow
@pytest.mark.parametrize("silent_s", [0.0, 4.0])
async def test_nothing_is_lost_when_the_standby_takes_over(
    cluster: Cluster, standby: Standby, seed: int, silent_s: float
) -> None:
    """After a time in which it received nothing: whatever was acknowledged then would be lost."""
    load = Load(cluster.urls, cluster.shard_count, seed)
    async with load.running():
        await load.until_facts(FACTS)
        standby.process.pause()
        await asyncio.sleep(silent_s)
        await asyncio.to_thread(cluster.postgres.kill9)
        standby.process.resume()
        await asyncio.to_thread(standby.take_over)
        await cluster.until_settled()
        await load.until_facts(FACTS)

    cluster.postgres = standby
    (await judge(load, cluster)).assert_clean()
    cluster.verify()
