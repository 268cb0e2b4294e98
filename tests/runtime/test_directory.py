"""Who holds what: asked of the store once for all who wait while a shard moves."""

from __future__ import annotations

import asyncio

from rota.replica.ports import Replica, ShardOwner
from rota.runtime.directory import LOOK_AGAIN_MS, Directory
from rota.storage import MemoryStore
from tests.client.virtual_time import LoopClock, in_virtual_time

LOOK_AGAIN_S = LOOK_AGAIN_MS / 1000
PEER = Replica("r2", "http://r2")


class CountingStore(MemoryStore):
    """Knows how often it was asked for the owners."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.asked = 0

    async def owners(self) -> list[ShardOwner]:
        self.asked += 1
        return await super().owners()


def a_directory(store: CountingStore, hosts: set[int]) -> Directory:
    directory = Directory(store, LoopClock(), "r1", 8, hosts)
    directory.peers = [PEER]
    return directory


@in_virtual_time
async def test_however_many_wait_the_store_is_asked_once_in_a_while() -> None:
    store = CountingStore()
    directory = a_directory(store, set())
    waiting = []
    for _ in range(20):  # staggered, as requests are
        waiting.append(asyncio.create_task(directory.until_held(3)))
        await asyncio.sleep(LOOK_AGAIN_S / 10)
    await asyncio.sleep(10 * LOOK_AGAIN_S)

    assert store.asked <= 13
    await store.claim([3], PEER.replica_id, PEER.address, 5_000)
    await asyncio.gather(*waiting)
    assert directory.peer_of(3) == PEER


@in_virtual_time
async def test_a_shard_that_arrives_here_is_noticed_at_once() -> None:
    hosts: set[int] = set()
    directory = a_directory(CountingStore(), hosts)
    waiting = asyncio.create_task(directory.until_held(3))
    await asyncio.sleep(LOOK_AGAIN_S / 4)
    began = asyncio.get_running_loop().time()

    hosts.add(3)
    directory.note_arrival()
    await waiting

    assert asyncio.get_running_loop().time() == began
