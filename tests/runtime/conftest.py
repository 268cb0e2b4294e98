"""A coordinator on a store in memory that a test can let hang, refuse or lose its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from msgspec.structs import replace

from rota.core.replica.ports import Renewal, ShardBatch, ShardClaim, StoreUnavailable
from rota.protocol.limits import Limits
from rota.protocol.messages import JoinGroup, JoinReply, Protocol, SyncGroup
from rota.server.peer import client
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore, MemoryTables

NOW = Limits(initial_rebalance_delay_ms=0)
EVENTUALLY_S = 60.0


class FaultyStore(MemoryStore):
    """The twin, with a gate in front of `append` and a switch for what becomes of it."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__(SystemClock().monotonic_ms, tables=tables)
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.waiting = asyncio.Event()
        self.open_answers = asyncio.Event()
        self.open_answers.set()
        """While it is not set, an append is durable and not answered."""
        self.lose_answer = False
        self.broken: Exception | None = None
        """What the next append raises: a bug of the store's."""
        self.fail = False
        self.away = False
        self.appends: list[int] = []

    async def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        if self.away:
            raise StoreUnavailable("the store is away")
        return await super().renew(claims, replica_id, lease_ms)

    async def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        self.waiting.set()
        await self.open_gate.wait()
        self.waiting.clear()
        if self.broken is not None:
            broken, self.broken = self.broken, None
            raise broken
        if self.fail:
            raise StoreUnavailable("the store is away")
        refused = await super().append(batches)
        self.appends.append(sum(len(batch.events) for batch in batches))
        await self.open_answers.wait()
        if self.lose_answer:
            raise StoreUnavailable("the answer was lost")
        return refused


@pytest.fixture(autouse=True)
def _peers_are_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of which replicas are not notified in time they find at the next refresh, for which tests do not wait."""
    monkeypatch.setattr(client, "NOTIFY_S", EVENTUALLY_S)


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables(SystemClock().monotonic_ms)


@pytest.fixture
async def store(tables: MemoryTables) -> FaultyStore:
    store = FaultyStore(tables)
    await store.open(2)
    return store


@pytest.fixture
async def coordinator(store: FaultyStore) -> AsyncIterator[LocalCoordinator]:
    async with LocalCoordinator(store, shard_count=2, limits=NOW) as coordinator:
        await until_ready(coordinator)
        yield coordinator


async def until(condition: Callable[[], bool]) -> None:
    """Let the tasks run until something is so; it must become so."""
    async with asyncio.timeout(EVENTUALLY_S):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.002)


async def until_ready(coordinator: LocalCoordinator) -> None:
    async with asyncio.timeout(EVENTUALLY_S):
        await coordinator.wait_until_ready()


def a_join(group_id: str = "g", *, instance: str | None = "i1", member_id: str = "", **fields: object) -> JoinGroup:
    request = JoinGroup(
        namespace="default",
        group_id=group_id,
        protocol_type="worker",
        protocols=(Protocol("p", b"m"),),
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        group_instance_id=instance,
    )
    return replace(request, **fields)


async def a_stable_member(coordinator: LocalCoordinator, group_id: str = "g", instance: str = "i1") -> JoinReply:
    """One static member that leads, alone, a Stable group."""
    joined = (await coordinator.call(a_join(group_id, instance=instance))).reply
    assert isinstance(joined, JoinReply)
    await coordinator.call(
        SyncGroup(
            "default", group_id, joined.member_id, joined.generation_id, assignments=((joined.member_id, b"all"),)
        )
    )
    return joined
