"""The owners of shards: read from the store once for all callers that wait while a shard moves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from rota.core.replica.forwarding import POLL_MS
from rota.core.replica.ports import Replica, ShardOwner
from rota.server.runtime.forwarding import Directory
from rota.testing.memory import MemoryStore
from tests.client.virtual_time import LoopClock, in_virtual_time

POLL_S = POLL_MS / 1000
LONG_MS = 60_000
PEER = Replica("r2", "http://r2")


class CountingStore(MemoryStore):
    """Knows how often it was asked for the owners."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.asked = 0

    async def owners(self) -> list[ShardOwner]:
        self.asked += 1
        return await super().owners()


def a_directory(store: CountingStore) -> Directory:
    directory = Directory(store, LoopClock(), "r1", 8)
    directory.peers = [PEER]
    return directory


def until_held(directory: Directory, here: set[int], shard_id: int) -> Coroutine[Any, Any, bool]:
    """Whether the shard has an owner in time, as a forwarded call waits for it."""
    return directory.await_owner(shard_id, here, directory.clock.monotonic_ms() + LONG_MS)


@in_virtual_time
async def test_however_many_wait_the_store_is_asked_once_in_a_while() -> None:
    store = CountingStore()
    directory = a_directory(store)
    waiting = []
    for _ in range(20):  # staggered, as requests are
        waiting.append(asyncio.create_task(until_held(directory, set(), 3)))
        await asyncio.sleep(POLL_S / 10)
    await asyncio.sleep(10 * POLL_S)

    assert store.asked <= 13
    await store.claim([3], PEER.replica_id, PEER.address, 5_000)
    await asyncio.gather(*waiting)
    assert directory.peer_of(3) == PEER


@in_virtual_time
async def test_a_shard_that_arrives_here_is_noticed_at_once() -> None:
    hosts: set[int] = set()
    directory = a_directory(CountingStore())
    waiting = asyncio.create_task(until_held(directory, hosts, 3))
    await asyncio.sleep(POLL_S / 4)
    began = asyncio.get_running_loop().time()

    hosts.add(3)
    directory.note_arrival()
    assert await waiting

    assert asyncio.get_running_loop().time() == began
