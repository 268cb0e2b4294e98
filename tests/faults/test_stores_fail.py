"""Postgres crashes and comes back; Redis loses its data, starts empty, stays away: no live member is expired."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from rota.client.transports import HttpTransport
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat
from tests.faults.hurts import overwritten, poisoned
from tests.faults.load import NAMESPACE, PATIENT, Crowd, Load
from tests.faults.verdict import judge
from tests.support.cluster import Cluster
from tests.support.postgres import StopMode
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

FACTS = 150


@pytest.mark.slow
@pytest.mark.parametrize("away_s", [0.0, 3.0])
async def test_an_immediate_shutdown_of_postgres_loses_nothing(cluster: Cluster, seed: int, away_s: float) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed)
    async with load.running():
        await load.until_all_hold()
        quiet_since_ms = load.record.clock.now_ms()
        for _ in range(2):
            await asyncio.to_thread(cluster.postgres.stop, StopMode.IMMEDIATE)
            await asyncio.sleep(away_s)
            await asyncio.to_thread(cluster.postgres.start)
            await cluster.until_settled()
            await load.until_facts(FACTS)

    (await judge(load, cluster, quiet_since_ms=quiet_since_ms)).assert_clean()
    cluster.verify()


def flushed(cluster: Cluster) -> None:
    cluster.valkey.flushall()


def restarted_empty(cluster: Cluster) -> None:
    cluster.valkey.restart()


def gone(cluster: Cluster) -> None:
    cluster.valkey.kill9()


def stalled(cluster: Cluster) -> None:
    cluster.valkey.process.pause()


@pytest.mark.slow
@pytest.mark.parametrize("hurt", [flushed, restarted_empty, gone, stalled, poisoned, overwritten])
async def test_nobody_is_evicted_when_redis_fails_and_then_a_replica(
    cluster: Cluster, seed: int, hurt: Callable[[Cluster], None]
) -> None:
    load = Load(cluster.urls, cluster.shard_count, seed, PATIENT)
    async with load.running():
        await load.until_all_hold()
        quiet_since_ms = load.record.clock.now_ms()
        await asyncio.to_thread(hurt, cluster)
        cluster.replicas["r2"].kill9()
        await cluster.until_moved("r2")
        # So long that a member without heartbeats would expire.
        await asyncio.sleep(1.2 * PATIENT.session_ms / 1_000)
        await load.until_facts(FACTS)
        assert {name for name, replica in cluster.replicas.items() if replica.running} == {"r1", "r3"}

    verdict = await judge(load, cluster, quiet_since_ms=quiet_since_ms)
    verdict.assert_clean()
    assert verdict.gave_up == 0
    cluster.verify()


@pytest.mark.slow
async def test_heartbeats_write_nothing_to_postgres(processes: Processes, seed: int) -> None:
    # Leases are renewed three times in their length, and nothing else but heartbeats happens.
    quiet = {"wal_level": "minimal", "max_wal_senders": "0", "autovacuum": "off", "checkpoint_timeout": "1h"}
    async with Cluster(processes, lease_ms=120_000, names=("r1", "r2"), postgres_settings=quiet) as cluster:
        load = Load(
            cluster.urls, cluster.shard_count, seed, Crowd(groups=4, workers=2, session_ms=60_000, work_s=3_600)
        )
        async with load.running():
            await load.until_all_hold()
            heartbeats = [
                Heartbeat(NAMESPACE, worker.group_id, worker.member_id, worker.generation_id) for worker in load.workers
            ]
            await _until_still(cluster)
            before = _wal_position(cluster)
            errors = [error for url in cluster.urls for error in await _beat(url, heartbeats * 60)]
            after = _wal_position(cluster)

    assert errors == [ErrorCode.NONE] * (8 * 60 * 2)
    assert after == before


async def _beat(url: str, heartbeats: list[Heartbeat]) -> list[ErrorCode]:
    transport = HttpTransport([url])
    try:
        return [(await transport.send(heartbeat, timeout_ms=5_000)).reply.error for heartbeat in heartbeats]
    finally:
        await transport.close()


async def _until_still(cluster: Cluster) -> None:
    """What the start left to write is written."""
    last = ""

    def is_still() -> bool:
        nonlocal last
        before, last = last, _wal_position(cluster)
        return before == last

    await cluster.until(is_still, "Postgres writes nothing", poll_s=0.5)


def _wal_position(cluster: Cluster) -> str:
    position = cluster.postgres.execute("SELECT pg_current_wal_insert_lsn()")
    assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", position)
    return position
