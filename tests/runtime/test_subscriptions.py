"""Notifications of a group's journal on the spot, and the batch of heartbeats that is answered on the spot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from rota.core.replica.owned_shard import APPEND_LATEST_MS
from rota.core.replica.ports import JournalEvent
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    GetLeader,
    HeartbeatMany,
    HeartbeatManyReply,
    JoinReply,
    LeaderReply,
    LeaveGroup,
    LeavingMember,
    MemberHeartbeat,
)
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.client.virtual_time import LoopClock, in_virtual_time
from tests.runtime.conftest import FaultyStore, a_join, a_stable_member, until


def a_leave(member: JoinReply) -> LeaveGroup:
    return LeaveGroup("default", "g", (LeavingMember(member.member_id),))


async def test_a_listener_is_notified_before_the_answer_is_sent(coordinator: LocalCoordinator) -> None:
    reported: list[str] = []
    coordinator.subscribe("default", "g", lambda lines: reported.extend(line.kind for line in lines))
    coordinator.subscribe("default", "other", lambda lines: reported.append("not ours"))

    await coordinator.call(a_join())

    assert reported == ["member_joined", "rebalance_started", "generation_completed", "leader_changed"]


async def test_a_listener_that_has_ended_gets_nothing_more(coordinator: LocalCoordinator) -> None:
    reported: list[JournalEvent] = []
    end = coordinator.subscribe("default", "g", reported.extend)
    end()

    await a_stable_member(coordinator)

    assert reported == []


async def test_a_listener_gets_nothing_that_is_not_durable(coordinator: LocalCoordinator, store: FaultyStore) -> None:
    member = await a_stable_member(coordinator)
    reported: list[str] = []
    coordinator.subscribe("default", "g", lambda lines: reported.extend(line.kind for line in lines))
    store.open_gate.clear()

    leaving = asyncio.create_task(coordinator.call(a_leave(member)))
    await store.waiting.wait()
    assert reported == []
    store.open_gate.set()
    await leaving

    assert reported == ["member_left", "group_emptied"]


async def test_a_listener_learns_of_a_join_phase_before_it_is_durable(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    member = await a_stable_member(coordinator)
    reported: list[str] = []
    coordinator.subscribe("default", "g", lambda lines: reported.extend(line.kind for line in lines))
    store.appends.clear()

    joining = asyncio.create_task(coordinator.call(a_join(instance="i2")))
    await until(lambda: bool(reported))
    assert (reported, store.appends) == (["member_joined", "rebalance_started"], [])
    await coordinator.call(a_join(instance="i1", member_id=member.member_id))
    await joining

    assert reported == ["member_joined", "rebalance_started", "generation_completed"]
    assert store.appends == [3]


async def test_a_join_phase_of_a_group_that_is_watched_is_appended_at_once(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    await a_stable_member(coordinator)
    watching = asyncio.ensure_future(anext(coordinator.watch("default", "g")))
    await until(lambda: any(shard.watchers for shard in coordinator.loop.shards.values()))
    store.appends.clear()

    joining = asyncio.create_task(coordinator.call(a_join(instance="i2")))
    line = await watching

    assert (line.kind, store.appends) == ("member_joined", [2])
    joining.cancel()


@in_virtual_time
async def test_a_join_phase_that_lasts_is_appended_after_a_second() -> None:
    clock = LoopClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(1)
    limits = Limits(initial_rebalance_delay_ms=3 * APPEND_LATEST_MS)
    async with LocalCoordinator(store, shard_count=1, limits=limits, clock=clock, lease_ms=60_000) as coordinator:
        await coordinator.wait_until_ready()
        joining = asyncio.create_task(coordinator.call(a_join()))

        await asyncio.sleep(APPEND_LATEST_MS / 1000 - 0.1)
        assert [line.kind for line in await store.read_events(0, 1, 10)] == []
        await asyncio.sleep(0.2)
        assert [line.kind for line in await store.read_events(0, 1, 10)] == ["member_joined", "rebalance_started"]
        joining.cancel()


async def test_a_listener_that_fails_harms_nobody(coordinator: LocalCoordinator) -> None:
    reported: list[str] = []

    def fail(lines: Sequence[JournalEvent]) -> None:
        raise ValueError(lines[0].kind)

    coordinator.subscribe("default", "g", fail)
    coordinator.subscribe("default", "g", lambda lines: reported.extend(line.kind for line in lines))

    member = await a_stable_member(coordinator)

    assert member.generation_id == 1
    assert "assignment_synced" in reported


async def test_batched_heartbeats_are_answered_at_once_between_writes(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    member = await a_stable_member(coordinator)
    beats = HeartbeatMany("default", "g", (MemberHeartbeat(member.member_id, member.generation_id),))

    at_once = coordinator.try_heartbeat(beats)
    assert at_once is not None
    assert at_once.reply == HeartbeatManyReply(generation_id=member.generation_id, state="Stable")

    store.open_gate.clear()
    leaving = asyncio.create_task(coordinator.call(a_leave(member)))
    await store.waiting.wait()
    assert coordinator.try_heartbeat(beats) is None
    store.open_gate.set()
    await leaving
    gone = await coordinator.call(replace(beats))
    assert isinstance(gone.reply, HeartbeatManyReply)
    assert [error.error for error in gone.reply.errors] == ["UNKNOWN_MEMBER_ID"]


async def test_a_drain_answers_who_waits_for_a_leader(coordinator: LocalCoordinator) -> None:
    member = await a_stable_member(coordinator)
    waiting = asyncio.create_task(
        coordinator.call(GetLeader("default", "g", after_generation=member.generation_id, wait_ms=30_000))
    )
    await until(lambda: any(shard.watchers for shard in coordinator.loop.shards.values()))

    await coordinator.drain()

    async with asyncio.timeout(60):
        answer = await waiting
    assert isinstance(answer.reply, LeaderReply)
