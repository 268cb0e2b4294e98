"""The SDK's watch where lines of the journal are pruned: an error with the first revision, and never a silent gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import pytest

from rota.client import Client, CoordinatorUnreachable, GroupEvent, NotFound, RevisionOutOfRange
from rota.client.transports import HttpTransport, Transport
from rota.protocol.messages import CommitOffsets, OffsetToCommit
from rota.server.http.app import create_app
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.in_memory import InMemoryTransport
from rota.testing.memory import MemoryStore
from tests.client.stage import GROUP
from tests.client.virtual_time import LoopClock, in_virtual_time
from tests.http.serving import serving

LINES = 6
PRUNED = 4


@dataclass(frozen=True, slots=True)
class Stage:
    """A coordinator with the lines 5 and 6 of the only group of its only shard."""

    client: Client
    coordinator: LocalCoordinator
    store: MemoryStore

    async def commit(self, offset: int) -> None:
        await self.coordinator.call(CommitOffsets("default", GROUP, -1, (OffsetToCommit("docs", 0, offset),)))


@asynccontextmanager
async def pruned(transport: str) -> AsyncIterator[Stage]:
    store = MemoryStore(LoopClock().monotonic_ms)
    await store.open(1)
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(LocalCoordinator(store, shard_count=1))
        await coordinator.wait_until_ready()
        way: Transport = InMemoryTransport(coordinator)
        if transport == "http":
            served = await stack.enter_async_context(serving(create_app(coordinator)))
            way = HttpTransport([str(served.base_url)])
        stage = Stage(await stack.enter_async_context(Client(way)), coordinator, store)
        for offset in range(LINES - 1):
            await stage.commit(offset)
        store.tables.prune_shard(0, PRUNED)
        await stack.enter_async_context(asyncio.timeout(60))
        yield stage


@pytest.mark.parametrize("transport", ["http", "in memory"])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_watch_raises_the_first_revision_that_is_left(transport: str, after: int) -> None:
    async with pruned(transport) as stage:
        with pytest.raises(RevisionOutOfRange, match="read the present state") as refused:
            await anext(stage.client.watch(GROUP, after))
        went_on = await anext(stage.client.watch(GROUP, refused.value.first_revision - 1))

    assert isinstance(refused.value, NotFound)
    assert refused.value.first_revision == went_on.revision == PRUNED + 1


class BreaksOff(InMemoryTransport):
    """Each stream breaks off after its first line, and then the journal is pruned further than that."""

    def __init__(self, coordinator: LocalCoordinator, store: MemoryStore) -> None:
        super().__init__(coordinator)
        self._store = store

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        async with aclosing(super().watch(namespace, group_id, after_revision)) as lines:  # type: ignore[type-var]
            line: GroupEvent = await anext(lines)
        yield line
        self._store.tables.prune_shard(0, line.revision + 1)
        raise CoordinatorUnreachable("the connection broke")


@in_virtual_time
@pytest.mark.parametrize("beginning", [PRUNED, "earliest"])
async def test_a_watch_that_comes_back_to_pruned_lines_raises(
    beginning: int | Literal["earliest"],
) -> None:
    async with pruned("in memory") as stage:
        await stage.commit(99)
        watch = Client(BreaksOff(stage.coordinator, stage.store)).watch(GROUP, beginning)
        seen = await anext(watch)
        with pytest.raises(RevisionOutOfRange) as refused:
            await anext(watch)

    assert (seen.revision, refused.value.first_revision) == (PRUNED + 1, PRUNED + 3)
