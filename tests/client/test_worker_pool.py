"""Worker pools against the real coordinator, in virtual time: one task a shard, for as long as the shard is held."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rota.client import Shard, WorkerPool
from rota.protocol.fencing_token import fencing_token
from tests.client.stage import GROUP, SESSION_S, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

END = 50


class Ledger:
    """Counts how often each position of each shard was worked on, and by how many at once."""

    def __init__(self) -> None:
        self.done: Counter[tuple[int, int]] = Counter()
        self.at_work: Counter[int] = Counter()
        self.most_at_once = 0

    async def index(self, shard: Shard) -> None:
        self.at_work[shard.partition] += 1
        self.most_at_once = max(self.most_at_once, self.at_work[shard.partition])
        try:
            for position in range(await shard.position(), END):
                await asyncio.sleep(0.05)
                self.done[(shard.partition, position)] += 1
                await shard.commit(position + 1)
        finally:
            self.at_work[shard.partition] -= 1


def a_pool(worker: Worker, ledger: Ledger) -> WorkerPool:
    return worker.client.worker_pool(GROUP, {"work": 4}, ledger.index, session_timeout=SESSION_S)


@in_virtual_time
async def test_each_shard_is_worked_off_once() -> None:
    async with a_coordinator() as coordinator:
        ledger = Ledger()
        async with a_pool(a_worker(coordinator), ledger) as pool:
            await pool.wait_done()
        assert set(ledger.done.values()) == {1}
        assert len(ledger.done) == 4 * END


@in_virtual_time
async def test_a_run_until_done_leaves_once_all_work_has_returned() -> None:
    async with a_coordinator() as coordinator:
        ledger, client = Ledger(), a_worker(coordinator).client

        await client.worker_pool(GROUP, {"work": 4}, ledger.index, session_timeout=SESSION_S).run(until_done=True)

        assert len(ledger.done) == 4 * END
        assert (await client.describe_group(GROUP)).members == ()


@in_virtual_time
async def test_a_stop_of_a_run_until_done_drains_work() -> None:
    finished = []

    async def work(shard: Shard) -> None:
        await shard.stopping.wait()
        await asyncio.sleep(shard.partition)
        finished.append(shard.partition)

    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        pool = client.worker_pool(GROUP, {"work": 4}, work, session_timeout=SESSION_S)
        running = asyncio.create_task(pool.run(until_done=True))
        await until(lambda: len(pool.shards) == 4)

        pool.stop()
        await running

        assert finished == [0, 1, 2, 3]
        assert (await client.describe_group(GROUP)).members == ()


@pytest.mark.parametrize("strategy", ["server:redundant(2)", "cooperative-redundant(2)"])
@in_virtual_time
async def test_a_standby_works_on_and_learns_of_its_promotion(strategy: str) -> None:
    async with a_coordinator() as coordinator:
        first, second = Copies(), Copies()
        worker = a_worker(coordinator)
        await worker.client.put_topic("work", 4)
        async with first.pool(worker, strategy) as pool:
            await until(lambda: len(first.active) == 4)
            async with second.pool(a_worker(coordinator), strategy):
                await until(lambda: len(pool.shards) == len(second.shards) == 4)
                await until(lambda: len(first.active) + len(second.active) == 4)
                begun = dict(second.shards)
                assert not first.active & second.active

                worker.cable.pull()
                await until(lambda: len(second.active) == 4)

                assert not first.active, "the other one has ended its work by its deadline"
                assert second.shards == begun, "no work was started anew"
                worker.cable.plug_in()


class Copies:
    """The copies that one process works on, and those of them that are active."""

    def __init__(self) -> None:
        self.shards: dict[int, Shard] = {}
        self.active: set[int] = set()

    def pool(self, worker: Worker, strategy: str) -> WorkerPool:
        return worker.client.worker_pool(GROUP, "work", self.serve, strategy, session_timeout=SESSION_S)

    async def serve(self, shard: Shard) -> None:
        self.shards[shard.partition] = shard
        try:
            await shard.promoted.wait()
            assert shard.role == "active"
            self.active.add(shard.partition)
            await shard.stopping.wait()
        finally:
            self.active.discard(shard.partition)


@in_virtual_time
async def test_the_work_on_a_lost_shard_is_cancelled_at_the_deadline() -> None:
    async with a_coordinator() as coordinator:
        ledger, worker = Ledger(), a_worker(coordinator)
        shards: list[Shard] = []

        async def wait(shard: Shard) -> None:
            shards.append(shard)
            await ledger.index(shard)
            await asyncio.Event().wait()

        pool = worker.client.worker_pool(GROUP, {"work": 4}, wait, session_timeout=SESSION_S)
        async with pool:
            await until(lambda: sum(ledger.at_work.values()) == 4)
            assert [(shard.is_held, shard.fencing_token) for shard in shards] == [(True, fencing_token(1))] * 4
            worker.cable.pull()
            await until(lambda: sum(ledger.at_work.values()) == 0)
            assert [shard.is_held for shard in shards] == [False] * 4
            assert shards[0].valid_until is None
            assert shards[0].stopping.is_set()
            worker.cable.plug_in()


@in_virtual_time
async def test_work_may_end_by_itself_while_it_drains() -> None:
    async with a_coordinator() as coordinator:
        ends: list[str] = []

        async def work(shard: Shard) -> None:
            try:
                await shard.stopping.wait()
                await asyncio.sleep(1)
                ends.append("by itself")
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        client = a_worker(coordinator).client
        async with client.worker_pool(GROUP, {"work": 1}, work, drain_timeout=2.0) as pool:
            await until(lambda: len(pool.shards) == 1)
            await asyncio.sleep(0.1)
        assert ends == ["by itself"]


@in_virtual_time
async def test_an_exception_of_the_work_ends_the_block_after_leaving() -> None:
    async with a_coordinator() as coordinator:

        async def work(shard: Shard) -> None:
            raise ZeroDivisionError

        client = a_worker(coordinator).client
        with pytest.raises(ZeroDivisionError):
            await client.worker_pool(GROUP, {"work": 1}, work).run()
        assert (await client.describe_group(GROUP)).state == "Empty"
