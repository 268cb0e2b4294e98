"""`client.watch_topic` yields a topic each time that it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rota.client import Client
from rota.protocol.messages import TopicReply
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.in_memory import InMemoryTransport
from rota.testing.memory import MemoryStore
from tests.client.stage import Cable, a_coordinator
from tests.client.virtual_time import in_virtual_time

DEADLINE_S = 60.0


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    store = MemoryStore(SystemClock().monotonic_ms)
    await store.open(2)
    async with LocalCoordinator(store, shard_count=2) as coordinator:
        await coordinator.wait_until_ready()
        async with Client(InMemoryTransport(coordinator)) as client:
            yield client


async def test_a_topic_is_watched_from_before_its_start_to_its_end(client: Client) -> None:
    seen: list[TopicReply | None] = []

    async with asyncio.timeout(DEADLINE_S):
        async for topic in client.watch_topic("words"):
            seen.append(topic)
            match len(seen):
                case 1:
                    await client.put_topic("words", 2)
                case 2:
                    await client.put_topic("words", 4, {"weight": "3"})
                case 3:
                    await client.delete_topic("words")
                case _:
                    break

    assert [topic and (topic.partitions, topic.attributes) for topic in seen] == [
        None,
        (2, {}),
        (4, {"weight": "3"}),
        None,
    ]


@in_virtual_time
async def test_a_topic_is_watched_through_a_silence_of_two_minutes() -> None:
    seen: list[int] = []

    async def watch(client: Client) -> None:
        async for topic in client.watch_topic("words"):
            assert topic is not None
            seen.append(topic.partitions)

    async with a_coordinator() as coordinator:
        admin, cable = Client(Cable(coordinator)), Cable(coordinator)
        await admin.put_topic("words", 1)
        watching = asyncio.create_task(watch(Client(cable)))
        await asyncio.sleep(1)
        cable.is_silent = True
        await asyncio.sleep(120)
        await admin.put_topic("words", 2)
        cable.is_silent = False
        await asyncio.sleep(30)
        watching.cancel()

    assert seen == [1, 2]
