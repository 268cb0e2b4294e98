"""A fence check is right whatever a clock says: the store confirms the owner before it is decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from rota.core.replica.ports import ShardClaim, StoreUnavailable
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import GetLeader, Heartbeat, JoinReply, Reply, Request, VerifyFence
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import NOW, FaultyStore, a_stable_member, until, until_ready


async def asked(coordinator: LocalCoordinator, request: Request) -> Reply:
    return (await coordinator.call(request)).reply


def fence_of(member: JoinReply) -> VerifyFence:
    return VerifyFence("default", "g", member.generation_id, member.member_id)


def taken_by_another(tables: MemoryTables) -> None:
    """As after a step of the store's clock: the lease is over there, and not here."""
    shard_ids = [owner.shard_id for owner in tables.owners()]
    assert tables.claim(shard_ids, "another", "http://another", 60_000, steal=True)


async def test_a_fence_is_not_confirmed_where_another_owns_the_shard(
    coordinator: LocalCoordinator, tables: MemoryTables
) -> None:
    member = await a_stable_member(coordinator)
    before = await asked(coordinator, fence_of(member))
    taken_by_another(tables)
    heartbeat = await asked(coordinator, Heartbeat("default", "g", member.member_id, member.generation_id))
    after = await asked(coordinator, fence_of(member))

    # The heartbeat relies on the lease: see docs/explanation/guarantees.md.
    assert [before.error, heartbeat.error] == [ErrorCode.NONE] * 2
    assert after.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    # The shard is not served any more: the replica found out.
    heartbeat = await asked(coordinator, Heartbeat("default", "g", member.member_id, member.generation_id))
    assert heartbeat.error is not ErrorCode.NONE


async def test_only_a_sole_owners_store_lets_a_fence_answer_at_once(tables: MemoryTables) -> None:
    """Where other replicas may own the shard, the store is asked first; a leader is answered by the lease."""
    for alone in (False, True):
        store = FaultyStore(tables)
        await store.open(2)
        async with LocalCoordinator(store, shard_count=2, limits=NOW, steal=alone) as coordinator:
            await until_ready(coordinator)
            member = await a_stable_member(coordinator, f"g-{alone}")
            fence = VerifyFence("default", f"g-{alone}", member.generation_id, member.member_id)
            leader, awaited = (GetLeader("default", f"g-{alone}", wait_ms=wait_ms) for wait_ms in (0, 1))

            assert coordinator.try_read(fence) == (await coordinator.call(fence) if alone else None)
            assert coordinator.try_read(leader) == await coordinator.call(leader)
            assert coordinator.try_read(awaited) is None
            assert coordinator.try_read(replace(fence, sign=True)) is None
            await coordinator.drain()
            assert coordinator.try_read(leader) is None


class WaitingStore(FaultyStore):
    """Its reads of owners wait for `go_on`."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__(tables)
        self.reads: list[int] = []
        self.go_on = asyncio.Event()

    async def confirm(self, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        self.reads.append(len(claims))
        await self.go_on.wait()
        if self.away:
            raise StoreUnavailable("the store is away")
        return await super().confirm(claims, replica_id)


@asynccontextmanager
async def waiting_store(tables: MemoryTables) -> AsyncIterator[tuple[WaitingStore, LocalCoordinator]]:
    store = WaitingStore(tables)
    await store.open(2)
    async with LocalCoordinator(store, shard_count=2, limits=NOW) as coordinator:
        await until_ready(coordinator)
        yield store, coordinator


async def test_checks_that_come_during_a_read_share_the_next(tables: MemoryTables) -> None:
    async with waiting_store(tables) as (store, coordinator):
        member = await a_stable_member(coordinator)
        checks = [asyncio.create_task(asked(coordinator, fence_of(member)))]
        await until(lambda: store.reads == [1])
        checks += [asyncio.create_task(asked(coordinator, fence_of(member))) for _ in range(5)]
        await asyncio.sleep(0)
        store.go_on.set()

        assert {(await check).error for check in checks} == {ErrorCode.NONE}
        assert store.reads == [1, 1]


async def test_a_store_that_does_not_answer_confirms_nothing(tables: MemoryTables) -> None:
    async with waiting_store(tables) as (store, coordinator):
        member = await a_stable_member(coordinator)
        store.away = True
        store.go_on.set()
        refused = await asked(coordinator, fence_of(member))
        store.away = False
        held = await asked(coordinator, fence_of(member))

    assert (refused.error, held.error) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE)


async def test_a_check_that_is_cancelled_leaves_the_others_alone(tables: MemoryTables) -> None:
    async with waiting_store(tables) as (store, coordinator):
        member = await a_stable_member(coordinator)
        first, second = (asyncio.create_task(asked(coordinator, fence_of(member))) for _ in range(2))
        await until(lambda: store.reads == [1])
        first.cancel()
        store.go_on.set()

        assert (await second).error is ErrorCode.NONE
        assert first.cancelled()
