"""Pools whose work raises or hangs: the other shards keep their progress, and work on where that is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from rota.client import Shard, WorkerPool
from rota.client.metrics import SHARDS_IN_TROUBLE
from rota.client.stats import Clients
from tests.client.stage import GROUP, SESSION_S, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

DOCS = {"docs": 4}


def a_pool(worker: Worker, work: Any, **options: Any) -> WorkerPool:
    return worker.client.worker_pool(GROUP, DOCS, work, session_timeout=SESSION_S, **options)


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("looks", [False, True])
@in_virtual_time
async def test_a_failing_shard_costs_its_siblings_no_progress(looks: bool) -> None:
    async with a_coordinator() as coordinator:
        worker, ends = a_worker(coordinator), Counter[str]()

        async def work(shard: Shard) -> None:
            shard.store(10)
            if shard.partition == 3:
                await asyncio.sleep(1)
                raise ValueError("a broken document")
            try:
                await (shard.stopping.wait() if looks else forever())
                await asyncio.sleep(1)
                shard.store(20)
                ends["drained"] += 1
            except asyncio.CancelledError:
                ends["cancelled"] += 1
                raise

        with pytest.raises(ValueError, match="a broken document"):
            await a_pool(worker, work, auto_commit_interval=None).run(handle_signals=False)

        assert ends == ({"drained": 3} if looks else {"cancelled": 3})
        assert await worker.committed() == dict.fromkeys(range(3), 20 if looks else 10) | {3: 10}
        assert (await worker.client.describe_group(GROUP)).members == ()


@in_virtual_time
async def test_stored_progress_is_committed_every_five_seconds() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)

        async def work(shard: Shard) -> None:
            shard.store(7)
            await forever()

        async with a_pool(worker, work) as pool:
            await until(lambda: len(pool.shards) == 4)
            await asyncio.sleep(5.1)
            assert await worker.committed() == dict.fromkeys(range(4), 7)


@in_virtual_time
async def test_a_retry_leaves_the_other_shards_at_work(caplog: pytest.LogCaptureFixture) -> None:
    async with a_coordinator() as coordinator:
        worker, begun, at = a_worker(coordinator), Counter[int](), list[float]()
        clients = Clients()
        clients.add(worker.client)

        async def work(shard: Shard) -> None:
            begun[shard.partition] += 1
            if shard.partition == 3 and begun[3] <= 4:
                at.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0.5)
                raise ValueError("a broken document")
            await forever()

        pool = a_pool(worker, work)
        running = asyncio.create_task(pool.run(handle_signals=False, retry=True))
        await until(lambda: begun[3] == 2)
        assert pool.trouble == "the work of docs/3 raised ValueError('a broken document'), and is tried again"
        assert sum(clients.collect()[SHARDS_IN_TROUBLE].values()) == 1
        await until(lambda: begun[3] == 5)
        await asyncio.sleep(31)

        assert begun == {0: 1, 1: 1, 2: 1, 3: 5}
        pauses = [later - before - 0.5 for before, later in pairwise(at)]
        assert all(0.5 * 2**number <= pause <= 2**number for number, pause in enumerate(pauses)), pauses
        assert pool.trouble == "", "it has run well for half a minute"
        lines = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert len(lines) == 4
        assert lines[0].message.startswith("the work of docs/3 raised; it is tried again in ")
        pool.stop()
        await running


@in_virtual_time
async def test_a_run_until_done_with_retry_waits_for_the_last_try() -> None:
    async with a_coordinator() as coordinator:
        worker, begun = a_worker(coordinator), Counter[int]()

        async def work(shard: Shard) -> None:
            begun[shard.partition] += 1
            if shard.partition == 3 and begun[3] == 1:
                raise ValueError("a broken document")

        await a_pool(worker, work, max_processing_interval=0.2).run(handle_signals=False, retry=True, until_done=True)

        assert begun == {0: 1, 1: 1, 2: 1, 3: 2}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@in_virtual_time
async def test_quarantine_is_the_last_step_of_a_retry(strategy: str) -> None:
    """Two falls in a row, each of three tries."""
    async with a_coordinator() as coordinator:
        worker, begun = a_worker(coordinator), Counter[int]()

        async def work(shard: Shard) -> None:
            begun[shard.partition] += 1
            shard.store(begun[shard.partition])
            if shard.partition == 3:
                raise ValueError("a broken document")
            await forever()

        pool = a_pool(worker, work, strategy=strategy)
        running = asyncio.create_task(pool.run(handle_signals=False, retry=True))
        await until(lambda: len(pool.shards) == 4)
        await worker.client.quarantine_group(GROUP, after_falls=2)
        await until(lambda: running.done() or len(pool.shards) == 3)

        assert not running.done(), running.exception()
        assert begun[3] == 6
        assert (await worker.client.describe_group(GROUP)).quarantined == ("docs/3",)
        assert (await worker.committed())[0] >= 1, "what siblings had stored before the pool left"
        await asyncio.sleep(60)
        assert begun[3] == 6, "the retry has ended with the shard"
        assert pool.trouble == ""
        pool.stop()
        await running


@in_virtual_time
async def test_a_shard_that_hangs_is_started_again_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with a_coordinator() as coordinator:
        worker, begun, clients = a_worker(coordinator), Counter[int](), Clients()
        clients.add(worker.client)
        recovered = asyncio.Event()

        async def work(shard: Shard) -> None:
            begun[shard.partition] += 1
            while shard.partition != 3 or recovered.is_set():
                await asyncio.sleep(0.3)
                shard.progress() if shard.partition else shard.store(1)
            await forever()

        async with a_pool(worker, work, max_processing_interval=1.0) as pool:
            await until(lambda: begun[3] == 3)
            assert begun == {0: 1, 1: 1, 2: 1, 3: 3}
            assert pool.trouble == "the work of docs/3 makes no progress"
            assert sum(clients.collect()[SHARDS_IN_TROUBLE].values()) == 1
            assert "the work of docs/3 is cancelled and started again: no progress for 1 s" in caplog.messages
            recovered.set()
            await until(lambda: pool.trouble == "")
            await asyncio.sleep(5)
            assert begun == {0: 1, 1: 1, 2: 1, 3: 4}


@in_virtual_time
async def test_work_that_ignores_its_cancellation_is_not_doubled() -> None:
    async with a_coordinator() as coordinator:
        worker, at_work, ended = a_worker(coordinator), Counter[int](), asyncio.Event()

        async def work(shard: Shard) -> None:
            at_work[shard.partition] += 1
            assert at_work[shard.partition] == 1
            try:
                while shard.partition == 3 and not ended.is_set():
                    try:
                        await ended.wait()
                    except asyncio.CancelledError:
                        assert not shard.is_held
                while True:
                    await asyncio.sleep(0.3)
                    shard.progress()
            finally:
                at_work[shard.partition] -= 1

        async with a_pool(worker, work, max_processing_interval=1.0) as pool:
            await asyncio.sleep(5)
            assert pool.trouble == "the work of docs/3 makes no progress"
            ended.set()
            await until(lambda: pool.trouble == "")
            assert at_work == dict.fromkeys(range(4), 1)


@in_virtual_time
async def test_a_pool_without_any_progress_gives_its_share_up() -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator, "other")
        at_work = Counter[str]()

        async def hang(_shard: Shard) -> None:
            at_work["hung"] += 1
            while True:
                try:
                    await forever()
                except asyncio.CancelledError:
                    if at_work["let go"]:
                        raise

        async def work(_shard: Shard) -> None:
            await forever()

        async with a_pool(worker, hang, max_processing_interval=2.0) as pool, a_pool(other, work) as second:
            await until(lambda: len(second.shards) == 4)
            assert pool.shards == ()
            at_work["let go"] = 1
