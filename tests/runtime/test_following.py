"""News of a group reaches any replica that listens, wherever the group's shard is and wherever it goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from rota.core.replica.ports import JournalEvent
from rota.protocol.ids import shard_of
from rota.protocol.messages import CommitOffsets, OffsetToCommit
from rota.server.runtime import loop
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.runtime.following import Follower
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import a_join, a_stable_member, until
from tests.runtime.test_routing import RunningReplica, a_group_of, a_replica, fleet, settled

__all__ = ["fleet"]


class Listener:
    """The notifications that it got, in order."""

    def __init__(self) -> None:
        self.events: list[JournalEvent] = []

    def __call__(self, events: Sequence[JournalEvent]) -> None:
        self.events += events

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


async def test_events_of_a_group_of_another_replica_come_too(fleet: list[RunningReplica]) -> None:
    here, there = fleet[0], fleet[1]
    group, reported = a_group_of(there), Listener()
    end = here.routed.subscribe("default", group, reported)
    await until(lambda: bool(there.local._shard("default", group).watchers))  # type: ignore[union-attr]

    await there.routed.call(a_join(group))

    await until(lambda: reported.kinds[-1:] == ["leader_changed"])
    assert [event.seq for event in reported.events] == sorted({event.seq for event in reported.events})
    end()
    await here.routed.stop()


async def test_a_group_is_followed_where_it_goes(tables: MemoryTables) -> None:
    async with a_replica(tables, "r1") as staying:
        async with a_replica(tables, "r2") as going:
            await settled([staying, going])
            group, reported = a_group_of(going), Listener()
            end = staying.routed.subscribe("default", group, reported)
            await until(lambda: bool(going.local._shard("default", group).watchers))  # type: ignore[union-attr]
            await a_stable_member(staying.routed, group)  # type: ignore[arg-type]
            await until(lambda: "assignment_synced" in reported.kinds)
            await going.local.stop()
        await until(lambda: staying.local.is_here("default", group))

        await staying.routed.call(a_join(group, instance="i2", wait_ms=0))

        await until(lambda: reported.kinds[-1] == "rebalance_started")
        revisions = [event.seq for event in reported.events]
        assert revisions == sorted(set(revisions))
        end()
        await staying.routed.stop()


class MovedShard:
    """A shard that was here, and whose next owner did not get the lines of the last join phase."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []
        self.listener: Listener
        self.ends = asyncio.Event()

    def subscribe(self, _namespace: str, _group_id: str, listener: Any) -> Callable[[], None]:
        self.listener = listener
        return lambda: None

    def is_here(self, _namespace: str, _group_id: str) -> bool:
        return False

    async def until_moved(self, _namespace: str, _group_id: str) -> None: ...

    async def watch(self, namespace: str, group_id: str, after: int | None) -> AsyncIterator[JournalEvent]:
        self.asked.append(after)
        yield a_line(namespace, group_id, 8, "member_joined", epoch=2)
        await self.ends.wait()


def a_line(namespace: str, group_id: str, seq: int, kind: str, epoch: int = 1) -> JournalEvent:
    return JournalEvent(seq, 0, namespace, group_id, 1, kind, "", {}, epoch)


async def test_a_group_is_followed_from_its_last_durable_line_on() -> None:
    shard, reported = MovedShard(), Listener()
    local: Any = shard
    follower = Follower(local, shard.watch, "default", "g", reported)
    lines = [("assignment_synced", 7), ("member_joined", 8), ("rebalance_started", 9)]
    shard.listener([a_line("default", "g", seq, kind) for kind, seq in lines])

    await until(lambda: len(reported.events) == 4)

    assert shard.asked == [7]
    assert [(line.epoch, line.seq) for line in reported.events] == [(1, 7), (1, 8), (1, 9), (2, 8)]
    ended = follower.end()
    await asyncio.gather(ended, return_exceptions=True)


async def test_a_watcher_that_reads_nothing_keeps_few_lines(
    coordinator: LocalCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client does not read, so it stands behind a line. It ends there, and resumes by revision."""
    monkeypatch.setattr(loop, "BACKLOG", 5)
    watch = coordinator.watch("default", "g")
    waiting = asyncio.ensure_future(anext(watch))
    at_owner = coordinator.loop.shards[shard_of("default", "g", 2)]
    await until(lambda: bool(at_owner.watchers))
    [queue] = at_owner.watchers["default", "g"]

    await commit(coordinator, 1)
    first = await waiting
    await commit(coordinator, 20)

    assert queue.qsize() == 1
    assert [event async for event in watch] == []
    resumed = coordinator.watch("default", "g", first.seq)
    assert [(await anext(resumed)).seq - first.seq for _ in range(20)] == list(range(1, 21))


async def commit(coordinator: LocalCoordinator, times: int) -> None:
    """One line of the journal each."""
    for offset in range(times):
        await coordinator.call(CommitOffsets("default", "g", -1, (OffsetToCommit("docs", 0, offset),)))
