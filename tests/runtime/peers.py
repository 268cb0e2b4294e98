"""Owners that answer as peers, and the connections of those that ask them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from rota.core.access.budgets import BUDGETS, Budgets
from rota.core.replica.ports import Answer, JournalEvent, Replica
from rota.protocol.messages import Heartbeat
from rota.server.peer.client import GrpcPeers
from rota.server.peer.server import PeerServer
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import EVENTUALLY_S, NOW, FaultyStore

SECRET, NEXT_SECRET = "a secret of replicas", "their next secret one"
BEAT = Heartbeat("default", "g", "m", 1)
EVENT = JournalEvent(7, 1, "default", "g", 1, "member_left", "it ended", {"member_id": "m"}, 5)


@asynccontextmanager
async def a_peer(
    tables: MemoryTables, *secrets: str, budgets: Budgets = BUDGETS, is_open: bool = False
) -> AsyncIterator[Replica]:
    store = FaultyStore(tables)
    await store.open(1)
    async with (
        LocalCoordinator(store, shard_count=1, limits=NOW) as local,
        served(local, *secrets, budgets=budgets, is_open=is_open) as peer,
    ):
        await local.wait_until_ready()
        yield peer


@asynccontextmanager
async def served(local: LocalCoordinator, *secrets: str, **options: Any) -> AsyncIterator[Replica]:
    server = PeerServer(local, "127.0.0.1", secrets=lambda: secrets, **options)
    await server.start()
    yield Replica("r", "http://r", f"127.0.0.1:{server.port}")
    await server.stop()


@asynccontextmanager
async def peers_that_show(*secrets: str) -> AsyncIterator[GrpcPeers]:
    peers = GrpcPeers(lambda: secrets)
    yield peers
    await peers.close()


@asynccontextmanager
async def an_owner(tables: MemoryTables, shards: int = 1) -> AsyncIterator[tuple[LocalCoordinator, FaultyStore]]:
    store = FaultyStore(tables)
    await store.open(shards)
    async with LocalCoordinator(store, shard_count=shards, limits=NOW) as local:
        await local.wait_until_ready()
        yield local, store


async def until_answered(ask: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(EVENTUALLY_S):
        while not isinstance(await ask(), Answer):
            pass
