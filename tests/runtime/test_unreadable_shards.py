"""A shard that cannot be loaded costs its own groups, and no other: the replica runs on and tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rota.core.group.rows import ShardImage
from rota.core.replica.owned_shard import OwnedShard
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.runtime.telemetry import Telemetry
from rota.testing.memory import MemoryStore
from tests.client.virtual_time import LoopClock, in_virtual_time
from tests.runtime.conftest import NOW

LEASE_MS = 1_000
SHARDS = 4
BROKEN = 2


class Dropped(Telemetry):
    """Counts the shards that were dropped, by id and reason."""

    def __init__(self) -> None:
        self.dropped: set[tuple[int, str]] = set()

    def on_shard_dropped(self, shard_id: int, epoch: int, reason: str) -> None:
        self.dropped.add((shard_id, reason))


def _rows_of_a_later_release(patch: pytest.MonkeyPatch) -> None:
    load = MemoryStore.load

    async def load_readable(self: MemoryStore, shard_ids: Sequence[int]) -> list[ShardImage]:
        if BROKEN in shard_ids:
            raise ValueError("odd rows")
        return await load(self, shard_ids)

    patch.setattr(MemoryStore, "load", load_readable)


def _rows_that_are_no_group(patch: pytest.MonkeyPatch) -> None:
    load = OwnedShard.load

    def load_possible(claim: Any, *args: Any, **kwargs: Any) -> Any:
        if claim.shard_id == BROKEN:
            raise ValueError("odd rows")
        return load(claim, *args, **kwargs)

    patch.setattr(OwnedShard, "load", load_possible)


@pytest.mark.parametrize("break_", [_rows_of_a_later_release, _rows_that_are_no_group])
def test_a_shard_that_cannot_be_loaded_costs_no_other(break_: Callable[[pytest.MonkeyPatch], None]) -> None:
    @in_virtual_time
    async def in_time() -> None:
        clock, telemetry = LoopClock(), Dropped()
        store = MemoryStore(clock.monotonic_ms)
        await store.open(SHARDS)
        with pytest.MonkeyPatch.context() as patch:
            break_(patch)
            local = LocalCoordinator(
                store, shard_count=SHARDS, limits=NOW, clock=clock, lease_ms=LEASE_MS, telemetry=telemetry
            )
            await local.start()
            await asyncio.sleep(10 * LEASE_MS / 1_000)

            assert [owner.epoch for owner in local.owners()] == [1] * (SHARDS - 1), "the others keep their leases"
            assert local.ready() == (False, "3 shards are served, 4 are due to this replica")
            assert telemetry.dropped == {(BROKEN, "a broken invariant: ValueError('odd rows')")}

        async with asyncio.timeout(2 * LEASE_MS / 1_000):
            await local.wait_until_ready()
        assert local.ready()[0]
        await local.stop()

    in_time()
