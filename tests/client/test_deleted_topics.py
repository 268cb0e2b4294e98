"""A pool at work on a topic that is deleted and registered again: it starts again without progress (ADR 107)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rota.client import Client, OffsetToCommit, Shard
from tests.client.test_topics_at_work import SESSION_S, client, coordinator

__all__ = ["client", "coordinator"]
DEADLINE_S = 30.0


class Work:
    """What a pool's shards have found, and a way to let them commit."""

    def __init__(self) -> None:
        self.positions: asyncio.Queue[int] = asyncio.Queue()
        self.may_commit = asyncio.Event()
        self.committed = asyncio.Event()

    async def __call__(self, shard: Shard) -> None:
        position = await shard.position()
        self.positions.put_nowait(position)
        while True:
            await self.may_commit.wait()
            self.may_commit.clear()
            self.committed.clear()
            await shard.commit(position + 1_000)
            self.committed.set()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_a_pool_starts_again_without_the_old_progress(client: Client, strategy: str) -> None:
    work = Work()
    await client.put_topic("orders", 1)
    async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as stack:
        pool = client.worker_pool(
            "g", ["orders"], work, strategy=strategy, session_timeout=SESSION_S, topics_debounce=3000.0
        )
        await stack.enter_async_context(pool)
        first = await work.positions.get()
        work.may_commit.set()
        await work.committed.wait()
        before = await client.offsets("g")
        # The leader waits for more changes of topics, so no member is told of these.
        await client.delete_topic("orders")
        await client.put_topic("orders", 1)
        while_at_work = await client.offsets("g")
        work.may_commit.set()
        again = await work.positions.get()
        refused = not work.committed.is_set()
        work.may_commit.set()
        await work.committed.wait()
        after = await client.offsets("g")

    assert (first, [each.offset for each in before], while_at_work) == (0, [1_000], ())
    assert refused
    assert (again, [each.offset for each in after]) == (0, [1_000])


async def test_a_position_is_none_after_the_topic_came_back(client: Client) -> None:
    await client.put_topic("orders", 4)
    await client.set_offsets("g", [OffsetToCommit("orders", 0, 1_000)])
    await client.delete_topic("orders")
    await client.put_topic("orders", 2)
    work = Work()

    async with asyncio.timeout(DEADLINE_S), client.worker_pool("g", ["orders"], work, session_timeout=SESSION_S):
        found = [await work.positions.get() for _ in range(2)]

    assert found == [0, 0]
    assert await client.offsets("g") == ()
