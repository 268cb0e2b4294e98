"""What happens in a coordinator shows in its metrics, under causes that are few."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from rota.core.replica.forwarding import NoAnswer
from rota.core.replica.ports import Answer, Cancel, JournalEvent, Replica, ShardOwner
from rota.protocol.messages import (
    DeleteGroup,
    Heartbeat,
    JoinReply,
    LeaveGroup,
    LeavingMember,
    Protocol,
    PutTopic,
    SyncGroup,
)
from rota.server.health import HealthCheck
from rota.server.observability.metrics import Metrics
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.telemetry import ServerTelemetry
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import NOW, FaultyStore, a_join, a_stable_member, tables, until, until_ready

__all__ = ["tables"]  # a fixture


OF_CRITICAL = "rota_critical_group_troubles"


@dataclass(frozen=True, slots=True)
class Observed:
    """A coordinator with the metrics that a server would have."""

    coordinator: LocalCoordinator
    store: FaultyStore
    metrics: Metrics
    health: HealthCheck

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def until_value(self, at_least: float, name: str, **labels: str) -> None:
        await until(lambda: self.value(name, **labels) >= at_least)


@pytest.fixture
async def observed(tables: MemoryTables) -> AsyncIterator[Observed]:
    store, metrics = FaultyStore(tables), Metrics()
    await store.open(2)
    telemetry = ServerTelemetry(metrics)
    async with LocalCoordinator(store, shard_count=2, limits=NOW, telemetry=telemetry, lease_ms=1_500) as coordinator:
        health = HealthCheck(coordinator, coordinator.call, ("default/g", "default/nightly"))
        metrics.serves("1.2.3", health.take_census)
        await until_ready(coordinator)
        yield Observed(coordinator, store, metrics, health)


async def test_a_rebalance_is_counted_by_cause_and_timed_by_phase(observed: Observed) -> None:
    await a_stable_member(observed.coordinator)

    assert observed.value("rota_group_changes_total", cause="member_joined") == 1
    assert observed.value("rota_rebalance_duration_seconds_count", phase="join") == 1
    assert observed.value("rota_rebalance_duration_seconds_count", phase="sync") == 1


async def test_groups_and_members_are_counted_when_somebody_asks(observed: Observed) -> None:
    await a_stable_member(observed.coordinator, "one")
    left = await a_stable_member(observed.coordinator, "other")
    await observed.coordinator.call(LeaveGroup("default", "other", members=(LeavingMember(left.member_id, None),)))

    assert observed.value("rota_groups", state="Stable") == 1
    assert observed.value("rota_groups", state="Empty") == 1
    assert observed.value("rota_members") == 1
    assert observed.value("rota_ready") == 1
    assert observed.value("rota_shards_due") == observed.value("rota_shards") == 2


async def test_a_partition_without_an_owner_is_counted_until_it_has_one(observed: Observed) -> None:
    await observed.coordinator.call(PutTopic("default", "docs", 2))
    own_strategy = (Protocol("mine", b'{"topics": ["docs"]}'),)
    joined = (await observed.coordinator.call(a_join(protocol_type="consumer", protocols=own_strategy))).reply
    assert isinstance(joined, JoinReply)

    async def counted_with(share: bytes) -> tuple[float, float]:
        shares = ((joined.member_id, share),)
        await observed.coordinator.call(SyncGroup("default", "g", joined.member_id, 1, "i1", assignments=shares))
        await observed.health.sweep()
        return observed.value("rota_troubles", kind="unowned"), observed.value(OF_CRITICAL, group="default/g")

    assert await counted_with(b'{"topics": {}}') == (2, 1)
    assert await counted_with(b'{"topics": {"docs": [0, 1]}}') == (0, 0)
    assert observed.value(OF_CRITICAL, group="default/nightly") == 1, "a critical group that does not exist"


async def test_topics_of_a_namespace_without_groups_are_forgotten(observed: Observed) -> None:
    await observed.coordinator.call(PutTopic("default", "docs", 2))
    own_strategy = (Protocol("mine", b'{"topics": ["docs"]}'),)
    joined = (await observed.coordinator.call(a_join(protocol_type="consumer", protocols=own_strategy))).reply
    assert isinstance(joined, JoinReply)
    shares = ((joined.member_id, b'{"topics": {}}'),)
    await observed.coordinator.call(SyncGroup("default", "g", joined.member_id, 1, "i1", assignments=shares))
    await observed.health.sweep()
    assert list(observed.health._topics) == ["default"]

    await observed.coordinator.call(LeaveGroup("default", "g", members=(LeavingMember(joined.member_id, None),)))
    await observed.coordinator.call(DeleteGroup("default", "g"))
    await observed.health.sweep()

    assert observed.health._topics == {}


async def test_an_expired_member_shows_how_late_that_was(observed: Observed) -> None:
    await observed.coordinator.call(a_join(session_timeout_ms=NOW.min_session_timeout_ms))

    await observed.until_value(1, "rota_journal_events_total", kind="member_expired")
    assert observed.value("rota_expiry_lateness_seconds_count") == 1
    assert 0 <= observed.value("rota_expiry_lateness_seconds_sum") < 1


async def test_a_store_without_answers_is_counted_and_costs_shards(observed: Observed) -> None:
    observed.store.away = True

    await observed.until_value(1, "rota_store_failures_total", operation="leases")

    observed.store.fail = True
    await observed.coordinator.call(a_join())
    await observed.until_value(1, "rota_store_failures_total", operation="commit")
    await observed.until_value(1, "rota_shards_dropped_total", cause="store_failed")


async def test_calls_that_peers_answer_are_counted_by_how(tables: MemoryTables) -> None:
    metrics, store, peer = Metrics(), FaultyStore(tables), Replica("r2", "")
    telemetry = ServerTelemetry(metrics)
    local = LocalCoordinator(store, shard_count=1, limits=NOW, telemetry=telemetry, peers=_DeafPeers())
    local.directory.peers = [peer]
    local.directory.owners = {0: ShardOwner(0, peer.replica_id, "", 1, lease_left_ms=60_000)}
    forwarder, answered = local.forwarder, asyncio.get_running_loop().create_future()
    assert forwarder is not None

    await forwarder.call(a_join())
    forwarder.submit(Heartbeat("default", "g", "m", 1), answered.set_result)
    await answered

    assert metrics.registry.get_sample_value("rota_forwarded_calls_total", {"code": "UNREACHABLE"}) == 2


def test_a_phase_that_began_in_a_former_claim_is_not_timed() -> None:
    """Its last lines may be reported after the shard was dropped: subscribers get them first."""
    metrics = Metrics()
    telemetry = ServerTelemetry(metrics)
    completed = JournalEvent(1, 0, "default", "g", 1, "generation_completed", "", {"started_at_ms": 0})
    synced = JournalEvent(2, 3_600_000, "default", "g", 1, "assignment_synced", "", {"resync": False})

    telemetry.on_shard_loaded(0, 1, 0, 0.0)
    telemetry.on_shard_dropped(0, 1, "handed over")
    telemetry.on_commit({0: [completed]}, 0.0)
    telemetry.on_shard_loaded(0, 3, 1, 0.0)
    telemetry.on_commit({0: [synced]}, 0.0)

    assert metrics.registry.get_sample_value("rota_rebalance_duration_seconds_count", {"phase": "sync"}) is None


def test_a_dropped_shard_has_a_cause() -> None:
    metrics = Metrics()

    metrics.shard_dropped("the lease had run out before it was renewed")
    metrics.shard_dropped("the shard belongs to another replica now, or the store went back")
    metrics.shard_dropped("what nobody thought of")

    dropped = [
        metrics.registry.get_sample_value("rota_shards_dropped_total", {"cause": c}) for c in ("lease_lost", "other")
    ]
    assert dropped == [2, 1]


class _DeafPeers:
    """Peers that never answer."""

    def submit(self, peer: Replica, request: object, done: Callable[[Answer | NoAnswer], None]) -> Cancel:
        return asyncio.get_running_loop().call_soon(done, NoAnswer("gone")).cancel

    def watch(
        self, peer: Replica, namespace: str, group_id: str, after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        raise NotImplementedError

    async def held(self, owners: object) -> set[int]:
        return set()

    async def notify_released(self, peers: object) -> None: ...

    async def notify_topics_changed(self, peers: object, namespaces: object) -> None: ...

    async def close(self) -> None: ...
