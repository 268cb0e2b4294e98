"""Stores that stall for 3 to 6 s, again and again: afterwards all is served within a lease, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from time import monotonic

import httpx
import psutil
import pytest

from tests.faults.load import Load
from tests.faults.stalls import STALLS_BY_PROXIES, STALLS_OF_POSTGRES, file_locked, stall_again_and_again
from tests.faults.verdict import judge
from tests.processes.server import SHARD_COUNT, Server
from tests.support.cluster import Cluster
from tests.support.processes import Process, Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STALLS = 4
FACTS = 100
SLACK_S = 3.0
"""A busy machine, and a round that was under way."""


@pytest.mark.parametrize("stall", STALLS_OF_POSTGRES | STALLS_BY_PROXIES)
async def test_a_postgres_that_stalls_loses_nothing(cluster: Cluster, seed: int, stall: str) -> None:
    stalled: Callable[[Cluster], AbstractAsyncContextManager[None]] = (STALLS_OF_POSTGRES | STALLS_BY_PROXIES)[stall]
    load = Load(cluster.urls, cluster.shard_count, seed)
    async with load.running():
        await load.until_all_hold()
        await stall_again_and_again(partial(stalled, cluster), random.Random(seed), STALLS)
        await cluster.until_settled()
        await load.until_facts(FACTS)

    (await judge(load, cluster)).assert_clean()
    cluster.verify()
    for replica in cluster.replicas.values():
        assert connections_to(replica.process, cluster) <= 8


def connections_to(process: Process, cluster: Cluster) -> int:
    """How many connections a replica has to Postgres: to the proxy in front of it."""
    port = int(cluster.network.wiring(process_name(process, cluster)).postgres.rpartition(":")[2])
    sockets = psutil.Process(process.pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED and each.raddr[-1:] == (port,) for each in sockets)


def process_name(process: Process, cluster: Cluster) -> str:
    return next(name for name, replica in cluster.replicas.items() if replica.process is process)


class Embedded:
    """One server on SQLite, as a verdict needs it."""

    shard_count = SHARD_COUNT

    def __init__(self, processes: Processes, path: Path, *, lease_ms: int = 2_000) -> None:
        self.path = path
        self.dsn = f"sqlite:///{path}"
        self.lease_ms = lease_ms
        self.server = Server(processes, self.dsn, lease_ms=lease_ms)

    def open_logs(self) -> int:
        """One for each connection to the file."""
        names = (each.path for each in psutil.Process(self.server.process.pid).open_files())
        return sum(name.endswith("-wal") for name in names)

    def threads(self) -> int:
        return psutil.Process(self.server.process.pid).num_threads()

    async def until_ready(self) -> float:
        """Returns how long it took."""
        began = monotonic()
        await asyncio.to_thread(self.server.process.wait_for_url, f"{self.server.url}/readyz")
        return monotonic() - began


async def test_a_sqlite_file_that_stalls_loses_nothing(processes: Processes, tmp_path: Path, seed: int) -> None:
    embedded = Embedded(processes, tmp_path / "rota.db")
    embedded.server.start_and_wait()
    load = Load([embedded.server.url], SHARD_COUNT, seed)
    async with load.running():
        await load.until_all_hold()
        logs, threads = embedded.open_logs(), embedded.threads()
        await stall_again_and_again(partial(file_locked, embedded.path), random.Random(seed), STALLS)
        assert await embedded.until_ready() < embedded.lease_ms / 1_000 + SLACK_S
        await load.until_facts(FACTS)
        logs_after, threads_after = embedded.open_logs(), embedded.threads()
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{embedded.server.url}/healthz")).status_code == 200

    # The verdict opens the store itself.
    assert await asyncio.to_thread(embedded.server.process.terminate) == 0
    (await judge(load, embedded)).assert_clean()
    assert logs_after <= logs
    # A pool may have started a thread that it keeps; a leak is one thread for each stall.
    assert threads_after < threads + STALLS
    verified = processes.rota("db", "verify", "--store", embedded.dsn)
    assert await asyncio.to_thread(verified.wait_for_exit) == 0, verified.output()
