"""Waiting for a topic to change: a call parks while the topic is the one that the caller knows."""

from __future__ import annotations

import asyncio

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DeleteTopic, GetTopic, PutTopic, TopicReply
from rota.runtime.coordinator import LocalCoordinator
from tests.runtime.conftest import FaultyStore, until


async def put(coordinator: LocalCoordinator, partitions: int, *attributes: tuple[str, str]) -> TopicReply:
    reply = (await coordinator.call(PutTopic("default", "words", partitions, attributes))).reply
    assert isinstance(reply, TopicReply)
    return reply


async def changed(coordinator: LocalCoordinator, version: str, wait_ms: int = 20_000) -> TopicReply:
    reply = (await coordinator.call(GetTopic("default", "words", version, wait_ms))).reply
    assert isinstance(reply, TopicReply)
    return reply


async def parked(coordinator: LocalCoordinator, version: str) -> asyncio.Task[TopicReply]:
    """A call that has looked at the topic and waits."""
    task = asyncio.create_task(changed(coordinator, version))
    await until(lambda: any(("default", "") in host.watchers for host in coordinator._ownership.hosts.values()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_growth_attributes_and_deletion_are_told_when_they_happen(coordinator: LocalCoordinator) -> None:
    first = await put(coordinator, 4)

    waiting = await parked(coordinator, first.version)
    await put(coordinator, 8)
    grown = await waiting
    waiting = await parked(coordinator, grown.version)
    await put(coordinator, 8, ("rack", "r1"))
    labelled = await waiting
    waiting = await parked(coordinator, labelled.version)
    await coordinator.call(DeleteTopic("default", "words"))
    gone = await waiting

    assert (grown.partitions, labelled.attributes) == (8, (("rack", "r1"),))
    assert gone.error is ErrorCode.UNKNOWN_TOPIC


async def test_a_topic_that_is_not_there_can_be_waited_for(coordinator: LocalCoordinator) -> None:
    waiting = await parked(coordinator, "")
    await put(coordinator, 4)

    assert (await waiting).partitions == 4


async def test_who_knows_an_older_one_is_answered_at_once_and_who_knows_this_one_when_the_wait_is_over(
    coordinator: LocalCoordinator,
) -> None:
    old = await put(coordinator, 4)
    new = await put(coordinator, 8)

    assert (await changed(coordinator, old.version)).partitions == 8
    assert (await changed(coordinator, new.version, wait_ms=10)).version == new.version


async def test_a_change_that_is_not_durable_is_not_told(coordinator: LocalCoordinator, store: FaultyStore) -> None:
    first = await put(coordinator, 4)
    waiting = await parked(coordinator, first.version)
    store.open_gate.clear()
    growing = asyncio.create_task(put(coordinator, 8))
    await store.waiting.wait()
    told_before = waiting.done()
    store.open_gate.set()

    assert not told_before
    assert (await waiting).partitions == 8
    await growing


async def test_nobody_is_left_waiting_when_the_server_stops(coordinator: LocalCoordinator) -> None:
    first = await put(coordinator, 4)
    waiting = await parked(coordinator, first.version)

    await coordinator.drain()

    assert (await waiting).version in ("", first.version)
    assert not any(host.watchers for host in coordinator._ownership.hosts.values())
