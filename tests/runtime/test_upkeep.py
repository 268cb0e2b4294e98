"""Periodic maintenance: what goes is what nothing was committed for, by any door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from rota.core.group.rows import OffsetRow, SideCommit
from rota.core.replica.owned_shard import OwnedShard
from rota.core.replica.ports import Answer
from rota.protocol.messages import FetchOffsets, FetchReply, LeaveGroup, LeavingMember
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import NOW, FaultyStore, a_stable_member, until, until_ready


class BusyStore(FaultyStore):
    """While its side commits are read, a member commits in a transaction of its own and leaves."""

    leaving: OwnedShard | None = None
    member_id = ""
    leave: Callable[[], Coroutine[Any, Any, Answer]]
    left: asyncio.Task[Answer] | None = None

    async def side_commits(self, shard_ids: Sequence[int]) -> list[SideCommit]:
        found = await super().side_commits(shard_ids)
        if self.leaving is not None and self.leaving.shard_id in shard_ids:
            owned, self.leaving = self.leaving, None
            row = OffsetRow("default", "g", "documents", 0, 7, None, "", SystemClock().now_ms())
            self.tables.commit_beside(owned.shard_id, row, self.member_id)
            # It has left in memory; the append waits until the committer has read the side commits.
            self.left = asyncio.create_task(self.leave())
            await until(lambda: not owned.shard.groups["default", "g"].members)
        return found


async def test_a_group_that_is_left_during_a_sweep_keeps_its_progress(tables: MemoryTables) -> None:
    store = BusyStore(tables)
    await store.open(2)
    limits = replace(NOW, empty_group_retention_ms=0)
    async with LocalCoordinator(store, shard_count=2, limits=limits) as coordinator:
        await until_ready(coordinator)
        store.member_id = (await a_stable_member(coordinator)).member_id
        store.leave = lambda: coordinator.call(LeaveGroup("default", "g", (LeavingMember(store.member_id),)))
        here = coordinator.loop.leases.owned.values()
        store.leaving = next(owned for owned in here if owned.shard.groups)

        await coordinator.loop.sweep_all()

        assert store.left is not None
        await store.left
        reply = (await coordinator.call(FetchOffsets("default", "g"))).reply
    assert isinstance(reply, FetchReply)
    assert [offset.offset for offset in reply.offsets] == [7]
