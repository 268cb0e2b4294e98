"""An owner with a slow store keeps its leases for as long as that can be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from rota.core.group.rows import ShardImage
from rota.core.replica.known_owners import UNCLAIMED_MS
from rota.core.replica.ports import Renewal, Replica, ShardClaim, ShardOwner
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore, MemoryTables
from tests.client.virtual_time import LoopClock, in_virtual_time
from tests.runtime.conftest import NOW

LEASE_MS = 1_000
SHARDS = 24


class SlowStore(MemoryStore):
    """The twin, with answers that take a while to come back."""

    def __init__(self, clock: LoopClock, *, answer_s: float = 0.0, load_s: float = 0.0) -> None:
        super().__init__(clock.monotonic_ms, tables=MemoryTables(clock.monotonic_ms))
        self._answer_s = answer_s
        self._load_s = load_s
        self.late: dict[str, asyncio.Event] = {}
        """Replicas that register a tenth of a second late, and an event that is set when one has."""

    async def register(self, replica: Replica, ttl_ms: int) -> list[Replica]:
        registered = self.late.get(replica.replica_id)
        if registered is not None:
            await asyncio.sleep(0.1)
            registered.set()
        answer = await super().register(replica, ttl_ms)
        await asyncio.sleep(self._answer_s)
        return answer

    async def owners(self) -> list[ShardOwner]:
        answer = await super().owners()
        await asyncio.sleep(self._answer_s)
        return answer

    async def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        answer = await super().renew(claims, replica_id, lease_ms)
        await asyncio.sleep(self._answer_s)
        return answer

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        await asyncio.sleep(self._load_s)
        return await super().load(shard_ids)


@pytest.mark.parametrize(
    "slow",
    [pytest.param({"answer_s": 0.2}, id="answers"), pytest.param({"load_s": 0.4}, id="loads")],
)
def test_no_lease_runs_out_while_the_store_is_slow(slow: dict[str, float]) -> None:
    @in_virtual_time
    async def in_time() -> None:
        clock = LoopClock()
        store = SlowStore(clock, **slow)
        await store.open(SHARDS)
        async with LocalCoordinator(store, shard_count=SHARDS, limits=NOW, clock=clock, lease_ms=LEASE_MS) as local:
            await local.wait_until_ready()
            await asyncio.sleep(20 * LEASE_MS / 1_000)

            # A shard without its lease would have been claimed again, with another epoch.
            assert [owner.epoch for owner in local.owners()] == [1] * SHARDS

    in_time()


class StarvedStore(SlowStore):
    """The twin on a busy machine: it takes a third of a lease to load each shard."""

    loaded = 0

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        self.loaded += len(shard_ids)
        await asyncio.sleep(len(shard_ids) * LEASE_MS / 3_000)
        return await super().load(shard_ids)


@pytest.mark.parametrize("is_embedded", [True, False])
def test_loading_that_takes_longer_than_a_lease_ends(is_embedded: bool) -> None:
    @in_virtual_time
    async def in_time() -> None:
        clock = LoopClock()
        store = StarvedStore(clock)
        await store.open(SHARDS)
        async with LocalCoordinator(
            store, shard_count=SHARDS, limits=NOW, clock=clock, lease_ms=LEASE_MS, steal=is_embedded
        ) as local:
            async with asyncio.timeout(3 * SHARDS * LEASE_MS / 3_000):
                await local.wait_until_ready()
            await asyncio.sleep(20 * LEASE_MS / 1_000)

            assert local.ready()[0]
            # Without a lease to lose, each shard is loaded once.
            assert store.loaded == SHARDS if is_embedded else store.loaded < 3 * SHARDS

    in_time()


class StuckStore(MemoryStore):
    """The twin, without its first answer to `load`."""

    loads = 0

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        self.loads += 1
        if self.loads == 1:
            await asyncio.Event().wait()
        return await super().load(shard_ids)


@in_virtual_time
async def test_a_load_without_answer_ends_with_its_lease() -> None:
    clock = LoopClock()
    store = StuckStore(clock.monotonic_ms)
    await store.open(SHARDS)
    async with LocalCoordinator(store, shard_count=SHARDS, limits=NOW, clock=clock, lease_ms=LEASE_MS) as local:
        async with asyncio.timeout(2 * LEASE_MS / 1_000):
            await local.wait_until_ready()

    assert store.loads > 1


@pytest.mark.parametrize("dies_within_a_round", [False, True])
def test_a_dead_replicas_shards_are_claimed_at_its_leases_end(dies_within_a_round: bool) -> None:
    """Also if it had renewed its registration, and then died before it renewed its leases."""

    @in_virtual_time
    async def in_time() -> None:
        clock = LoopClock()
        store = SlowStore(clock, answer_s=0.01)
        await store.open(SHARDS)
        options = {"shard_count": SHARDS, "limits": NOW, "clock": clock, "lease_ms": 60_000}
        dies, stays = (LocalCoordinator(store, replica_id=name, **options) for name in ("r1", "r2"))  # type: ignore[arg-type]
        async with dies, stays:
            await until(lambda: len(dies.owners()) + len(stays.owners()) == SHARDS)
            await asyncio.sleep(27.0)
            if dies_within_a_round:
                store.late[dies.replica_id] = asyncio.Event()
                await store.late[dies.replica_id].wait()
                await asyncio.sleep(0.005)
            await dies.crash()
            died_ms = clock.monotonic_ms()

            await until(lambda: len(stays.owners()) == SHARDS)

            assert clock.monotonic_ms() <= died_ms + 60_000 + UNCLAIMED_MS

    in_time()


@in_virtual_time
async def test_who_lets_a_shard_go_in_order_says_so_in_its_last_line() -> None:
    """And a replica that dies writes nothing: that is how the journal separates one from the other."""
    clock = LoopClock()
    store = SlowStore(clock)
    await store.open(SHARDS)
    for name in ("stops", "dies", "last"):
        async with LocalCoordinator(
            store, replica_id=name, shard_count=SHARDS, limits=NOW, clock=clock, lease_ms=LEASE_MS
        ) as local:
            await until(lambda: len(local.owners()) == SHARDS)
            if name == "dies":
                await local.crash()

    lines = [(event.kind, event.payload["replica_id"]) for event in await store.read_events(0, 0, 9)]
    assert lines == [
        ("shard_acquired", "stops"),
        ("shard_released", "stops"),
        ("shard_acquired", "dies"),
        ("shard_acquired", "last"),
        ("shard_released", "last"),
    ]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event for it
        await asyncio.sleep(0.01)
