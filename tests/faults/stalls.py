"""Stores that answer nothing for seconds, again and again, each as a block in which the store stalls."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TypeAlias

import asyncpg

from tests.support.cluster import NAMES, Cluster
from tests.support.cluster_network import ProxiedNetwork
from tests.support.cluster_wiring import POSTGRES

STALL_S = (3.0, 6.0)
"""Longer than a write may take, and about as long as the lease of a server that is not told otherwise."""
BETWEEN_S = (0.5, 3.0)

Stall: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


async def stall_again_and_again(stall: Stall, chance: random.Random, times: int | None = None) -> None:
    """For so many times, or until it is cancelled."""
    while times is None or times > 0:
        async with stall():
            await asyncio.sleep(chance.uniform(*STALL_S))
        await asyncio.sleep(chance.uniform(*BETWEEN_S))
        times = times and times - 1


@asynccontextmanager
async def tables_locked(cluster: Cluster) -> AsyncIterator[None]:
    """Another session locks all that is written."""
    connection = await asyncpg.connect(cluster.dsn)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE rota.shards, rota.replicas, rota.groups IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()


@asynccontextmanager
async def postgres_paused(cluster: Cluster) -> AsyncIterator[None]:
    """The postmaster and all its backends stop where they are."""
    pid = cluster.postgres.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    paused = [pid, *map(int, children)]
    _send(paused, signal.SIGSTOP)
    try:
        yield
    finally:
        _send(paused, signal.SIGCONT)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@asynccontextmanager
async def proxies_hold_back(cluster: Cluster) -> AsyncIterator[None]:
    """Connections stay open, and what is sent in either direction arrives after the stall."""
    network = cluster.network
    assert isinstance(network, ProxiedNetwork)
    for name in NAMES:
        network.cut(name, POSTGRES)
    try:
        yield
    finally:
        network.heal()


STALLS_OF_POSTGRES = {"tables locked": tables_locked, "Postgres paused": postgres_paused}
STALLS_BY_PROXIES = {"proxies hold back": proxies_hold_back}


@asynccontextmanager
async def file_locked(path: Path) -> AsyncIterator[None]:
    """Another process has begun to write and does not go on: here a connection outside of the server."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)) as intruder:
        await asyncio.to_thread(intruder.execute, "BEGIN IMMEDIATE")
        yield
        intruder.execute("ROLLBACK")
