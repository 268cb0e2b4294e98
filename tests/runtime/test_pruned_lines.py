"""A watch of a group ends with an error where lines are pruned, at the owner and through other replicas."""

from __future__ import annotations

import asyncio

import pytest

from rota.core.replica.ports import JournalEvent
from rota.protocol.errors import LinesPruned, ReaderIsAhead
from rota.protocol.ids import shard_of
from rota.protocol.messages import CommitOffsets, OffsetToCommit
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.runtime.following import PAGE, Follower
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import FaultyStore, a_join, until
from tests.runtime.test_following import Listener
from tests.runtime.test_routing import SHARDS, SOON_S, RunningReplica, a_group_of, fleet

__all__ = ["fleet"]


async def commit(coordinator: LocalCoordinator, group_id: str, times: int) -> None:
    """One line of the journal each."""
    for offset in range(times):
        await coordinator.call(CommitOffsets("default", group_id, -1, (OffsetToCommit("docs", 0, offset),)))


async def test_a_watch_that_is_overtaken_between_two_pages_is_stopped(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    await commit(coordinator, "g", PAGE + 10)
    seen: list[JournalEvent] = []

    async def follow() -> None:
        async for event in coordinator.watch("default", "g", 0):
            seen.append(event)
            if len(seen) == 1:
                store.tables.prune_shard(shard_of("default", "g", 2), event.seq + PAGE + 4)

    async with asyncio.timeout(SOON_S):
        with pytest.raises(LinesPruned) as stopped:
            await follow()

    assert [event.seq for event in seen] == list(range(seen[0].seq, seen[0].seq + PAGE))
    assert stopped.value.first_revision == seen[0].seq + PAGE + 5


async def test_a_watch_from_a_line_that_its_owner_does_not_know_to_be_durable_starts_after_it(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    """A reader of the store sees a line before the append of the line is answered."""
    await commit(coordinator, "g", 1)
    store.open_answers.clear()
    committing = asyncio.create_task(commit(coordinator, "g", 2))
    shard_id = shard_of("default", "g", 2)
    await until(lambda: len(store.tables.read_events(shard_id, 0, PAGE)) == 3)
    landed = store.tables.read_events(shard_id, 0, PAGE)[-1]

    async def follow() -> JournalEvent:
        return await anext(coordinator.watch("default", "g", landed.seq))

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    store.open_answers.set()
    await committing

    async with asyncio.timeout(SOON_S):
        assert (await following).seq == landed.seq + 1


async def test_a_watch_through_another_replica_is_stopped_too(
    fleet: list[RunningReplica], tables: MemoryTables
) -> None:
    here, there = fleet[0], fleet[1]
    group = a_group_of(there)
    await commit(there.local, group, 5)
    tables.prune_shard(shard_of("default", group, SHARDS), 4)

    async with asyncio.timeout(SOON_S):
        with pytest.raises(LinesPruned) as stopped:
            await anext(here.routed.watch("default", group, 1))
    with pytest.raises(LinesPruned) as checked:
        await here.routed.check_revision("default", group, 1)

    for refusal in (stopped.value, checked.value):
        assert (refusal.after_revision, refusal.first_revision) == (1, 5)
    assert (await anext(here.routed.watch("default", group, 4))).seq == 5


async def test_a_watch_beyond_the_journals_end_is_stopped(fleet: list[RunningReplica], tables: MemoryTables) -> None:
    here, there = fleet[0], fleet[1]
    group = a_group_of(there)
    await commit(there.local, group, 5)
    end = tables.load(shard_of("default", group, SHARDS)).last_seq

    refusals = []
    async with asyncio.timeout(SOON_S):
        for watch in (here.routed.watch, there.local.watch):
            with pytest.raises(ReaderIsAhead) as stopped:
                await anext(watch("default", group, end + 1))
            refusals.append(stopped.value)

    for refusal in refusals:
        assert (refusal.after_revision, refusal.first_revision) == (end + 1, 1)
        assert (refusal.last_revision, refusal.incarnation) == (end, tables.incarnation)


async def test_a_follower_goes_on_with_a_later_epoch_of_a_lost_line(
    fleet: list[RunningReplica], caplog: pytest.LogCaptureFixture
) -> None:
    """The store went back: the follower has seen lines that are gone, and the next ones have lower numbers."""
    here, there = fleet[0], fleet[1]
    group, listener = a_group_of(there), Listener()
    await commit(there.local, group, 1)

    follower = Follower(here.local, here.routed.watch, "default", group, listener)
    follower._last, follower._durable_seq = (0, 1_000), 1_000
    await until(lambda: bool(there.local._shard("default", group).watchers))  # type: ignore[union-attr]
    await there.routed.call(a_join(group))
    await until(lambda: listener.kinds[-1:] == ["leader_changed"])

    assert listener.kinds[0] == "member_joined"
    assert "events of a followed group are gone; going on after them" in caplog.text
    await asyncio.gather(follower.end(), return_exceptions=True)


async def test_a_follower_goes_on_behind_pruned_lines_and_says_so(
    fleet: list[RunningReplica], tables: MemoryTables, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = fleet[0], fleet[1]
    group, listener = a_group_of(there), Listener()
    await commit(there.local, group, 5)
    tables.prune_shard(shard_of("default", group, SHARDS), 4)

    follower = Follower(here.local, here.routed.watch, "default", group, listener)
    follower._last, follower._durable_seq = (1, 1), 1  # where it was when the group's owner went away
    await until(lambda: bool(there.local._shard("default", group).watchers))  # type: ignore[union-attr]
    await there.routed.call(a_join(group))
    await until(lambda: listener.kinds[-1:] == ["leader_changed"])

    assert listener.events[0].seq == 5
    assert "events of a followed group are gone; going on after them" in caplog.text
    await asyncio.gather(follower.end(), return_exceptions=True)
