"""Losses that arrive wrapped: a paused process loses its share, and its program's own code learns of it first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rota.client import (
    Election,
    LeadershipLost,
    MembershipLost,
    PermitLost,
    Permits,
    Shard,
    WorkerPool,
)
from rota.client.errors import without_losses
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, OffsetToCommit
from tests.client.stage import GROUP, SESSION_S, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time, pause

Raise = Callable[[Any], Awaitable[None]]


async def in_a_task_group(held: Any) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(directly(held))
        tasks.create_task(asyncio.sleep(60))


async def in_nested_task_groups(held: Any) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(in_a_task_group(held))
        tasks.create_task(directly(held))


async def as_a_cause(held: Any) -> None:
    try:
        held.raise_if_lost()
    except MembershipLost as lost:
        raise ValueError("the document was not written") from lost


async def as_a_context(held: Any) -> None:
    try:
        held.raise_if_lost()
    finally:
        raise KeyError("a buffer that is not there") if not _is_valid(held) else asyncio.CancelledError


async def as_a_cause_in_a_task_group(held: Any) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(as_a_cause(held))


async def in_a_thread(held: Any) -> None:
    await asyncio.to_thread(held.raise_if_lost)


async def under_a_timeout(held: Any) -> None:
    async with asyncio.timeout(60):
        await directly(held)


async def directly(held: Any) -> None:
    held.raise_if_lost()
    await asyncio.sleep(0)


WAYS = [
    directly,
    in_a_task_group,
    in_nested_task_groups,
    as_a_cause,
    as_a_context,
    as_a_cause_in_a_task_group,
    in_a_thread,
    under_a_timeout,
]


def _is_valid(held: Any) -> bool:
    return bool(held.is_held if isinstance(held, Shard) else held.is_valid)


async def pause_in(held: Any, pauses: list[float], way: Raise) -> None:
    """Work whose process stands still, once, for longer than its session."""
    while True:
        await asyncio.sleep(0.1)
        if pauses:
            pause(pauses.pop())
            await way(held)


def a_pool(worker: Worker, work: Any, **options: Any) -> WorkerPool:
    return worker.client.worker_pool(GROUP, {"docs": 2}, work, session_timeout=SESSION_S, **options)


@pytest.mark.parametrize("way", WAYS)
@in_virtual_time
async def test_a_pool_works_on_after_a_loss_that_is_wrapped(way: Raise) -> None:
    async with a_coordinator() as coordinator:
        worker, pauses, begun = a_worker(coordinator), [10.0], list[int]()

        async def work(shard: Shard) -> None:
            begun.append(shard.partition)
            await pause_in(shard, pauses, way)

        pool = a_pool(worker, work)
        running = asyncio.create_task(pool.run(handle_signals=False))
        await until(lambda: running.done() or len(begun) == 4)
        assert sorted(begun) == [0, 0, 1, 1], running.exception()
        pool.stop()
        await running


def an_election(worker: Worker) -> Election:
    return worker.client.leader("writer", session_timeout=SESSION_S)


def a_lock(worker: Worker) -> Permits:
    return worker.client.lock("nightly", session_timeout=SESSION_S)


@in_virtual_time
async def test_what_is_no_loss_in_a_group_is_raised_alone() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)

        async def fail() -> None:
            raise ValueError("a broken document")

        async def work(held: Any) -> None:
            await asyncio.sleep(0.1)
            pause(10)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(directly(held))
                tasks.create_task(fail())

        for running in (a_pool(worker, work).run(), an_election(worker).run(work)):
            with pytest.raises(ExceptionGroup) as raised:
                await running
            assert [type(each) for each in raised.value.exceptions] == [ValueError]


@in_virtual_time
async def test_pauses_quarantine_no_healthy_shard() -> None:
    """Two falls in a row would be enough."""
    async with a_coordinator() as coordinator:
        worker, pauses = a_worker(coordinator), [10.0] * 4

        async def work(shard: Shard) -> None:
            await pause_in(shard, pauses, in_a_task_group)

        pool = a_pool(worker, work)
        async with pool:
            await until(lambda: len(pool.shards) == 2)
            await worker.client.quarantine_group(GROUP, after_falls=2)
            await until(lambda: not pauses and len(pool.shards) == 2)
            assert (await worker.client.describe_group(GROUP)).quarantined == ()


@in_virtual_time
async def test_a_lost_inner_lock_ends_a_pool_and_accuses_no_shard() -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator, "other")

        async def work(_shard: Shard) -> None:
            async with a_lock(other):
                other.cable.pull()
                await asyncio.sleep(60)

        async with worker.client.consumer(GROUP, {"docs": 1}, session_timeout=SESSION_S) as first:
            await first.wait_assigned()
            await worker.client.quarantine_group(GROUP, after_falls=1)
        pool = worker.client.worker_pool(GROUP, {"docs": 1}, work, session_timeout=SESSION_S)
        with pytest.raises(PermitLost):
            await pool.run(handle_signals=False)

        async with worker.client.consumer(GROUP, {"docs": 1}, session_timeout=SESSION_S) as next_one:
            assert len((await next_one.wait_assigned()).share) == 1


@pytest.mark.parametrize("is_wrapped", [False, True])
@in_virtual_time
async def test_a_commit_rejected_in_a_drain_ends_no_pool(is_wrapped: bool) -> None:
    """The group has moved on before the work on a revoked shard commits its last step."""
    async with a_coordinator() as coordinator:
        worker, tried = a_worker(coordinator), list[bool]()

        async def commit(shard: Shard) -> None:
            worker.cable.refused.append((CommitOffsets, ErrorCode.ILLEGAL_GENERATION))
            tried.append(True)
            await shard.commit(1)

        async def work(shard: Shard) -> None:
            await shard.stopping.wait()
            if not is_wrapped:
                await commit(shard)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(commit(shard))

        pool = a_pool(worker, work, strategy="range", drain_timeout=5.0)
        running = asyncio.create_task(pool.run(handle_signals=False, drain_timeout=0.1))
        await until(lambda: len(pool.shards) == 2)
        async with a_pool(a_worker(coordinator, "other"), work, strategy="range") as other:
            await until(lambda: running.done() or (len(pool.shards), len(other.shards)) == (1, 1))
            assert tried
            assert not running.done(), running.exception()
        pool.stop()
        await running


@pytest.mark.parametrize("callback", ["on_assigned", "on_revoked", "on_lost"])
@in_virtual_time
async def test_a_callback_that_meets_the_loss_ends_no_consumer(callback: str, caplog: pytest.LogCaptureFixture) -> None:
    async with a_coordinator() as coordinator:
        worker, assigned, raised = a_worker(coordinator), list[int](), list[str]()

        async def commit() -> None:
            await consumer.commit([OffsetToCommit("docs", 0, 5)])

        async def meet_the_loss(*_shares: object) -> None:
            if not raised:
                raised.append(callback)
                if callback == "on_revoked":
                    worker.cable.refused.append((CommitOffsets, ErrorCode.ILLEGAL_GENERATION))
                else:
                    pause(10)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(commit())

        async def on_assigned(added: object, held: object) -> None:
            assigned.append(1)
            if callback == "on_assigned":
                await meet_the_loss()

        options: dict[str, Any] = {"on_assigned": on_assigned}
        if callback != "on_assigned":
            options[callback] = meet_the_loss
        consumer = worker.client.consumer(GROUP, {"docs": 1}, "range", session_timeout=SESSION_S, **options)
        running = asyncio.create_task(consumer.run(handle_signals=False))
        await until(lambda: consumer.assignment is not None)
        if callback == "on_lost":
            worker.cable.pull()
            await until(lambda: bool(raised))
            worker.cable.plug_in()
        elif callback == "on_revoked":
            consumer.rejoin("for the test")
        await until(lambda: running.done() or len(assigned) == 2)
        assert not running.done(), running.exception()
        assert raised
        consumer.stop()
        await running
    if callback != "on_assigned":
        assert any("on a share that is not held any more" in line for line in caplog.messages)
    assert all(each.levelno < logging.ERROR for each in caplog.records)


def test_an_error_is_split_by_its_leaves() -> None:
    lost, bug = LeadershipLost("over"), ValueError("a bug")
    suppressed = KeyError("raised from None")
    suppressed.__context__, suppressed.__suppress_context__ = lost, True

    assert without_losses(lost) is None
    assert without_losses(bug) is bug
    assert without_losses(suppressed) is suppressed
    assert without_losses(ExceptionGroup("", [lost, ExceptionGroup("", [PermitLost("")])])) is None
    rest = without_losses(ExceptionGroup("two", [lost, ExceptionGroup("", [PermitLost(""), bug])]))
    assert isinstance(rest, ExceptionGroup)
    assert isinstance(rest.exceptions[0], ExceptionGroup)
    assert rest.exceptions[0].exceptions == (bug,)
    all_bugs = ExceptionGroup("", [bug])
    assert without_losses(all_bugs) is all_bugs
