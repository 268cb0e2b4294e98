"""A topic that was deleted and comes back has no progress of the earlier one (ADR 107), whatever fails in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import pytest

from rota.core.replica.ports import ShardBatch
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    DeleteTopic,
    FetchOffsets,
    FetchReply,
    OffsetToCommit,
    PutTopic,
    TopicReply,
)
from rota.server.runtime.coordinator import LocalCoordinator, RoutedCoordinator
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import NOW, FaultyStore, until_ready
from tests.runtime.test_routing import SHARDS, RunningReplica, a_replica, settled

GROUPS = tuple(f"g{number}" for number in range(12))
"""Of several shards, and in a fleet of several replicas."""
Coordinator = LocalCoordinator | RoutedCoordinator


@pytest.fixture(params=[1, 3])
async def fleet(request: pytest.FixtureRequest, tables: MemoryTables) -> AsyncIterator[list[RunningReplica]]:
    async with AsyncExitStack() as stack:
        names = [f"r{number}" for number in range(request.param)]
        replicas = [await stack.enter_async_context(a_replica(tables, name)) for name in names]
        await settled(replicas)
        yield replicas


async def put(coordinator: Coordinator, partitions: int = 2) -> TopicReply:
    reply = (await coordinator.call(PutTopic("default", "orders", partitions))).reply
    assert isinstance(reply, TopicReply)
    return reply


async def delete(coordinator: Coordinator) -> TopicReply:
    reply = (await coordinator.call(DeleteTopic("default", "orders"))).reply
    assert isinstance(reply, TopicReply)
    return reply


async def commit(coordinator: Coordinator, offset: int, topic_id: int | None = None) -> set[ErrorCode]:
    """An administrator's commit in each group; how the partitions were answered."""
    found = set()
    for group_id in GROUPS:
        offsets = (OffsetToCommit("orders", 0, offset, topic_id=topic_id), OffsetToCommit("other", 0, offset))
        reply = (await coordinator.call(CommitOffsets("default", group_id, -1, offsets))).reply
        assert isinstance(reply, CommitReply)
        found.add(reply.error if reply.error is not ErrorCode.NONE else reply.partitions[0].error)
    return found


async def progress(coordinator: Coordinator) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for group_id in GROUPS:
        reply = (await coordinator.call(FetchOffsets("default", group_id))).reply
        assert isinstance(reply, FetchReply)
        for each in reply.offsets:
            found.setdefault(each.topic, set()).add(each.offset)
    return found


async def test_a_new_topic_has_no_progress_of_the_deleted_one(fleet: list[RunningReplica]) -> None:
    first, last = fleet[0].routed, fleet[-1].routed
    await put(first)
    await commit(first, 1_000)

    deleted = await delete(last)
    while_deleted = await progress(first)
    await commit(last, 1_001)
    again = await put(first)

    assert (deleted.error, deleted.groups) == (ErrorCode.NONE, len(GROUPS))
    assert while_deleted == {"other": {1_000}}
    assert (again.error, again.partitions) == (ErrorCode.NONE, 2)
    assert await progress(last) == {"other": {1_001}}


async def test_a_late_commit_is_refused_on_every_replica(fleet: list[RunningReplica]) -> None:
    first, last = fleet[0].routed, fleet[-1].routed
    await put(first)
    await delete(first)
    await put(last)

    assert await commit(last, 7, topic_id=0) == {ErrorCode.UNKNOWN_TOPIC}
    assert await progress(first) == {"other": {7}}


class PartlyFailing(FaultyStore):
    """It refuses to write the deletion of a topic for any shard but these."""

    spared: frozenset[int] | None = None

    async def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        named = {batch.shard_id for batch in batches if batch.rows.topics}
        self.fail = self.spared is not None and not named <= self.spared
        return await super().append(batches)


async def test_a_topic_is_not_put_while_a_shard_may_have_its_progress(tables: MemoryTables) -> None:
    """The process is killed between the steps: the topic's own shard has deleted it, the others have not."""
    store = PartlyFailing(tables)
    await store.open(SHARDS)
    own = shard_of("default", "", SHARDS)
    killed = LocalCoordinator(store, shard_count=SHARDS, limits=NOW, replica_id="r1")
    await killed.start()
    await until_ready(killed)
    await put(killed)
    await commit(killed, 1_000)
    store.spared = frozenset({own})
    refused = await delete(killed)
    await killed.crash()
    store.spared = None
    left = {row.topic for shard_id in range(SHARDS) for row in tables.load(shard_id).offsets}

    async with LocalCoordinator(store, shard_count=SHARDS, limits=NOW, replica_id="r2", steal=True) as coordinator:
        await until_ready(coordinator)
        store.spared = frozenset({own})
        refused_again = await put(coordinator)
        store.spared = None
        await until_ready(coordinator)
        again = await put(coordinator)
        assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "groups may still have progress in the deleted topic orders" in refused.detail
        assert "orders" in left, "the shards of other groups have not forgotten it"
        assert refused_again.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert again.partitions == 2
        assert "orders" not in await progress(coordinator)


async def test_a_deletion_that_was_cut_off_can_be_repeated(tables: MemoryTables) -> None:
    store = PartlyFailing(tables)
    await store.open(SHARDS)
    async with LocalCoordinator(store, shard_count=SHARDS, limits=NOW) as coordinator:
        await until_ready(coordinator)
        await put(coordinator)
        await commit(coordinator, 1_000)
        store.spared = frozenset({shard_of("default", "", SHARDS)})
        await delete(coordinator)
        store.spared = None

        await until_ready(coordinator)
        again = await delete(coordinator)

        assert again.error is ErrorCode.UNKNOWN_TOPIC
        assert "orders" not in await progress(coordinator)
