"""Members of a cluster speak to the replica that owns their group, and not to one that forwards."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import rota
from rota.client import Client, Consumer, OffsetToCommit
from rota.protocol.ids import shard_of
from tests.support.cluster import Cluster
from tests.support.processes import Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

COMMITS = 20
DEADLINE_S = 60.0


@pytest.mark.parametrize("scheme", ["http", "grpc", "grpc+stream"])
async def test_a_members_calls_go_to_the_owner_and_then_to_the_next(processes: Processes, scheme: str) -> None:
    async with Cluster(processes) as cluster:
        urls = cluster.urls if scheme == "http" else [f"{scheme}://{at}" for at in cluster.grpc_addresses]
        async with rota.connect(urls) as listed, rota.connect(urls[0], direct=True) as direct:
            await nothing_is_forwarded(cluster, listed, of="r3")
            await nothing_is_forwarded(cluster, direct, of="r3")
            async with listed.consumer(a_group_of(cluster, "r2"), {"work": 1}) as consumer:
                await until_nothing_is_forwarded(cluster, consumer)
                cluster.replicas["r2"].kill9()
                await cluster.until_moved("r2")
                await until_nothing_is_forwarded(cluster, consumer)


async def nothing_is_forwarded(cluster: Cluster, client: Client, *, of: str) -> None:
    async with client.consumer(a_group_of(cluster, of), {"work": 1}) as consumer:
        await until_nothing_is_forwarded(cluster, consumer)


async def until_nothing_is_forwarded(cluster: Cluster, consumer: Consumer) -> None:
    await consumer.wait_assigned()
    async with asyncio.timeout(DEADLINE_S):
        while await forwarded_while_committing(cluster, consumer):
            pass


async def forwarded_while_committing(cluster: Cluster, consumer: Consumer) -> float:
    before = await forwarded_calls(cluster)
    for number in range(COMMITS):
        await consumer.commit([OffsetToCommit("work", 0, number)])
    return await forwarded_calls(cluster) - before


async def forwarded_calls(cluster: Cluster) -> float:
    """As all replicas that run have counted them."""
    total = 0.0
    async with httpx.AsyncClient(trust_env=False) as http:
        for replica in cluster.replicas.values():
            if replica.running:
                text = (await http.get(f"{replica.url}/metrics")).text
                families = {family.name: family for family in text_string_to_metric_families(text)}
                samples = families["rota_forwarded_calls"].samples
                total += sum(each.value for each in samples if each.name.endswith("_total"))
    return total


def a_group_of(cluster: Cluster, name: str) -> str:
    """A group in a shard that a replica owns."""
    names = (f"group-{number}" for number in range(1_000))
    return next(each for each in names if shard_of("default", each, cluster.shard_count) in cluster.shards_of(name))
