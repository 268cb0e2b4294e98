"""Progress that was stored is committed when it has to be, in virtual time, with and without an interval."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota.client import Consumer, MembershipLost, Shard
from tests.client.stage import GROUP, SESSION_S, TOPICS, Partitions, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

INTERVALS = pytest.mark.parametrize("auto_commit_interval", [None, 60.0])


def a_consumer(worker: Worker, **options: Any) -> Consumer:
    return worker.client.consumer(GROUP, TOPICS, session_timeout=SESSION_S, **options)


@INTERVALS
@in_virtual_time
async def test_what_is_stored_is_committed_when_the_block_is_left(auto_commit_interval: float | None) -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with a_consumer(worker, auto_commit_interval=auto_commit_interval) as consumer:
            await consumer.wait_assigned()
            consumer.store("work", 3, 7)
        assert await worker.committed() == {3: 7}


@INTERVALS
@in_virtual_time
async def test_what_on_revoked_stores_is_committed_too(auto_commit_interval: float | None) -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)

        def on_revoked(removed: Partitions) -> None:
            for place in removed:
                consumer.store(place.topic, place.partition, 9)

        consumer = a_consumer(worker, auto_commit_interval=auto_commit_interval, on_revoked=on_revoked)
        async with consumer:
            await consumer.wait_assigned()
        assert await worker.committed() == dict.fromkeys(range(12), 9)


@INTERVALS
@in_virtual_time
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_what_is_stored_is_committed_before_a_partition_moves(
    strategy: str, auto_commit_interval: float | None
) -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator, "a"), a_worker(coordinator, "b")
        async with a_consumer(worker, strategy=strategy, auto_commit_interval=auto_commit_interval) as consumer:
            await consumer.wait_assigned()
            for partition in range(12):
                consumer.store("work", partition, 100 + partition)
            async with a_consumer(other, strategy=strategy) as newcomer:
                await until(lambda: len(newcomer.assignment or ()) == 6)
                found = await newcomer.committed()
                assert found == {place: 100 + place.partition for place in newcomer.assignment or ()}


@INTERVALS
@in_virtual_time
async def test_what_the_work_of_a_pool_stores_is_committed_at_its_end(auto_commit_interval: float | None) -> None:
    async def work(shard: Shard) -> None:
        shard.store(42)

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        await worker.client.worker_pool(GROUP, {"work": 2}, work, auto_commit_interval=auto_commit_interval).run(
            until_done=True
        )
        assert await worker.committed() == {0: 42, 1: 42}


@in_virtual_time
async def test_what_was_stored_before_a_loss_is_not_committed_after_it() -> None:
    """Another member may be further on by then."""
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with a_consumer(worker) as consumer:
            await consumer.wait_assigned()
            consumer.store("work", 3, 5)
            worker.cable.pull()
            await until(lambda: consumer.assignment is None)
            with pytest.raises(MembershipLost):
                consumer.store("work", 3, 6)
            worker.cable.plug_in()
            await consumer.wait_assigned()
            await asyncio.sleep(1)
        assert await worker.committed() == {}


@in_virtual_time
async def test_nothing_is_stored_once_on_revoked_has_returned() -> None:
    """While the last commits are under way the partition is not given up yet, and a stored offset would get lost."""
    async with a_coordinator() as coordinator:
        worker, revoked = a_worker(coordinator), asyncio.Event()
        consumer = a_consumer(worker, auto_commit_interval=0.1, on_revoked=lambda removed: revoked.set())
        await consumer.start()
        await consumer.wait_assigned()
        worker.cable.commits_may_go.clear()
        consumer.store("work", 3, 5)
        closing = asyncio.create_task(consumer.close())
        await revoked.wait()
        await asyncio.sleep(0.5)
        with pytest.raises(MembershipLost, match="work/3 was revoked"):
            consumer.store("work", 3, 6)
        worker.cable.commits_may_go.set()
        await closing
        assert await worker.committed() == {3: 5}
