"""A physical copy of the store that is served beside its original: the copy gives out no token, and says why."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from tests.faults.load import Load
from tests.faults.verdict import judge
from tests.support.cluster import Cluster, ReplicaProcess
from tests.support.cluster_wiring import DirectNetwork, ReplicaPorts
from tests.support.places import THIS_MACHINE
from tests.support.ports import free_port
from tests.support.processes import Processes
from tests.support.standby import PhysicalCopy

pytestmark = pytest.mark.processes

LEASE_MS = 2_000
OWNERS = "SELECT shard_id, replica_id, epoch FROM rota.shards ORDER BY shard_id"


@pytest.mark.slow
async def test_a_copy_beside_its_original_claims_nothing(processes: Processes, seed: int) -> None:
    async with Cluster(processes, lease_ms=LEASE_MS, names=("r1",), network=DirectNetwork()) as cluster:
        load = Load(cluster.urls, cluster.shard_count, seed)
        async with load.running():
            await load.until_all_hold()
            with PhysicalCopy(cluster.postgres) as copy:
                copied = copy.execute(OWNERS, database="rota")
                served = served_copy(processes, cluster, copy)
                served.start()
                await asyncio.to_thread(served.process.wait_for_line, "this store is a copy of another one")
                metrics = (await asyncio.to_thread(httpx.get, f"{served.url}/metrics")).text
                found = copy.execute(OWNERS, database="rota")
                await load.until_facts(50)

                cluster.replicas["r1"].kill9()
                await served.until_ready()
                after = copy.execute(OWNERS, database="rota")
                served.kill9()
            cluster.replicas["r1"].start()
            await cluster.until_settled()
        (await judge(load, cluster)).assert_clean()

    assert found == copied, "nothing was claimed while the original's owner lived"
    assert after != copied
    assert float(re.findall(r"^rota_store_copied_total (\S+)", metrics, re.MULTILINE)[0]) >= cluster.shard_count


def served_copy(processes: Processes, cluster: Cluster, copy: PhysicalCopy) -> ReplicaProcess:
    """`rota serve` on the copy, in reach of the original's replicas."""
    dsn = cluster.dsn.replace(f":{cluster.postgres.port}/", f":{copy.port}/")
    options = ("--store", dsn, "--shard-count", str(cluster.shard_count), "--lease-ms", str(LEASE_MS))
    ports = ReplicaPorts(free_port(), free_port(), free_port())
    return ReplicaProcess("copy", processes, ports, options, {"ROTA_LOG_FORMAT": "text"}, THIS_MACHINE)
