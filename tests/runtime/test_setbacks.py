"""The production runtime on a store that goes back to an earlier state while nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.core.replica.going_back import Setback
from rota.core.replica.ports import Floor, StoreUnavailable
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.runtime.telemetry import Telemetry
from tests.runtime.conftest import NOW, FaultyStore, a_stable_member, until, until_ready
from tests.simulation.setbacks import SetbackTables

LEASE_MS = 300
"""So that a quiet shard is found within 100 ms."""


class FloorsGate(FaultyStore):
    """Floors are not written for as long as it is closed."""

    is_closed = True

    async def raise_floors(self, floors: Mapping[int, Floor]) -> None:
        if self.is_closed:
            raise StoreUnavailable("the floors are not written")
        await super().raise_floors(floors)


class Counting(Telemetry):
    shards = 0

    def on_store_went_back(self, setbacks: Sequence[Setback]) -> None:
        self.shards += len(setbacks)


def a_store() -> FloorsGate:
    tables = SetbackTables(SystemClock().monotonic_ms)
    tables.on_floors = lambda _floors: None
    tables.open(2)
    return FloorsGate(tables)


async def test_a_quiet_owner_is_not_ready_until_the_floors_are_written() -> None:
    store, telemetry = a_store(), Counting()
    tables = store.tables
    assert isinstance(tables, SetbackTables)
    async with LocalCoordinator(store, shard_count=2, limits=NOW, lease_ms=LEASE_MS, telemetry=telemetry) as owner:
        await until_ready(owner)
        before = tables.copied()
        lost = await a_stable_member(owner)

        tables.put_back(*before)
        await until(lambda: telemetry.shards > 0)
        is_ready, why = owner.ready()
        store.is_closed = False
        await until(lambda: owner.ready()[0])
        beat = await owner.call(Heartbeat("default", "g", lost.member_id, lost.generation_id))
        again = await a_stable_member(owner, instance="i2")

    assert not is_ready
    assert "the store went back to an earlier state" in why
    assert beat.reply.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert again.generation_id > lost.generation_id + 1
